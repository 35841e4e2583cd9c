"""SLURM support of the main process: queries, repeated submissions, and detection of lost jobs."""
