"""Losses as functions of tensors: formula, shapes and source in every docstring; no state."""
