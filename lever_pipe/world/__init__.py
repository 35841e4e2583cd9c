"""The embedded world: the data that a run needs."""
