use rule stage as tabulate_on_policy with:
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
    pathvars:
        beside=f"{TABLES}/on_policy.",
    params:
        **call("tabulate_on_policy"),
    message:
        "Build the tables of on-policy GRPO"
