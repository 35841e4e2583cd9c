"""Samplers of the K train examples in a query's pool."""
