"""Selectors of a user's own, which stand beside the trained ones in the grid."""
