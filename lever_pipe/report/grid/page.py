"""The grid's page: what separates, the best cell of each budget, every cell, and the marks of the map."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from lever_pipe.base.policy_names import OWN, PolicyName, beta_text
from lever_pipe.experiment.stage_configs import MissingCell
from lever_pipe.report.cells import Cell, Estimate, Verdict, p_value
from lever_pipe.report.evidence import ALPHA, MEAN, OF_ONE_RUN
from lever_pipe.report.grid.cells import AGAINST_RANDOM, MARKS, ORACLE, QUESTIONS, Place
from lever_pipe.report.grid.map import Mark
from lever_pipe.report.table import Column, Table, TableLine

CELL = ["data", "sampler", "lvlm", "policy"]
"""Columns of the leaderboard that say which cell a line is of."""
COMPARED = ("Left − right", "Pools", "LVLM", "Points", "Holm p", "Verdict", "Detectable", "Runs")


def called(policy: str) -> str:
    """Return what a policy's row is called."""
    name = PolicyName.parse(policy)
    if not name.preset:
        return name.member.replace("_", " ") if name.kind == "baseline" else f"own: {name.member}"
    beta = "" if name.beta is None else f" β={beta_text(name.beta)}"
    origin = f" from {name.origin}" if name.origin else f", first {name.items} items" if name.items else ""
    return f"{name.preset}: {name.kind.replace('_', '-')}{beta}{origin}"


def marks(compared: pd.DataFrame) -> list[Mark]:
    """Return every cell's distance from random in its corner, best row first; panels and samplers in their order."""
    against = compared[compared["family"].str.startswith((AGAINST_RANDOM, MARKS))]
    ceilings = {
        (row.data, Place.parse(row.left).corner): row.difference
        for row in lines_of(against)
        if str(Place.parse(row.left).policy) == ORACLE
    }
    found = []
    for row in lines_of(against):
        place = Place.parse(row.left)
        if str(place.policy) == ORACLE:
            continue
        ceiling = ceilings.get((row.data, place.corner))
        panel = f"{row.data}, answered by {place.lvlm}"
        found.append(Mark(panel, called(str(place.policy)), place.sampler, row.difference, row.low, row.high, ceiling))
    panels, samplers = (
        list(dict.fromkeys(values)) for values in zip(*((m.panel, m.series) for m in found), strict=True)
    )
    mean = pd.DataFrame(found, columns=Mark._fields).groupby("row")["value"].mean()
    return sorted(found, key=lambda m: (panels.index(m.panel), -mean[m.row], m.row, samplers.index(m.series)))


def lines_of(frame: pd.DataFrame) -> Iterator[Any]:
    """Yield the lines of a frame, their cells by name."""
    yield from frame.itertuples()


def from_chance(compared: pd.DataFrame) -> dict[str, int]:
    """Return how many cells of a selector there are, and how many are above and below chance in their corner."""
    rows = compared[compared["family"].str.removesuffix(OF_ONE_RUN) == AGAINST_RANDOM]
    apart = rows.loc[rows["p_holm"] < ALPHA, "difference"]
    return {"n": len(rows), "up": int((apart > 0).sum()), "down": int((apart < 0).sum())}


def verdicts(compared: pd.DataFrame) -> Iterator[Table]:
    """Yield how each question came out by data set, then its comparisons from the largest difference to the smallest.

    A question is a family of comparisons, which are adjusted together.
    """
    lines, tables = [], []
    for (family, data), rows in compared.groupby(["family", "data"], sort=False):
        asks = QUESTIONS[str(family).removesuffix(OF_ONE_RUN)]
        if str(family).endswith(OF_ONE_RUN):
            asks += " (of one run or draw a side: they infer to further questions only)"
        apart = rows.loc[rows["p_holm"] < ALPHA, "difference"]
        counts = (len(rows), int((apart > 0).sum()), int((apart < 0).sum()), len(rows) - len(apart))
        lines.append(TableLine((asks, str(data), *counts)))
        shown = tuple(map(_compared, lines_of(rows.sort_values("difference", ascending=False))))
        columns = _columns(
            "Left − right", "Pools", "LVLM", "Points", "Holm p", "Verdict", "Detectable", "Runs", names=3
        )
        tables.append(Table(f"{family}-{data}", "separates", f"{asks} ({data})", columns, shown))
    columns = _columns("Question", "Data set", "Comparisons", "Higher", "Lower", "Not separated", names=2)
    yield Table("questions", "separates", "How each question came out", columns, tuple(lines))
    yield from tables


