"""Timings as ratios against a baseline in the same run; never a condition of a test."""
