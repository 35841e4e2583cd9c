"""Checks before the first job, and by `doctor`."""
