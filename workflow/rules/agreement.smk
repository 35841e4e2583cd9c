TRAINED = [
    policy
    for policy in plan.evaluated(EXPERIMENT)
    if not policy.startswith("baseline/")
]


use rule stage as collect_lineage with:
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
    pathvars:
        beside=f"{TABLES}/lineage.",
    params:
        **call("collect_lineage"),
    message:
        "Collect how every policy came to be"


use rule stage as measure_agreement with:
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
    pathvars:
        beside=f"{TABLES}/agreement.",
    params:
        **call("measure_agreement"),
    message:
        "Measure which policies choose the same demonstrations"
