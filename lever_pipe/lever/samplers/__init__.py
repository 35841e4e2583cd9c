"""Samplers of the K train examples that are offered to a query."""
