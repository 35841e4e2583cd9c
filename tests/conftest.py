"""Chooses the numeric path before any test imports torch."""

import lever_pipe  # noqa: F401
