EMULATED_TABLES = ["scores", "prompts", "training"] if EMULATE else []
IS_WORLD = EXPERIMENT.data.source == "world"
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
        intervals=of_study("lever", f"{TABLES}/intervals.csv"),
        comparisons=of_study("lever", f"{TABLES}/comparisons.csv"),
        scores=of_study("lever", f"{TABLES}/scores.csv", f"{TABLES}/arms.csv"),
        training=of_study("lever", f"{TABLES}/training.csv", f"{TABLES}/arms_training.csv"),
        parameters=of_study("lever", f"{TABLES}/parameters.csv"),
        costs=of_study("lever", f"{TABLES}/costs.csv"),
        selections=of_study("lever", f"{TABLES}/selections.csv"),
        copying=of_study("lever", f"{TABLES}/copying.csv", *([f"{LEVER}/controls/controls.csv"] if IS_WORLD else [])),
        rl_data=of_study("lever", f"{TABLES}/rl_data.csv"),
        pools=of_study("lever", f"{LEVER}/pools/bound.json"),
        examples=of_study("lever", f"{LEVER}/examples/train.summary.json", f"{LEVER}/examples/eval.summary.json"),
        scoring=of_study("lever", f"{TABLES}/scoring.json"),
        emulated=expand(join(EMULATION, "{name}.csv"), name=EMULATED_TABLES),
        endpoints=of_study("intention", f"{AGENT_TABLES}/endpoints.csv"),
        arm_comparisons=of_study("intention", f"{AGENT_TABLES}/comparisons.csv"),
        curves=of_study("intention", f"{AGENT_TABLES}/curves.csv"),
        runs=of_study("intention", f"{AGENT_TABLES}/runs.csv"),
        tasks=of_study("intention", f"{AGENTS}/tasks/summary.json"),
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
