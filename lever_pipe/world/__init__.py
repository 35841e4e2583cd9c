"""The embedded world: its data, and the making of its models."""
