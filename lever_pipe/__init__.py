"""Reproduce the result tables of two reinforcement-learning studies with one Snakemake workflow."""

__version__ = "0.1.0"
