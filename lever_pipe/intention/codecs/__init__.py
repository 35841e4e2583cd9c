"""How dialogues become tokens and back, a module each."""
