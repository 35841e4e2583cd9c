EVIDENCE = f"{RESULTS}/evidence.csv"


use rule stage as collect_evidence with:
    input:
        reference=REFERENCE,
        reference_intention=INTENTION_REFERENCE,
        intervals=of_lever("intervals.csv"),
        comparisons=of_lever("comparisons.csv"),
        scores=of_lever("scores.csv", "arms.csv"),
        training=of_lever("training.csv", "arms_training.csv"),
        agreement=of_lever("agreement.csv"),
        parameters=of_lever("parameters.csv"),
        breakdown=of_lever("breakdown.csv"),
        costs=of_lever("costs.csv"),
        selections=of_lever("selections.csv"),
        rewards=of_lever("rewards.csv"),
        rl_data=of_lever("rl_data.csv"),
        pools=of_study("lever", f"{LEVER}/pools/bound.json"),
        examples=[
            path
            for split in SPLITS
            for path in of_study(
                "lever", in_documents(of_split(EXAMPLES_SUMMARY, split))
            )
        ],
        world=WORLD_CHECK if "lever" in EXPERIMENT.studies else [],
        counters=COUNTERS if "lever" in EXPERIMENT.studies else [],
        emulated=(
            [
                f"{EMULATION}/{name}.csv"
                for name in ("scores", "prompts", "agreement", "training")
            ]
            if EMULATE
            else []
        ),
        endpoints=of_agents("endpoints.csv"),
        arm_comparisons=of_agents("comparisons.csv"),
        statistics=of_agents("statistics.csv"),
        curves=of_agents("curves.csv"),
        runs=of_agents("runs.csv"),
        tasks=of_study("intention", f"{AGENTS}/tasks/summary.json"),
    output:
        evidence=EVIDENCE,
        card=f"{RESULTS}/evidence.run.json",
    pathvars:
        beside=f"{RESULTS}/evidence.",
    params:
        **call("collect_evidence"),
    message:
        "Collect every quantity of both studies"


MESSAGES = {
    name: sorted(
        map(str, Path(shipped(f"resources/messages/{language}")).glob("*.yaml"))
    )
    for name, language in (("english", "en"), ("chinese", "zh"))
}
REPORT_FIGURES = f"{RESULTS}/figures"


use rule stage as plot_figures with:
    input:
        **MESSAGES,
        evidence=EVIDENCE,
    output:
        figures=shown_figures(REPORT_FIGURES),
        card=f"{RESULTS}/figures.run.json",
    pathvars:
        beside=f"{RESULTS}/figures.",
    params:
        **call("plot_figures"),
    message:
        "Draw every figure"


TEMPLATES = shipped("lever_pipe/report/templates")


use rule stage as build_report with:
    input:
        **MESSAGES,
        evidence=EVIDENCE,
        reference_lineage=shipped("resources/reference/lineage.yaml"),
        lineage=of_lever("lineage.csv"),
        claims=shipped("resources/claims.yaml"),
        declared=sorted(map(str, Path(shipped("resources/tables")).glob("*.yaml"))),
        gallery=of_lever("gallery.json"),
        dialogues=of_agents("dialogues.json"),
        figures=REPORT_FIGURES,
        template=f"{TEMPLATES}/page.html.j2",
        blocks=f"{TEMPLATES}/blocks.html.j2",
        style=f"{TEMPLATES}/report.css",
        script=f"{TEMPLATES}/report.js",
    output:
        page=report(
            PAGE,
            category="The page",
            labels={"page": "The answers, and all else"},
            caption="../report/page.rst",
        ),
        report=REPORT,
        appendix=shown_tables(APPENDIX),
        card=f"{RESULTS}/report.run.json",
    pathvars:
        beside=f"{RESULTS}/report.",
    params:
        **call("build_report"),
    message:
        "Write the report"
