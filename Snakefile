from snakemake.utils import min_version

from lever_pipe.runtime.snakemake_adapter import read_configuration_strictly

min_version("9.27")


# A job's own Snakemake takes the configuration from the snapshot of its invocation.
if workflow.is_main_process:
    read_configuration_strictly(workflow)

    configfile: "config.yaml"


report: "workflow/report/workflow.rst"


include: "workflow/rules/common.smk"
include: "workflow/rules/stage.smk"
include: "workflow/rules/data.smk"
include: "workflow/rules/rl_data.smk"
include: "workflow/rules/training.smk"
include: "workflow/rules/evaluation.smk"
include: "workflow/rules/emulation.smk"
include: "workflow/rules/comparison.smk"
include: "workflow/rules/intention.smk"
include: "workflow/rules/report.smk"
include: "workflow/rules/evidence.smk"
include: "workflow/rules/grid.smk"


regard_what_is_made()


rule all:
    default_target: True
    input:
        [PAGE, REPORT] if {"lever", "intention"} & set(EXPERIMENT.studies) else [],
        GRID_PAGE,


onstart:
    begin_invocation()


onsuccess:
    print(closing_summary())


onerror:
    print(failure_summary())
