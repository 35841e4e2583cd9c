"""Codecs between dialogues and tokens, one module each."""
