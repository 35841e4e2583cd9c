SELECTING = [
    policy
    for policy in plan.evaluated(EXPERIMENT)
    if not policy.startswith("baseline/")
]


use rule stage as collect_lineage with:
    input:
        training=[f"{LEVER}/{policy}/run.json" for policy in plan.trained(EXPERIMENT)],
        started=[
            f"{LEVER}/preset~{arm.preset}/init/seed~{seed}/run.json"
            for arm in EXPERIMENT.arms
            for seed in arm.seeds
            if plan.started_from(EXPERIMENT, arm.preset)
        ],
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
            f"{LEVER}/answers/{batch}/scores.run.json"
            for batch in plan.batches(EXPERIMENT)
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


use rule stage as compare_policies with:
    input:
        per_question=of_batches("per_question.jsonl", plan.evaluated(EXPERIMENT)),
        eval_examples=MAIN_EXAMPLES["eval_examples"],
    output:
        intervals=f"{TABLES}/intervals.csv",
        comparisons=f"{TABLES}/comparisons.csv",
        breakdown=f"{TABLES}/breakdown.csv",
        card=f"{TABLES}/comparisons.run.json",
    pathvars:
        beside=f"{TABLES}/comparisons.",
    params:
        **call("compare_policies"),
    message:
        "Compare all policies: intervals and tests"


use rule stage as measure_agreement with:
    input:
        **{name: in_documents(path) for name, path in EMBEDDINGS.items()},
        selections=[
            f"{LEVER}/{policy}/selections.jsonl"
            for policy in plan.evaluated(EXPERIMENT)
        ],
        selectors=[
            f"{LEVER}/{policy}/selector.safetensors"
            for policy in [*SELECTING, *plan.starts(EXPERIMENT)]
        ],
        eval_examples=MAIN_EXAMPLES["eval_examples"],
        eval_pools=in_documents(POOLS["eval_pools"]),
    output:
        agreement=f"{TABLES}/agreement.csv",
        parameters=f"{TABLES}/parameters.csv",
        tensors=f"{TABLES}/tensors.csv",
        prompts=f"{TABLES}/prompts.csv",
        card=f"{TABLES}/agreement.run.json",
    pathvars:
        beside=f"{TABLES}/agreement.",
    params:
        **call("measure_agreement"),
    message:
        "Measure which policies choose the same demonstrations"


use rule stage as collect_samples with:
    input:
        **MAIN_EXAMPLES,
        selections=[
            f"{LEVER}/{policy}/selections.jsonl" for policy in plan.sampled(EXPERIMENT)
        ],
        answers=of_batches("answers.jsonl", plan.sampled(EXPERIMENT)),
        per_question=of_batches("per_question.jsonl", plan.sampled(EXPERIMENT)),
    output:
        samples=f"{TABLES}/samples.jsonl",
        gallery=f"{TABLES}/gallery.json",
        shares=f"{TABLES}/selections.csv",
        card=f"{TABLES}/samples.run.json",
    pathvars:
        beside=f"{TABLES}/samples.",
    params:
        **call("collect_samples"),
    message:
        "Collect what can be looked at: answers, gallery, selections"
