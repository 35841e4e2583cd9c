"""`docs/grid.md` from a finished `make grid`: `make grid-page`.

The sentences in `grid.md.j2` are written by hand; numbers come from `leaderboard.csv` and `comparisons.csv`.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from lever_pipe.base.policy_names import PolicyName
from lever_pipe.report.evidence import ALPHA, MEAN
from lever_pipe.report.format import ends_of, number_text
from lever_pipe.report.grid.cells import SELECTORS, TRANSFERS, GridCell
from lever_pipe.report.grid.page import called

PAGE, PICTURE = Path("docs/grid.md"), Path("docs/grid.png")
TEMPLATE = "grid.md.j2"
UNIFORM, TEXT, READER, REFERENCE = "uniform", "text_similarity", "reader", "world"
SAMPLER = {"copies": TEXT}
"""Sampler of data sets whose selectors are not compared in uniform pools."""


def interval(row: pd.Series, *, sign: bool = False) -> str:
    """Return the ends of a row's interval."""
    return ", ".join(ends_of(row["low"], row["high"], 1, sign=sign))


def against_reference(compared: pd.DataFrame) -> pd.DataFrame:
    """Return differences to the reference of the same objective, by selector and data set, bold if separated."""
    rows = differences(compared, SELECTORS)
    rows = rows[rows["lvlm"] == READER]
    return rows.pivot_table(index="selector", columns="data", values="cell", aggfunc="first", sort=False).fillna("")


def carried(compared: pd.DataFrame) -> pd.DataFrame:
    """Return differences of the transferred reference selector to one trained at the target, by origin and target."""
    rows = differences(compared, TRANSFERS)
    policies = [PolicyName.parse(of) for of in rows["policy"]]
    rows = rows.assign(
        origin=[of.origin for of in policies],
        to=rows["data"] + ", " + rows["lvlm"],
        objective=[called(str(of.home)) for of in policies],
    )[[of.preset == REFERENCE for of in policies]]
    index = ["origin", "to"]
    return rows.pivot_table(index=index, columns="objective", values="cell", aggfunc="first", sort=False).fillna("")


def differences(compared: pd.DataFrame, family: str) -> pd.DataFrame:
    """Return the comparisons of a family in the pools of the page, with columns for the parts of the left cell."""
    rows = compared[compared["family"].str.startswith(family)].copy()
    grid_cells = [GridCell.parse(left) for left in rows["left"]]
    rows["lvlm"], rows["policy"] = [of.lvlm for of in grid_cells], [str(of.policy) for of in grid_cells]
    rows["selector"] = rows["policy"].map(called)
    rows["cell"] = [
        f"{mark}{number_text(row['difference'], 1, sign=True)}{mark} [{interval(row)}]"
        for _, row in rows.iterrows()
        for mark in ["**" if row["p_holm"] < ALPHA else ""]
    ]
    return rows[pd.Series([of.sampler for of in grid_cells], rows.index) == rows["data"].map(SAMPLER).fillna(UNIFORM)]


def answered(board: pd.DataFrame, samples: int) -> pd.DataFrame:
    """Return the cells over all questions, mean over shots, of the page's LVLM and pools."""
    rows = board[(board["samples"] == samples) & (board["shots"].astype(str) == MEAN)]
    rows = rows[(rows["sampler"] == rows["data"].map(SAMPLER).fillna(UNIFORM)) & (rows["lvlm"] == READER)]
    rows = rows[~rows["policy"].str.startswith(("from~", "items~"))]
    return rows.assign(name=rows["policy"].map(called))


def highest(cells: pd.DataFrame) -> pd.DataFrame:
    """Return the cells of the best trained and the best untrained policy, by data set."""
    rows = cells[cells["name"] != "oracle"].sort_values("accuracy", ascending=False)
    found = rows.groupby(["data", rows["trained_on"].notna()], sort=False).first()
    return (found["name"] + " " + found["accuracy"].map(lambda value: number_text(value, 1))).unstack()


def accuracies(cells: pd.DataFrame) -> pd.DataFrame:
    """Return the accuracies with their intervals by policy and data set, the highest on average first."""
    rows = cells.copy()
    rows["cell"] = [f"{number_text(row['accuracy'], 1)} [{interval(row)}]" for _, row in rows.iterrows()]
    mean = rows.groupby("name")["accuracy"].mean()
    table = rows.pivot_table(index="name", columns="data", values="cell", aggfunc="first", sort=False).fillna("")
    return table.loc[mean.sort_values(ascending=False).index]


def main(results: str = "results/grid") -> int:
    """Write page and picture, and return 0."""
    folder = Path(results)
    board, compared = (pd.read_csv(folder / f"{name}.csv") for name in ("leaderboard", "comparisons"))
    samples = int(board["samples"].max())
    loader = FileSystemLoader(Path(__file__).parent)
    # The page is Markdown, which needs no HTML escapes.
    environment = Environment(loader=loader, undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False)
    values = {"against": against_reference(compared), "samples": samples}
    cells = answered(board, samples)
    values |= {"accuracies": accuracies(cells), "highest": highest(cells)}
    values |= {"carried": carried(compared)}
    PAGE.write_text(environment.get_template(TEMPLATE).render(**values, data=list(board["data"].unique())))
    shutil.copyfile(next(folder.glob("*.png")), PICTURE)
    sys.stdout.write(f"{PAGE}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
