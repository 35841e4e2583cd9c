"""What every room stands on: errors, seeds, files and their digests, run cards, the numeric path."""
