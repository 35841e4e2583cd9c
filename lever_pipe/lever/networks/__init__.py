"""What makes queries and candidates comparable, by `selector.network`."""
