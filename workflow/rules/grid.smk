GRID = f"{RESULTS}/grid"
GRID_PAGE = [f"{GRID}/report.html"] if "grid" in EXPERIMENT.studies else []
ANSWERED = [grid.answers_of(cell) for cell in grid.evaluated_cells(EXPERIMENT)] if GRID_PAGE else []


rule compare_cells:
    input:
        per_question=expand(join(RESULTS, "{batch}/per_question.jsonl"), batch=ANSWERED),
    output:
        leaderboard=f"{GRID}/leaderboard.csv",
        comparisons=f"{GRID}/comparisons.csv",
        manifest=f"{GRID}/run.json",
    log:
        f"{GRID}/log.txt",
    conda:
        "../../envs/cpu.yaml"
    params:
        spec=identity("compare_cells"),
        files=files(),
    message:
        "Compare all cells of the grid: intervals and tests"
    shell:
        "python -m lever_pipe compare_cells {params.files:q} --threads {threads} > {log:q} 2>&1"


rule build_grid:
    input:
        leaderboard=f"{GRID}/leaderboard.csv",
        comparisons=f"{GRID}/comparisons.csv",
        templates=[f"{TEMPLATES}/{name}.html.j2" for name in ("page", "blocks", "sentences", "grid")],
        style=f"{TEMPLATES}/report.css",
        script=f"{TEMPLATES}/report.js",
    output:
        page=f"{GRID}/report.html",
        map_svg=f"{GRID}/map.svg",
        map_png=f"{GRID}/map.png",
        manifest=f"{GRID}/page.run.json",
    log:
        f"{GRID}/page.log.txt",
    conda:
        "../../envs/cpu.yaml"
    params:
        spec=identity("build_grid"),
        files=files(),
    message:
        "Build the grid's page"
    shell:
        "python -m lever_pipe build_grid {params.files:q} --threads {threads} > {log:q} 2>&1"
