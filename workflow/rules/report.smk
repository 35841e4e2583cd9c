COUNTERS = expand(LEVER + "/answers/{batch}/counters.json", batch=BATCHES)
COUNTERS += expand(LEVER + "/{policy}/counters.json", policy=plan.stepped(EXPERIMENT))
if EXPERIMENT.rl_data.is_answered:
    COUNTERS += expand(LEVER + "/rl_data/shard~{shard}/counters.json", shard=SHARDS)
if any(arm.sft_epochs for arm in EXPERIMENT.arms):
    COUNTERS += [LEVER + "/beams/counters.json"]
EMULATED_TABLES = ["scores", "prompts", "agreement", "training"] if EMULATE else []
# A server's model is no folder that the model library could answer from.
IS_CHECKED = EXPERIMENT.data.source == "world" and not EXPERIMENT.lvlm.is_served
MESSAGES = {
    name: sorted(map(str, Path(shipped(f"resources/messages/{language}")).glob("*.yaml")))
    for name, language in (("english", "en"), ("chinese", "zh"))
}
TEMPLATES = shipped("lever_pipe/report/templates")


def told(kind, name):
    """Return what the report's index tells of a table or figure."""
    return json.loads(Path(APPENDIX, "index.json").read_text(encoding="utf-8"))[kind][name]


def labels_of_table(wildcards):
    """Return what `snakemake --report` says of a table: its title and section."""
    table = told("tables", wildcards.table)
    return {"table": table["title"], "section": table["section"]}


def labels_of_figure(wildcards):
    """Return what `snakemake --report` says of a figure: its title and what it shows."""
    figure = told("figures", wildcards.figure)
    return {"figure": figure["title"], "shows": figure["caption"]}


rule collect_results:
    input:
        cells=expand(LEVER + "/answers/{batch}/cells.jsonl", batch=BATCHES),
        metrics=expand(LEVER + "/{policy}/metrics.json", policy=plan.trained(EXPERIMENT)),
        steps=expand(LEVER + "/{policy}/steps.jsonl", policy=plan.stepped(EXPERIMENT)),
        rl_summary=LEVER + "/rl_data/summary.json",
        ties=LEVER + "/rl_data/ties.jsonl",
        groups=expand(LEVER + "/preset~{preset}/groups.safetensors", preset=PRESETS),
    output:
        scores=TABLES + "/scores.csv",
        training=TABLES + "/training.csv",
        rl_data=TABLES + "/rl_data.csv",
        arms=TABLES + "/arms.csv",
        arms_training=TABLES + "/arms_training.csv",
        steps_csv=TABLES + "/steps.csv",
        ties_csv=TABLES + "/ties.csv",
        costs=TABLES + "/costs.csv",
        card=TABLES + "/run.json",
    log:
        TABLES + "/log.txt",
    conda:
        "../../envs/cpu.yaml"
    params:
        spec=identity("collect_results"),
        files=files(),
    message:
        "Collect all scores and training metrics"
    shell:
        "python -m lever_pipe collect_results {params.files:q} --threads {threads} > {log:q} 2>&1"


rule collect_evidence:
    input:
        reference=shipped("resources/reference/lever-plus-published.csv"),
        reference_intention=shipped("resources/reference/userrl-published.csv"),
        intervals=of_study("lever", TABLES + "/intervals.csv"),
        comparisons=of_study("lever", TABLES + "/comparisons.csv"),
        scores=of_study("lever", TABLES + "/scores.csv", TABLES + "/arms.csv"),
        training=of_study("lever", TABLES + "/training.csv", TABLES + "/arms_training.csv"),
        agreement=of_study("lever", TABLES + "/agreement.csv"),
        parameters=of_study("lever", TABLES + "/parameters.csv"),
        breakdown=of_study("lever", TABLES + "/breakdown.csv"),
        costs=of_study("lever", TABLES + "/costs.csv"),
        selections=of_study("lever", TABLES + "/selections.csv"),
        rewards=of_study("lever", TABLES + "/rewards.csv"),
        rl_data=of_study("lever", TABLES + "/rl_data.csv"),
        pools=of_study("lever", LEVER + "/pools/bound.json"),
        examples=of_study("lever", LEVER + "/examples/train.summary.json", LEVER + "/examples/eval.summary.json"),
        world=of_study("lever", *([LEVER + "/world_check/check.json"] if IS_CHECKED else [])),
        counters=of_study("lever", *COUNTERS),
        emulated=expand(EMULATION + "/{name}.csv", name=EMULATED_TABLES),
        endpoints=of_study("intention", AGENT_TABLES + "/endpoints.csv"),
        arm_comparisons=of_study("intention", AGENT_TABLES + "/comparisons.csv"),
        statistics=of_study("intention", AGENT_TABLES + "/statistics.csv"),
        curves=of_study("intention", AGENT_TABLES + "/curves.csv"),
        runs=of_study("intention", AGENT_TABLES + "/runs.csv"),
        tasks=of_study("intention", AGENTS + "/tasks/summary.json"),
    output:
        evidence=EVIDENCE,
        card=RESULTS + "/evidence.run.json",
    log:
        RESULTS + "/evidence.log.txt",
    conda:
        "../../envs/cpu.yaml"
    params:
        spec=identity("collect_evidence"),
        files=files(),
    message:
        "Collect every quantity of both studies"
    shell:
        "python -m lever_pipe collect_evidence {params.files:q} --threads {threads} > {log:q} 2>&1"


rule plot_figures:
    input:
        **MESSAGES,
        evidence=EVIDENCE,
    output:
        figures=report(
            directory(RESULTS + "/figures"),
            patterns=[EXPERIMENT.report.language + "/{figure}.svg"],
            category="Figures",
            labels=labels_of_figure,
            caption="../report/figure.rst",
        ),
        card=RESULTS + "/figures.run.json",
    log:
        RESULTS + "/figures.log.txt",
    conda:
        "../../envs/cpu.yaml"
    params:
        spec=identity("plot_figures"),
        files=files(),
    message:
        "Draw every figure"
    shell:
        "python -m lever_pipe plot_figures {params.files:q} --threads {threads} > {log:q} 2>&1"


rule build_report:
    input:
        **MESSAGES,
        evidence=EVIDENCE,
        reference_lineage=shipped("resources/reference/lineage.yaml"),
        lineage=of_study("lever", TABLES + "/lineage.csv"),
        claims=shipped("resources/claims.yaml"),
        gallery=of_study("lever", TABLES + "/gallery.json"),
        dialogues=of_study("intention", AGENT_TABLES + "/dialogues.json"),
        figures=RESULTS + "/figures",
        template=TEMPLATES + "/page.html.j2",
        blocks=TEMPLATES + "/blocks.html.j2",
        style=TEMPLATES + "/report.css",
        script=TEMPLATES + "/report.js",
    output:
        page=report(
            PAGE,
            category="The page",
            labels={"page": "The answers, and all else"},
            caption="../report/page.rst",
        ),
        report=REPORT,
        appendix=report(
            directory(APPENDIX),
            patterns=["tables/{table}.csv"],
            category="Tables",
            labels=labels_of_table,
            caption="../report/table.rst",
        ),
        card=RESULTS + "/report.run.json",
    log:
        RESULTS + "/report.log.txt",
    conda:
        "../../envs/cpu.yaml"
    params:
        spec=identity("build_report"),
        files=files(),
    message:
        "Write the report"
    shell:
        "python -m lever_pipe build_report {params.files:q} --threads {threads} > {log:q} 2>&1"
