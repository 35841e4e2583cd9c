"""Networks that map queries and candidates to comparable vectors, by `selector.network`."""
