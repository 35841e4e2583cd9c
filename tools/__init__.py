"""Programs that no run calls."""
