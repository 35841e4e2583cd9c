FIGURES = f"{LEVER}/figures"
BATCHES = plan.batches(EXPERIMENT)
COUNTERS = [f"{LEVER}/answers/{batch}/counters.json" for batch in BATCHES]
COUNTERS += [f"{LEVER}/{policy}/counters.json" for policy in plan.stepped(EXPERIMENT)]
if not IMPORTED:
    COUNTERS += [f"{shard}/counters.json" for shard in SHARDS]
WORLD_CHECK = [f"{LEVER}/world_check/check.json"] if WORLD else []
TEMPLATES = "lever_pipe/report/templates"
LANGUAGE = EXPERIMENT.report.language
GLOSSARY = sorted(map(str, Path(f"resources/glossary/{LANGUAGE}").glob("*.yaml")))
PAGE_TABLES = []
PAGE_FIGURES = []
if "lever" in EXPERIMENT.studies:
    PAGE_TABLES += [
        f"{TABLES}/{name}" for name in ("documents", "comparisons", "agreement")
    ]
    if any(arm.on_policy for arm in EXPERIMENT.arms):
        PAGE_TABLES += [f"{TABLES}/on_policy"]
    PAGE_TABLES += [path.removesuffix(".json") for path in EMULATION_TABLES]
    PAGE_FIGURES += [FIGURES]
if "intention" in EXPERIMENT.studies:
    PAGE_TABLES += [f"{AGENT_TABLES}/documents"]
    PAGE_FIGURES += [AGENT_FIGURES]
"""Folders of CSV files; beside each lies its list of tables, as NAME.json."""


use rule stage as collect_results with:
    input:
        cells=[
            f"{LEVER}/{policy}/scores/cells.jsonl"
            for policy in plan.evaluated(EXPERIMENT)
        ],
        metrics=[
            f"{LEVER}/{policy}/metrics.json" for policy in plan.trained(EXPERIMENT)
        ],
        steps=[f"{LEVER}/{policy}/steps.jsonl" for policy in plan.stepped(EXPERIMENT)],
        rl_summary=RL_SUMMARY,
        ties=f"{LEVER}/rl_data/ties.jsonl",
    output:
        scores=f"{TABLES}/scores.csv",
        training=f"{TABLES}/training.csv",
        rl_data=f"{TABLES}/rl_data.csv",
        arms=f"{TABLES}/arms.csv",
        arms_training=f"{TABLES}/arms_training.csv",
        steps_csv=f"{TABLES}/steps.csv",
        ties_csv=f"{TABLES}/ties.csv",
        card=f"{TABLES}/run.json",
    pathvars:
        beside=f"{TABLES}/",
    params:
        **call("collect_results"),
    message:
        "Collect all scores and training metrics"


use rule stage as tabulate_documents with:
    input:
        scores=f"{TABLES}/scores.csv",
        training=f"{TABLES}/training.csv",
        rl_data=f"{TABLES}/rl_data.csv",
        arms=f"{TABLES}/arms.csv",
        arms_training=f"{TABLES}/arms_training.csv",
        intervals=f"{TABLES}/intervals.csv",
        comparisons=f"{TABLES}/comparisons.csv",
        lineage=f"{TABLES}/lineage.csv",
        reference=REFERENCE,
        reference_lineage="resources/reference/lineage.yaml",
        examples_summary=EXAMPLES_SUMMARY,
        pool_bound=f"{LEVER}/pools/bound.json",
        world_check=WORLD_CHECK,
        counters=COUNTERS,
    output:
        tables=f"{TABLES}/documents.json",
        csv=shown_tables(f"{TABLES}/documents"),
        card=f"{TABLES}/documents.run.json",
    pathvars:
        beside=f"{TABLES}/documents.",
    params:
        **call("tabulate_documents"),
    message:
        "Build every table"


use rule stage as plot_curves with:
    input:
        scores=f"{TABLES}/scores.csv",
        training=f"{TABLES}/training.csv",
        arms=f"{TABLES}/arms.csv",
        steps=f"{TABLES}/steps.csv",
        intervals=f"{TABLES}/intervals.csv",
        comparisons=f"{TABLES}/comparisons.csv",
        breakdown=f"{TABLES}/breakdown.csv",
    output:
        figures=shown_figures(FIGURES),
        card=f"{LEVER}/figures.run.json",
    pathvars:
        beside=f"{LEVER}/figures.",
    params:
        **call("plot_curves"),
    message:
        "Draw every figure"


use rule stage as check_claims with:
    input:
        claims="resources/claims.yaml",
        messages="resources/messages/en/claims.yaml",
        evidence=f"{RESULTS}/evidence.csv",
        reference_lineage="resources/reference/lineage.yaml",
        lineage=of_study("lever", f"{TABLES}/lineage.csv"),
    output:
        judged=f"{TABLES}/claims.csv",
        findings=f"{TABLES}/claims.json",
        card=f"{TABLES}/claims.run.json",
    pathvars:
        beside=f"{TABLES}/claims.",
    params:
        **call("check_claims"),
    message:
        "Judge every claim of the documents"


use rule stage as build_report with:
    input:
        html_template=f"{TEMPLATES}/report.html.j2",
        style=f"{TEMPLATES}/report.css",
        script=f"{TEMPLATES}/report.js",
        markdown_template=f"{TEMPLATES}/report.md.j2",
        glossary=GLOSSARY,
        tables=[f"{folder}.json" for folder in PAGE_TABLES],
        csv=PAGE_TABLES,
        figures=PAGE_FIGURES,
    output:
        page=report(
            PAGE,
            category="The page",
            labels={"page": "Every table and figure, sortable"},
            caption="../report/page.rst",
        ),
        report=REPORT,
        card=f"{LEVER}/report.run.json",
    pathvars:
        beside=f"{LEVER}/report.",
    params:
        **call("build_report"),
    message:
        "Write the report"
