"""Frozen vision-language models that answer prompts; each public module but `protocol` is a plugin."""
