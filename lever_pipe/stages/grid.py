"""All cells of the grid held against each other, and their page."""

from __future__ import annotations

import csv
import tempfile
from pathlib import Path

import jinja2
import pandas as pd
from markupsafe import Markup

from lever_pipe.base import storage
from lever_pipe.base.atomic import write_file
from lever_pipe.experiment.stage_configs import BuildGridConfig, CompareCellsConfig
from lever_pipe.experiment.stage_files import Input, Inputs, Output
from lever_pipe.report.grid import page as told
from lever_pipe.report.grid.cells import CellRow
from lever_pipe.report.grid.cells import compare_cells as compare
from lever_pipe.report.grid.map import draw_map
from lever_pipe.report.grid.published import placed
from lever_pipe.report.inference.estimates import ComparisonRow
from lever_pipe.report.long_format import write_csv
from lever_pipe.report.page import drawings

AXES = {
    "data": ("data set", "data sets"),
    "sampler": ("sampler", "samplers"),
    "lvlm": ("LVLM", "LVLMs"),
    "policy": ("policy", "policies"),
}


def compare_cells(*, per_question: Inputs, leaderboard: Output, comparisons: Output, config: CompareCellsConfig) -> int:
    """Write both long-format files and return the number of cells.

    `per_question` belong to `config.evaluated`, in their order.
    """
    rows, compared = compare(per_question, config)
    write_csv(leaderboard, CellRow._fields, rows)
    lines = [(data, *row) for data, of in compared.items() for row in of]
    write_csv(comparisons, ("data", *ComparisonRow._fields), lines)
    return len({(row.data, row.sampler, row.lvlm, row.policy) for row in rows})


def build_grid(
    *,
    leaderboard: Input,
    comparisons: Input,
    reference: Input,
    template: Input,
    style: Input,
    page: Output,
    map_svg: Output,
    map_png: Output,
    config: BuildGridConfig,
) -> None:
    """Write the page, one file that needs no other, and the map it shows as SVG and PNG."""
    samples = max(config.samples)
    board, compared = pd.read_csv(leaderboard), pd.read_csv(comparisons)
    shown = told.primary(board, samples)
    with tempfile.TemporaryDirectory() as folder:
        draw_map(told.marks(compared), Path(folder), "map")
        svg = (Path(folder) / "map.svg").read_text(encoding="utf-8")
        for name, path in (("map.svg", map_svg), ("map.png", map_png)):
            content = (Path(folder) / name).read_bytes()
            write_file(path, lambda handle, content=content: handle.write(content))  # type: ignore[misc]
    found, cells = told.verdicts(compared), told.cells_of(shown, board, config.shots)
    with reference.open(encoding="utf-8", newline="") as lines:
        printed = list(csv.DictReader(lines))
    parts, beside = told.published_beside(board, placed(printed), config.kinds, config.stands_for)
    title = config.title or "The grid: selectors, samplers, data sets"
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    text = environment.from_string(template.read_text(encoding="utf-8")).render(
        title=title,
        style=Markup(style.read_text(encoding="utf-8")),
        headline=told.headline(found),
        n_cells=len(cells),
        axes=", ".join(f"{n} {nouns[n > 1]}" for name, nouns in AXES.items() for n in [shown[name].nunique()]),
        models=" ".join(f"{name} is: {of}." for name, of in config.models.items()),
        shots=", ".join(map(str, config.shots)),
        counts=[*config.shots],
        samples=samples,
        map=drawings.inline(svg, source=str(map_svg), name="map", title="Every cell of the grid"),
        verdicts=[{**of._asdict(), "told": of.told} for of in found],
        budgets=told.best_by_budget(shown),
        cells=cells,
        published=[
            {**of._asdict(), "left_out": ", ".join(f"{n} {why.replace('_', ' ')}" for why, n in of.left_out.items())}
            for of in parts
        ],
        beside=[row | {"value": printed[row["number"] - 1]["value"]} for row in beside],
        is_world="; ".join(f"{name} has the format of {of}" for name, of in config.stands_for.items()),
        missing=config.missing,
    )
    storage.write_text(page, text)
