"""Reproduce the result tables of two reinforcement-learning studies with one Snakemake workflow."""

from lever_pipe.base import numerics, process_environment

__version__ = "1.0.0"

# Here, because every module of the package is imported after this: the libraries have not read these variables yet.
process_environment.apply()
numerics.choose()
