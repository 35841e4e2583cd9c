"""Metrics of answers and selections, as pure functions of text and arrays."""
