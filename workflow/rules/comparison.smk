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
