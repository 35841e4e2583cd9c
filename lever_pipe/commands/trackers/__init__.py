"""Trackers of experiments: `write` makes runs in a folder, `read` returns them by the tracker's own library."""
