"""Simulated users, a module each."""
