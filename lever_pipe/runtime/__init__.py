"""Extensions of Snakemake: plan, content-based reruns, store, one writer per artifact, forked jobs, SLURM."""
