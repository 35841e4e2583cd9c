rule tabulate_on_policy:
    input:
        scores=f"{TABLES}/scores.csv",
        arms=f"{TABLES}/arms.csv",
        steps=f"{TABLES}/steps.csv",
        ties=f"{TABLES}/ties.csv",
        rl_data=f"{TABLES}/rl_data.csv",
        intervals=f"{TABLES}/intervals.csv",
        comparisons=f"{TABLES}/comparisons.csv",
        agreement=f"{TABLES}/agreement.csv",
        lineage=f"{TABLES}/lineage.csv",
    output:
        tables=f"{TABLES}/on_policy.json",
        csv=shown_tables(f"{TABLES}/on_policy"),
        card=f"{TABLES}/on_policy.run.json",
    log:
        f"{TABLES}/on_policy.log.txt",
    benchmark:
        f"{TABLES}/on_policy.benchmark.jsonl"
    conda:
        "../../envs/cpu.yaml"
    resources:
        **room("tabulate_on_policy").resources,
    params:
        spec=spec("tabulate_on_policy"),
        files=named_files,
    message:
        "Build the tables of on-policy GRPO"
    shell:
        "python -m lever_pipe tabulate_on_policy --spec {params.spec:q} {params.files:q}"
        " --device {resources.device} --threads {threads} > {log:q} 2>&1"
