"""Configuration models of both studies, and the identity of each stage."""
