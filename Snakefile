# The workflow lies where Snakemake's catalogue looks for it. What a bare call makes is never left to an include.
include: "workflow/Snakefile"


workflow.default_target = "all"
