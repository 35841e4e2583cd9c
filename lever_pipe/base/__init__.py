"""What every room stands on: errors, seeds, files and their digests, manifests, the numeric path."""
