from snakemake.utils import min_version

min_version("9.27")


configfile: "config.yaml"


report: "workflow/report/workflow.rst"


include: "workflow/rules/common.smk"
include: "workflow/rules/data.smk"
include: "workflow/rules/rl_data.smk"
include: "workflow/rules/training.smk"
include: "workflow/rules/evaluation.smk"
include: "workflow/rules/emulation.smk"
include: "workflow/rules/comparison.smk"
include: "workflow/rules/agreement.smk"
include: "workflow/rules/intention.smk"
include: "workflow/rules/claims.smk"
include: "workflow/rules/report.smk"


leave_if_made()


rule all:
    default_target: True
    input:
        PAGE,
        REPORT,


onstart:
    begin_invocation()


onsuccess:
    print(closing_summary())


onerror:
    print(failure_summary())
