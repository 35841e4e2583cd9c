GRID = RESULTS + "/grid"
GRID_PAGE = [GRID + "/report.html"] if "grid" in EXPERIMENT.studies else []
ANSWERED = [grid_plan.batch_of(cell) for cell in plan.evaluated_cells(EXPERIMENT)] if GRID_PAGE else []


rule compare_cells:
    input:
        per_question=expand(RESULTS + "/{batch}/per_question.jsonl", batch=ANSWERED),
    output:
        leaderboard=GRID + "/leaderboard.csv",
        comparisons=GRID + "/comparisons.csv",
        card=GRID + "/run.json",
    log:
        GRID + "/log.txt",
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
        leaderboard=GRID + "/leaderboard.csv",
        comparisons=GRID + "/comparisons.csv",
        reference=shipped("resources/reference/lever-plus-published.csv"),
        template=TEMPLATES + "/grid.html.j2",
        style=TEMPLATES + "/report.css",
    output:
        page=GRID + "/report.html",
        map_svg=GRID + "/map.svg",
        map_png=GRID + "/map.png",
        card=GRID + "/page.run.json",
    log:
        GRID + "/page.log.txt",
    conda:
        "../../envs/cpu.yaml"
    params:
        spec=identity("build_grid"),
        files=files(),
    message:
        "Build the grid's page"
    shell:
        "python -m lever_pipe build_grid {params.files:q} --threads {threads} > {log:q} 2>&1"
