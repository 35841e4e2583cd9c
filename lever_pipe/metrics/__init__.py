"""Measures of answers and of selections, as pure functions of text and arrays."""
