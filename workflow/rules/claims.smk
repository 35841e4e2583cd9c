use rule stage as check_claims with:
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
    pathvars:
        beside=f"{TABLES}/claims.",
    params:
        **call("check_claims"),
    message:
        "Judge every claim of the documents"
