"""The original trainer as an engine: launch files out, logs in."""
