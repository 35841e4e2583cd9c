"""What Snakemake is taught: the plan, reruns by content, the store, one writer an artefact, forked jobs, SLURM."""
