"""`docs/grid.md` from a finished `make grid`: `make grid-page`.

Sentences stand in `grid.md.j2` and are written by hand; numbers come from `leaderboard.csv` and `comparisons.csv`.
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
"""Of a data set whose selectors are compared in other pools than uniform ones."""


def interval(row: pd.Series, *, sign: bool = False) -> str:
    """Return the ends of a row's interval."""
    return ", ".join(ends_of(row["low"], row["high"], 1, sign=sign))


def against_reference(compared: pd.DataFrame) -> pd.DataFrame:
    """Return by selector and data set what it adds to the reference of the same objective, bold where separated."""
    rows = differences(compared, SELECTORS)
    rows = rows[rows["lvlm"] == READER]
    return rows.pivot_table(index="selector", columns="data", values="cell", aggfunc="first", sort=False).fillna("")


def carried(compared: pd.DataFrame) -> pd.DataFrame:
    """Return by where it was trained and judged what the reference selector adds to the one trained there."""
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
    """Return the comparisons of a family in the pools that the page is about, with the places that are compared."""
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
    """Return the cells over all questions, mean over shots, of the one LVLM and in the pools that the page is about."""
    rows = board[(board["samples"] == samples) & (board["shots"].astype(str) == MEAN)]
    rows = rows[(rows["sampler"] == rows["data"].map(SAMPLER).fillna(UNIFORM)) & (rows["lvlm"] == READER)]
    rows = rows[~rows["policy"].str.startswith(("from~", "items~"))]
    return rows.assign(name=rows["policy"].map(called))


def highest(cells: pd.DataFrame) -> pd.DataFrame:
    """Return by data set the cells of the highest trained policy and of the highest that nobody trained."""
    rows = cells[cells["name"] != "oracle"].sort_values("accuracy", ascending=False)
    found = rows.groupby(["data", rows["trained_on"].notna()], sort=False).first()
    return (found["name"] + " " + found["accuracy"].map(lambda value: number_text(value, 1))).unstack()


def accuracies(cells: pd.DataFrame) -> pd.DataFrame:
    """Return by policy and data set the accuracy with its interval, the highest on average first."""
    rows = cells.copy()
    rows["cell"] = [f"{number_text(row['accuracy'], 1)} [{interval(row)}]" for _, row in rows.iterrows()]
    mean = rows.groupby("name")["accuracy"].mean()
    table = rows.pivot_table(index="name", columns="data", values="cell", aggfunc="first", sort=False).fillna("")
    return table.loc[mean.sort_values(ascending=False).index]


def main(results: str = "results/grid") -> int:
    """Write page and picture and return 0."""
    folder = Path(results)
    board, compared = (pd.read_csv(folder / f"{name}.csv") for name in ("leaderboard", "comparisons"))
    samples = int(board["samples"].max())
    loader = FileSystemLoader(Path(__file__).parent)
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
