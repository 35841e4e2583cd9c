"""The sentence about one seed."""

ONE_SEED = "No inference about training variance: one seed."
