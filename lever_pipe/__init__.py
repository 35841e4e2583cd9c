"""Reproduce the result tables of two reinforcement-learning studies with one Snakemake workflow."""

from lever_pipe.base import numerics, process_environment

__version__ = "1.0.0"

# Before any module of the package, and so before the libraries that read these variables.
process_environment.apply()
numerics.choose()
