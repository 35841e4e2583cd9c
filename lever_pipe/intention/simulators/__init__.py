"""Simulated users, one module each."""
