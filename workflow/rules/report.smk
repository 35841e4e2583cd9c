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
PAGE_TABLES += [f"{TABLES}/claims"]
"""Folders of CSV files; beside each lies its list of tables, as NAME.json."""


rule collect_results:
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
    log:
        f"{TABLES}/log.txt",
    benchmark:
        f"{TABLES}/benchmark.jsonl"
    conda:
        "../../envs/cpu.yaml"
    resources:
        **room("collect_results").resources,
    params:
        spec=spec("collect_results"),
        files=named_files,
    message:
        "Collect all scores and training metrics"
    shell:
        "python -m lever_pipe collect_results --spec {params.spec:q} {params.files:q}"
        " --device {resources.device} --threads {threads} > {log:q} 2>&1"


rule tabulate_documents:
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
    log:
        f"{TABLES}/documents.log.txt",
    benchmark:
        f"{TABLES}/documents.benchmark.jsonl"
    conda:
        "../../envs/cpu.yaml"
    resources:
        **room("tabulate_documents").resources,
    params:
        spec=spec("tabulate_documents"),
        files=named_files,
    message:
        "Build every table"
    shell:
        "python -m lever_pipe tabulate_documents --spec {params.spec:q} {params.files:q}"
        " --device {resources.device} --threads {threads} > {log:q} 2>&1"


rule plot_curves:
    input:
        scores=f"{TABLES}/scores.csv",
        training=f"{TABLES}/training.csv",
        arms=f"{TABLES}/arms.csv",
        steps=f"{TABLES}/steps.csv",
        intervals=f"{TABLES}/intervals.csv",
        comparisons=f"{TABLES}/comparisons.csv",
        breakdown=f"{TABLES}/breakdown.csv",
    output:
        figures=report(
            directory(FIGURES),
            patterns=["{figure}.svg"],
            category="Figures",
            labels=figure_labels,
            caption="../report/figure.rst",
        ),
        card=f"{LEVER}/figures.run.json",
    log:
        f"{LEVER}/figures.log.txt",
    benchmark:
        f"{LEVER}/figures.benchmark.jsonl"
    conda:
        "../../envs/cpu.yaml"
    resources:
        **room("plot_curves").resources,
    params:
        spec=spec("plot_curves"),
        files=named_files,
    message:
        "Draw every figure"
    shell:
        "python -m lever_pipe plot_curves --spec {params.spec:q} {params.files:q}"
        " --device {resources.device} --threads {threads} > {log:q} 2>&1"


rule build_report:
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
    log:
        f"{LEVER}/report.log.txt",
    benchmark:
        f"{LEVER}/report.benchmark.jsonl"
    conda:
        "../../envs/cpu.yaml"
    resources:
        **room("build_report").resources,
    params:
        spec=spec("build_report"),
        files=named_files,
    message:
        "Write the report"
    shell:
        "python -m lever_pipe build_report --spec {params.spec:q} {params.files:q}"
        " --device {resources.device} --threads {threads} > {log:q} 2>&1"
