"""Where tasks come from, a module each."""
