rule check_claims:
    input:
        claims="resources/claims.yaml",
        reference=REFERENCE,
        reference_intention=INTENTION_REFERENCE,
        reference_lineage="resources/reference/lineage.yaml",
        scores=of_study("lever", f"{TABLES}/scores.csv"),
        training=of_study("lever", f"{TABLES}/training.csv"),
        intervals=of_study("lever", f"{TABLES}/intervals.csv"),
        comparisons=of_study("lever", f"{TABLES}/comparisons.csv"),
        agreement=of_study("lever", f"{TABLES}/agreement.csv"),
        parameters=of_study("lever", f"{TABLES}/parameters.csv"),
        lineage=of_study("lever", f"{TABLES}/lineage.csv"),
        curves=of_study("intention", f"{AGENT_TABLES}/curves.csv"),
        agent_runs=of_study("intention", f"{AGENT_TABLES}/runs.csv"),
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
        **room("check_claims").resources,
    params:
        spec=spec("check_claims"),
        files=named_files,
    message:
        "Judge every claim of the documents"
    shell:
        "python -m lever_pipe check_claims --spec {params.spec:q} {params.files:q}"
        " --device {resources.device} --threads {threads} > {log:q} 2>&1"