def best_by_budget(cells: pd.DataFrame) -> Table:
    """Return for each data set, LVLM and budget of training prompts the cell of the highest accuracy within it.

    Without the oracle, and without selectors of the user's own, whose prompts nobody counts.
    """
    is_counted = (cells["policy"] != ORACLE) & (cells["objective"] != OWN)
    lines = []
    for _, rows in cells[is_counted].groupby(["data", "lvlm"], sort=False):
        ordered = rows.sort_values("accuracy", ascending=False, kind="stable")
        for budget in sorted(rows["training_prompts"].unique()):
            best = next(lines_of(ordered[ordered["training_prompts"] <= budget]))
            lines.append(TableLine((int(budget), *_cell(best)[:5], _share(best))))
    columns = _columns("Prompts at most", "Policy", "Data set", "Pools", "LVLM", "Accuracy", "To the oracle (%)")
    return Table("budgets", "budget", "Best cell for each budget", columns, tuple(lines))


def every_cell(board: pd.DataFrame, samples: int, shots: Sequence[int]) -> Table:
    """Return every cell with its accuracy at each shot count, by data set from the highest mean to the lowest."""
    same = board[board["samples"] == samples].assign(shots=board["shots"].astype(str))
    by_shots = same.pivot_table(index=CELL, columns="shots", values="accuracy")
    lines = []
    for row in lines_of(
        primary(board, samples).sort_values(["data", "accuracy"], ascending=[True, False], kind="stable")
    ):
        at = by_shots.loc[tuple(getattr(row, name) for name in CELL)]
        numbers = (Estimate(at[str(k)], 1) for k in shots)
        lines.append(TableLine((*_cell(row), row.n_runs, row.training_prompts, _share(row), *numbers)))
    heads = ("Policy", "Data set", "Pools", "LVLM", "Accuracy", "Runs", "Prompts before", "To the oracle (%)")
    columns = _columns(*heads, *(f"Shot {k}" for k in shots), names=4)
    return Table("cells", "cells", "Accuracy of every cell", columns, tuple(lines))


def primary(board: pd.DataFrame, samples: int) -> pd.DataFrame:
    """Return the lines of what is looked at first: the largest sample count, mean over shots."""
    return board[(board["samples"] == samples) & (board["shots"].astype(str) == MEAN)]


def left_out(missing: Sequence[MissingCell]) -> Table:
    """Return the cells that did not run."""
    lines = tuple(TableLine((of.preset, of.data, of.sampler, of.lvlm, of.why)) for of in missing)
    columns = _columns("Selector", "Data set", "Pools", "LVLM", "Why", names=5)
    return Table("missing", "cells", "Cells that did not run", columns, lines)


def _columns(*heads: str, names: int = 5) -> tuple[Column, ...]:
    return tuple(Column(head, "words" if i < names else "number") for i, head in enumerate(heads))


def _cell(row: Any) -> tuple[Cell, ...]:
    accuracy = Estimate(row.accuracy, 1, low=row.low, high=row.high)
    return called(row.policy), row.data, row.sampler, row.lvlm, accuracy


def _share(row: Any) -> Cell:
    return None if pd.isna(row.share_of_oracle) else Estimate(100 * row.share_of_oracle, 0)


def _compared(row: Any) -> TableLine:
    left, right = Place.parse(row.left), Place.parse(row.right)
    where = left.sampler if left.sampler == right.sampler else f"{left.sampler} − {right.sampler}"
    names = dict.fromkeys(called(str(side.policy)) for side in (left, right))
    difference = Estimate(row.difference, 1, sign=True, low=row.low, high=row.high)
    is_tested, detectable = not pd.isna(row.p_holm), Estimate(row.detectable, 1)
    verdict = Verdict("separated", "yes") if row.p_holm < ALPHA else Verdict("not separated", "open")
    test = (p_value(row.p_holm), verdict) if is_tested else (None, None)
    cells = (difference, *test, None if pd.isna(row.detectable) else detectable, row.n_runs)
    return TableLine((" − ".join(names), where, left.lvlm, *cells))
