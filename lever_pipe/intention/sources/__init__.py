"""Sources of tasks, one module each."""
