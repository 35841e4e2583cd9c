"""Readers of question answering data and the generator of the embedded world."""
