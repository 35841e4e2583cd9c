"""Heads that score a pool after some picks, by `selector.head`."""
