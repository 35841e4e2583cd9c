"""Faults of the published runs, each as a wrapper around a right part; only stages of the emulation import it."""
