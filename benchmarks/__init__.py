"""Timings as ratios to a baseline in the same run; no test depends on them."""

import lever_pipe  # noqa: F401 - chooses the numeric path before anything imports torch
