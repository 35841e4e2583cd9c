"""Frozen encoders of images and questions."""
