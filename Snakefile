# Snakemake's workflow catalog expects the workflow in this folder. The default target is set here, not by an include.
include: "workflow/Snakefile"


workflow.default_target = "all"
