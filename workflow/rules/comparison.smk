rule compare_policies:
    input:
        per_question=[
            f"{LEVER}/{policy}/scores/per_question.jsonl"
            for policy in plan.evaluated(EXPERIMENT)
        ],
        eval_examples=EXAMPLES["eval_examples"],
        lineage=f"{TABLES}/lineage.csv",
    output:
        intervals=f"{TABLES}/intervals.csv",
        comparisons=f"{TABLES}/comparisons.csv",
        breakdown=f"{TABLES}/breakdown.csv",
        tables=f"{TABLES}/comparisons.json",
        csv=shown_tables(f"{TABLES}/comparisons"),
        card=f"{TABLES}/comparisons.run.json",
    log:
        f"{TABLES}/comparisons.log.txt",
    benchmark:
        f"{TABLES}/comparisons.benchmark.jsonl"
    conda:
        "../../envs/cpu.yaml"
    resources:
        **room("compare_policies").resources,
    params:
        spec=spec("compare_policies"),
        files=named_files,
    message:
        "Compare all policies: intervals and tests"
    shell:
        "python -m lever_pipe compare_policies --spec {params.spec:q} {params.files:q}"
        " --device {resources.device} --threads {threads} > {log:q} 2>&1"
