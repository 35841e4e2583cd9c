"""Foundations that all layers use: errors, seeds, files and their digests, manifests, the numeric path."""
