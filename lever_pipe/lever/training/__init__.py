"""The optimiser loop of the selector and the two objectives that run in it."""
