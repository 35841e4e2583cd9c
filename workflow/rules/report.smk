EMULATED_TABLES = ["scores", "prompts", "training"] if EMULATE else []
CONTROLS = [f"{LEVER}/controls/controls.csv"] if EXPERIMENT.data.source == "world" else []
EVIDENCE_TABLES = (
    *("intervals", "comparisons", "scores", "arms", "training", "arms_training"),
    *("parameters", "costs", "selections", "copying"),
)
EVIDENCE_OF_AGENTS = ("endpoints", "comparisons", "curves", "runs")
CHINESE = shipped("resources/locale/zh/LC_MESSAGES/report.po")
TEMPLATES = shipped("lever_pipe/report/templates")


rule collect_results:
    input:
        cells=expand(join(LEVER, "answers/{batch}/cells.jsonl"), batch=BATCHES),
        metrics=expand(join(LEVER, "{policy}/metrics.json"), policy=policies.trained(EXPERIMENT)),
        steps=expand(join(LEVER, "{policy}/steps.jsonl"), policy=policies.stepped(EXPERIMENT)),
        rl_summary=f"{LEVER}/rl_data/summary.json",
        ties=f"{LEVER}/rl_data/ties.jsonl",
        groups=expand(join(LEVER, "preset~{preset}/groups.safetensors"), preset=PRESETS),
    output:
        scores=f"{TABLES}/scores.csv",
        training=f"{TABLES}/training.csv",
        rl_data=f"{TABLES}/rl_data.csv",
        arms=f"{TABLES}/arms.csv",
        arms_training=f"{TABLES}/arms_training.csv",
        steps_csv=f"{TABLES}/steps.csv",
        ties_csv=f"{TABLES}/ties.csv",
        costs=f"{TABLES}/costs.csv",
        manifest=f"{TABLES}/run.json",
    log:
        f"{TABLES}/log.txt",
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
        tables=of_study("lever", *expand(join(TABLES, "{name}.csv"), name=EVIDENCE_TABLES), *CONTROLS),
        agent_tables=of_study("intention", *expand(join(AGENT_TABLES, "{name}.csv"), name=EVIDENCE_OF_AGENTS)),
        facts=of_study(
            "lever",
            f"{TABLES}/rl_data.csv",
            f"{LEVER}/pools/bound.json",
            f"{LEVER}/examples/train.summary.json",
            f"{LEVER}/examples/eval.summary.json",
            f"{TABLES}/scoring.json",
        ),
        tasks=of_study("intention", f"{AGENTS}/tasks/summary.json"),
        emulated=expand(join(EMULATION, "{name}.csv"), name=EMULATED_TABLES),
    output:
        evidence=EVIDENCE,
        manifest=f"{RESULTS}/evidence.run.json",
    log:
        f"{RESULTS}/evidence.log.txt",
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
        chinese=CHINESE,
        evidence=EVIDENCE,
    output:
        figures=report(
            directory(f"{RESULTS}/figures"),
            patterns=[join(EXPERIMENT.report.language, "{figure}.svg")],
            category="Figures",
            labels=labels_of_figure,
            caption="../report/figure.rst",
        ),
        manifest=f"{RESULTS}/figures.run.json",
    log:
        f"{RESULTS}/figures.log.txt",
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
        chinese=CHINESE,
        evidence=EVIDENCE,
        reference_lineage=shipped("resources/reference/lineage.yaml"),
        lineage=of_study("lever", f"{TABLES}/lineage.csv"),
        claims=shipped("resources/claims.yaml"),
        gallery=of_study("lever", f"{TABLES}/gallery.json"),
        dialogues=of_study("intention", f"{AGENT_TABLES}/dialogues.json"),
        figures=f"{RESULTS}/figures",
        templates=[f"{TEMPLATES}/{name}.html.j2" for name in ("page", "blocks", "sentences")],
        style=f"{TEMPLATES}/report.css",
        script=f"{TEMPLATES}/report.js",
    output:
        page=report(
            PAGE,
            category="The page",
            labels={"page": "The answers, and all else"},
            caption="../report/page.rst",
        ),
        appendix=report(
            directory(APPENDIX),
            patterns=["tables/{table}.csv"],
            category="Tables",
            labels=labels_of_table,
            caption="../report/table.rst",
        ),
        manifest=f"{RESULTS}/report.run.json",
    log:
        f"{RESULTS}/report.log.txt",
    conda:
        "../../envs/cpu.yaml"
    params:
        spec=identity("build_report"),
        files=files(),
    message:
        "Write the report"
    shell:
        "python -m lever_pipe build_report {params.files:q} --threads {threads} > {log:q} 2>&1"
