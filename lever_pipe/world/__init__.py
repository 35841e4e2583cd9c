"""The embedded world: its data, and the training of its models."""
