rule check_claims:
    input:
        claims="resources/claims.yaml",
        reference=REFERENCE,
        reference_intention="resources/reference/userrl-published.csv",
        reference_lineage="resources/reference/lineage.yaml",
        scores=f"{TABLES}/scores.csv",
        training=f"{TABLES}/training.csv",
        intervals=f"{TABLES}/intervals.csv",
        comparisons=f"{TABLES}/comparisons.csv",
        agreement=f"{TABLES}/agreement.csv",
        parameters=f"{TABLES}/parameters.csv",
        lineage=f"{TABLES}/lineage.csv",
    output:
        judged=f"{TABLES}/claims.csv",
        tables=f"{TABLES}/claims.json",
        csv=shown_tables(f"{TABLES}/claims"),
        card=f"{TABLES}/claims.run.json",
    log:
        f"{TABLES}/claims.log.txt",
    benchmark:
        f"{TABLES}/claims.benchmark.jsonl"
    conda:
        "../../envs/cpu.yaml"
    resources:
        **CPU,
    params:
        spec=spec("check_claims"),
        files=named_files,
    message:
        "Judge every claim of the documents"
    shell:
        "python -m lever_pipe check_claims --spec {params.spec:q} {params.files:q}"
        " --device {resources.device} --threads {threads} > {log} 2>&1"
