"""Reproduce the result tables of two reinforcement-learning studies with one Snakemake workflow."""

from lever_pipe.base import numerics

__version__ = "1.0.0"

numerics.choose()  # whatever of the package is imported, this runs first
