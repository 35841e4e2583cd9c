"""Frozen vision-language models that answer prompts; each public module except `protocol` is a plugin."""
