"""Losses as stateless functions of tensors; every docstring contains formula, shapes and source."""
