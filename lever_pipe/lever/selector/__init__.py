"""The trained policy: scores over a pool, selections from scores."""
