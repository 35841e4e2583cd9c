TRAINED = [
    policy
    for policy in plan.evaluated(EXPERIMENT)
    if not policy.startswith("baseline/")
]


rule collect_lineage:
    input:
        training=[f"{LEVER}/{policy}/run.json" for policy in plan.trained(EXPERIMENT)],
        rewards=[
            f"{LEVER}/preset~{arm.preset}/groups.run.json" for arm in EXPERIMENT.arms
        ],
        selections=[
            f"{LEVER}/{policy}/selections.run.json"
            for policy in plan.evaluated(EXPERIMENT)
        ],
        answers=[
            f"{LEVER}/answers/{batch}/run.json" for batch in plan.batches(EXPERIMENT)
        ],
        scores=[
            f"{LEVER}/{policy}/scores/run.json"
            for policy in plan.evaluated(EXPERIMENT)
        ],
    output:
        lineage=f"{TABLES}/lineage.csv",
        card=f"{TABLES}/lineage.run.json",
    log:
        f"{TABLES}/lineage.log.txt",
    benchmark:
        f"{TABLES}/lineage.benchmark.jsonl"
    conda:
        "../../envs/cpu.yaml"
    resources:
        **room("collect_lineage").resources,
    params:
        spec=spec("collect_lineage"),
        files=named_files,
    message:
        "Collect how every policy came to be"
    shell:
        "python -m lever_pipe collect_lineage --spec {params.spec:q} {params.files:q}"
        " --device {resources.device} --threads {threads} > {log:q} 2>&1"


rule measure_agreement:
    input:
        selections=[
            f"{LEVER}/{policy}/selections.jsonl"
            for policy in plan.evaluated(EXPERIMENT)
        ],
        selectors=[
            f"{LEVER}/{policy}/selector.safetensors"
            for policy in [*TRAINED, *plan.starts(EXPERIMENT)]
        ],
        eval_examples=EXAMPLES["eval_examples"],
        lineage=f"{TABLES}/lineage.csv",
    output:
        agreement=f"{TABLES}/agreement.csv",
        parameters=f"{TABLES}/parameters.csv",
        tensors=f"{TABLES}/tensors.csv",
        prompts=f"{TABLES}/prompts.csv",
        tables=f"{TABLES}/agreement.json",
        csv=shown_tables(f"{TABLES}/agreement"),
        card=f"{TABLES}/agreement.run.json",
    log:
        f"{TABLES}/agreement.log.txt",
    benchmark:
        f"{TABLES}/agreement.benchmark.jsonl"
    conda:
        "../../envs/cpu.yaml"
    resources:
        **room("measure_agreement").resources,
    params:
        spec=spec("measure_agreement"),
        files=named_files,
    message:
        "Measure which policies choose the same demonstrations"
    shell:
        "python -m lever_pipe measure_agreement --spec {params.spec:q} {params.files:q}"
        " --device {resources.device} --threads {threads} > {log:q} 2>&1"
