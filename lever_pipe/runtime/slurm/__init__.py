"""What the main process does on a SLURM cluster: checks before a run, watching, sizes of jobs, what failed."""
