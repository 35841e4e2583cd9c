"""Timings as ratios against a baseline in the same run; never a condition of a test."""

import lever_pipe  # noqa: F401 - chooses the numeric path before anything imports torch
