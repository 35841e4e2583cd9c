GRID = f"{RESULTS}/grid"
GRID_PAGE = [f"{GRID}/report.html"] if "grid" in EXPERIMENT.studies else []
CELLS = plan.evaluated_cells(EXPERIMENT) if GRID_PAGE else []


use rule stage as compare_cells with:
    input:
        per_question=[
            f"{RESULTS}/{grid_plan.batch_of(cell)}/per_question.jsonl"
            for cell in CELLS
        ],
    output:
        leaderboard=f"{GRID}/leaderboard.csv",
        comparisons=f"{GRID}/comparisons.csv",
        card=f"{GRID}/run.json",
    pathvars:
        beside=f"{GRID}/",
    params:
        **call("compare_cells"),
    message:
        "Compare all cells of the grid: intervals and tests"


use rule stage as build_grid with:
    input:
        leaderboard=f"{GRID}/leaderboard.csv",
        comparisons=f"{GRID}/comparisons.csv",
        reference=REFERENCE,
        template=f"{TEMPLATES}/grid.html.j2",
        style=f"{TEMPLATES}/report.css",
    output:
        page=f"{GRID}/report.html",
        map_svg=f"{GRID}/map.svg",
        map_png=f"{GRID}/map.png",
        card=f"{GRID}/page.run.json",
    pathvars:
        beside=f"{GRID}/page.",
    params:
        **call("build_grid"),
    message:
        "Build the grid's page"
