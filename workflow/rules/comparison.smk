SELECTING = [
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


use rule stage as compare_policies with:
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
    pathvars:
        beside=f"{TABLES}/comparisons.",
    params:
        **call("compare_policies"),
    message:
        "Compare all policies: intervals and tests"


use rule stage as measure_agreement with:
    input:
        selections=[
            f"{LEVER}/{policy}/selections.jsonl"
            for policy in plan.evaluated(EXPERIMENT)
        ],
        selectors=[
            f"{LEVER}/{policy}/selector.safetensors"
            for policy in [*SELECTING, *plan.starts(EXPERIMENT)]
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


use rule stage as tabulate_on_policy with:
    input:
        scores=f"{TABLES}/scores.csv",
        arms=f"{TABLES}/arms.csv",
        steps=f"{TABLES}/steps.csv",
        ties=f"{TABLES}/ties.csv",
        costs=f"{TABLES}/costs.csv",
        intervals=f"{TABLES}/intervals.csv",
        comparisons=f"{TABLES}/comparisons.csv",
        agreement=f"{TABLES}/agreement.csv",
        lineage=f"{TABLES}/lineage.csv",
    output:
        tables=f"{TABLES}/on_policy.json",
        csv=shown_tables(f"{TABLES}/on_policy"),
        card=f"{TABLES}/on_policy.run.json",
    pathvars:
        beside=f"{TABLES}/on_policy.",
    params:
        **call("tabulate_on_policy"),
    message:
        "Build the tables of on-policy GRPO"
