TABLES = f"{LEVER}/tables"
FIGURES = f"{LEVER}/figures"
REFERENCE = "resources/reference/lever-plus-published.csv"
BATCHES = plan.batches(EXPERIMENT)
COUNTERS = [f"{LEVER}/answers/{batch}/counters.json" for batch in BATCHES]


rule collect_results:
    input:
        cells=[f"{LEVER}/{policy}/scores/cells.jsonl" for policy in plan.evaluated(EXPERIMENT)],
        metrics=[f"{LEVER}/{policy}/metrics.json" for policy in plan.trained(EXPERIMENT)],
        rl_summary=RL_SUMMARY,
    output:
        scores=f"{TABLES}/scores.csv",
        training=f"{TABLES}/training.csv",
        rl_data=f"{TABLES}/rl_data.csv",
        arms=f"{TABLES}/arms.csv",
        arms_training=f"{TABLES}/arms_training.csv",
        card=f"{TABLES}/run.json",
    log:
        f"{TABLES}/log.txt",
    benchmark:
        f"{TABLES}/benchmark.jsonl"
    conda:
        "../../envs/cpu.yaml"
    resources:
        **CPU,
    params:
        spec=spec("collect_results"),
        files=named_files,
    shell:
        "python -m lever_pipe collect_results --spec {params.spec:q} {params.files:q}"
        " --device {resources.device} --threads {threads} > {log} 2>&1"


rule tabulate_documents:
    input:
        scores=f"{TABLES}/scores.csv",
        training=f"{TABLES}/training.csv",
        rl_data=f"{TABLES}/rl_data.csv",
        arms=f"{TABLES}/arms.csv",
        reference=REFERENCE,
    output:
        tables=f"{TABLES}/documents.json",
        csv=directory(f"{TABLES}/documents"),
        card=f"{TABLES}/documents.run.json",
    log:
        f"{TABLES}/documents.log.txt",
    benchmark:
        f"{TABLES}/documents.benchmark.jsonl"
    conda:
        "../../envs/cpu.yaml"
    resources:
        **CPU,
    params:
        spec=spec("tabulate_documents"),
        files=named_files,
    shell:
        "python -m lever_pipe tabulate_documents --spec {params.spec:q} {params.files:q}"
        " --device {resources.device} --threads {threads} > {log} 2>&1"
