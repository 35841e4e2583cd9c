"""Compare all cells of the grid, and build their page."""

from __future__ import annotations

import pandas as pd

from lever_pipe.base import storage
from lever_pipe.base.atomic import folder_in, place
from lever_pipe.experiment.grid import BuildGridConfig, CompareCellsConfig
from lever_pipe.experiment.stage_files import Input, Inputs, Output
from lever_pipe.report.catalogue import Translator
from lever_pipe.report.grid import page as page_contents
from lever_pipe.report.grid.cells import CellRow
from lever_pipe.report.grid.cells import compare_cells as compare
from lever_pipe.report.grid.map import draw_map
from lever_pipe.report.inference.estimates import ComparisonRow
from lever_pipe.report.long_format import write_csv
from lever_pipe.report.page import drawings, pages

AXES = {
    "data": ("data set", "data sets"),
    "sampler": ("sampler", "samplers"),
    "lvlm": ("LVLM", "LVLMs"),
    "policy": ("policy", "policies"),
}


def compare_cells(*, per_question: Inputs, leaderboard: Output, comparisons: Output, config: CompareCellsConfig) -> int:
    """Write both long-format files and return the number of cells.

    `per_question` belong to `config.evaluated`, in the same order.
    """
    rows, compared = compare(per_question, config)
    write_csv(leaderboard, CellRow._fields, rows)
    lines = [(data, *row) for data, part in compared.items() for row in part]
    write_csv(comparisons, ("data", *ComparisonRow._fields), lines)
    return len({(row.data, row.sampler, row.lvlm, row.policy) for row in rows})


def build_grid(
    *,
    leaderboard: Input,
    comparisons: Input,
    templates: Inputs,
    style: Input,
    script: Input,
    page: Output,
    map_svg: Output,
    map_png: Output,
    config: BuildGridConfig,
) -> None:
    """Write the page as one self-contained file, and its map as SVG and PNG."""
    samples = max(config.samples)
    board, compared = (pd.read_csv(path).replace({"data": config.data}) for path in (leaderboard, comparisons))
    primary = page_contents.primary(board, samples)
    with folder_in(map_svg.parent) as folder:
        draw_map(page_contents.marks(compared), folder, "map")
        svg = (folder / "map.svg").read_text(encoding="utf-8")
        for name, path in (("map.svg", map_svg), ("map.png", map_png)):
            place(folder / name, path)
    environment = pages.environment(pages.frame_of(templates, style, script), Translator("en"))
    text = environment.get_template("grid").render(
        title=config.title or "The grid: selectors, samplers, data sets",
        is_main=True,
        other=None,
        owns=page_contents.from_baselines(compared),
        chance=page_contents.from_chance(compared),
        doubts=page_contents.doubts(board),
        axes=", ".join(f"{n} {nouns[n > 1]}" for name, nouns in AXES.items() for n in [primary[name].nunique()]),
        models=config.models,
        shots=config.shots,
        samples=samples,
        map=drawings.inline(svg, source=str(map_svg), name="map", title="Every cell of the grid"),
        verdicts=list(page_contents.verdicts(compared)),
        budgets=page_contents.best_by_budget(primary),
        cells=page_contents.every_cell(board, samples, config.shots),
        missing=page_contents.left_out(config.missing),
    )
    storage.write_text(page, text)
