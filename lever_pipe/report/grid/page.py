"""The grid's page: separated comparisons, the best cell of each budget, every cell, and the marks of the map."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from lever_pipe.base.policy_names import OWN, PolicyName, beta_text
from lever_pipe.experiment.grid import MissingCell
from lever_pipe.report.cells import Cell, Estimate, p_value
from lever_pipe.report.evidence import ALPHA, MEAN, OF_ONE_RUN
from lever_pipe.report.grid.cells import AGAINST_RANDOM, BASELINE_FAMILY, OWN_BASELINES, QUESTIONS, RICES, GridCell
from lever_pipe.report.grid.map import Mark
from lever_pipe.report.inference.families import ORACLE
from lever_pipe.report.table import Row, Table, framed
from lever_pipe.report.verdicts import BETTER, UNDECIDED, WORSE

CELL = ["data", "sampler", "lvlm", "policy"]
"""Columns of the leaderboard that identify the cell of a line."""


def called(policy: str) -> str:
    """Return a policy's display name."""
    name = PolicyName.parse(policy)
    if not name.preset:
        suffix = " (RICES)" if policy == RICES else ""
        return f"{name.variant.replace('_', ' ')}{suffix}" if name.kind == "baseline" else f"own: {name.variant}"
    beta = "" if name.beta is None else f" β={beta_text(name.beta)}"
    origin = f" from {name.origin}" if name.origin else f", first {name.items} items" if name.items else ""
    return f"{name.preset}: {name.kind.replace('_', '-')}{beta}{origin}"


def marks(compared: pd.DataFrame) -> list[Mark]:
    """Return every cell's distance from random in its setting, best row first, by panel and sampler."""
    against = compared[compared["family"].str.startswith((AGAINST_RANDOM, BASELINE_FAMILY))]
    ceilings = {
        (row.data, GridCell.parse(row.left).setting): row.difference
        for row in lines_of(against)
        if str(GridCell.parse(row.left).policy) == ORACLE
    }
    plotted = []
    for row in lines_of(against):
        grid_cell = GridCell.parse(row.left)
        if str(grid_cell.policy) == ORACLE:
            continue
        ceiling = ceilings.get((row.data, grid_cell.setting))
        panel = f"{row.data}, answered by {grid_cell.lvlm}"
        plotted.append(
            Mark(panel, called(str(grid_cell.policy)), grid_cell.sampler, row.difference, row.low, row.high, ceiling)
        )
    panels, samplers = (
        list(dict.fromkeys(values)) for values in zip(*((m.panel, m.series) for m in plotted), strict=True)
    )
    mean = pd.DataFrame(plotted, columns=Mark._fields).groupby("row")["value"].mean()
    return sorted(plotted, key=lambda m: (panels.index(m.panel), -mean[m.row], m.row, samplers.index(m.series)))


def lines_of(frame: pd.DataFrame) -> Iterator[Any]:
    """Yield the lines of a frame, their cells by name."""
    yield from frame.itertuples()


def from_chance(compared: pd.DataFrame) -> dict[str, int]:
    """Return the numbers of selector cells that are better and worse than random selection in their setting."""
    return _counts(_family(compared, AGAINST_RANDOM))


def from_baselines(compared: pd.DataFrame) -> list[dict[str, Any]]:
    """Return each own selector's comparisons with RICES and with the other baselines.

    A single comparison with RICES also has its numbers, as `row`.
    """
    rows, selectors = _family(compared, OWN_BASELINES), list[dict[str, Any]]()
    owns, baselines = (rows[side].map(lambda group: str(GridCell.parse(group).policy)) for side in ("left", "right"))
    for own in owns.unique():
        rices, others = rows[(owns == own) & (baselines == RICES)], rows[(owns == own) & (baselines != RICES)]
        single = _compared(next(lines_of(rices))) if len(rices) == 1 else None
        counts = {"rices": _counts(rices), "others": _counts(others)}
        selectors.append({"name": called(own), "row": single, **counts})
    return selectors


def doubts(board: pd.DataFrame) -> dict[str, Any]:
    """Return the warnings of a grid: no correct answer, or equal accuracies of all policies of a data set."""
    spreads = board.groupby(["data", "samples", "shots"])["accuracy"].agg(["min", "max", "count"])
    are_equal = bool(((spreads["min"] == spreads["max"]) & (spreads["count"] > 1)).all())
    accuracies = "wrong" if not board["accuracy"].any() else "equal" if are_equal else ""
    return {"exchanged": [], "paths": [], "accuracies": accuracies, "no_reward": False}


def _family(compared: pd.DataFrame, name: str) -> pd.DataFrame:
    return compared[compared["family"].str.removesuffix(OF_ONE_RUN) == name]


def _counts(rows: pd.DataFrame) -> dict[str, int]:
    """Return the number of comparisons by `_verdict`."""
    verdicts = [_verdict(row) for row in lines_of(rows)]
    return {"n": len(rows)} | {word: verdicts.count(word) for word in (BETTER, WORSE, UNDECIDED)}


def _verdict(row: Any) -> str:
    """Return the verdict on the left side of a comparison."""
    if not row.p_holm < ALPHA:
        return UNDECIDED
    return BETTER if row.difference > 0 else WORSE


def verdicts(compared: pd.DataFrame) -> Iterator[Table]:
    """Yield the outcome of each question by data set, then its comparisons from the largest to the smallest difference.

    A question is a family of jointly adjusted comparisons.
    """
    rows_of, tables = list[Row](), []
    for (family, data), rows in compared.groupby(["family", "data"], sort=False):
        asks = QUESTIONS[str(family).removesuffix(OF_ONE_RUN)]
        if str(family).endswith(OF_ONE_RUN):
            asks += " (of one run or draw a side: they infer to further questions only)"
        counts = {"Comparisons" if name == "n" else name.capitalize(): n for name, n in _counts(rows).items()}
        rows_of.append({"Question": asks, "Data set": str(data), **counts})
        is_ordered = str(family).startswith(OWN_BASELINES)  # RICES first
        lines = map(_compared, lines_of(rows if is_ordered else rows.sort_values("difference", ascending=False)))
        tables.append(Table(f"{family}-{data}", "separates", f"{asks} ({data})", framed(lines)))
    yield Table("questions", "separates", "How each question came out", framed(rows_of))
    yield from tables


def best_by_budget(cells: pd.DataFrame) -> Table:
    """Return the cell of highest accuracy within each budget of training prompts, for each data set and LVLM.

    The oracle is excluded, and so are the user's own selectors, because their prompts are not counted.
    """
    is_counted = (cells["policy"] != ORACLE) & (cells["objective"] != OWN)
    lines = list[Row]()
    for _, rows in cells[is_counted].groupby(["data", "lvlm"], sort=False):
        # A stable sort, so that ties keep the order of the leaderboard.
        ordered = rows.sort_values("accuracy", ascending=False, kind="stable")
        for budget in sorted(rows["training_prompts"].unique()):
            within = ordered[ordered["training_prompts"] <= budget]
            best, n_equal = next(lines_of(within)), int((within["accuracy"] == within["accuracy"].max()).sum()) - 1
            cell = _cell(best)
            tied = {"Policy": f"{cell['Policy']} and {n_equal} more with equal accuracy"} if n_equal else {}
            lines.append({"Prompts at most": int(budget), **cell, **tied, "To the oracle (%)": _share(best)})
    return Table("budgets", "budget", "Best cell for each budget", framed(lines))


def every_cell(board: pd.DataFrame, samples: int, shots: Sequence[int]) -> Table:
    """Return every cell with its accuracy at each shot count, by data set from the highest mean to the lowest."""
    same = board[board["samples"] == samples].assign(shots=board["shots"].astype(str))
    by_shots = same.pivot_table(index=CELL, columns="shots", values="accuracy")
    ordered = primary(board, samples).sort_values(["data", "accuracy"], ascending=[True, False], kind="stable")
    rows = list[Row]()
    for row in lines_of(ordered):
        accuracies = by_shots.loc[tuple(getattr(row, name) for name in CELL)]
        numbers = {"Runs": row.n_runs, "Prompts before": row.training_prompts, "To the oracle (%)": _share(row)}
        rows.append({**_cell(row), **numbers, **{f"Shot {k}": Estimate(accuracies[str(k)], 1) for k in shots}})
    return Table("cells", "cells", "Accuracy of every cell", framed(rows))


def primary(board: pd.DataFrame, samples: int) -> pd.DataFrame:
    """Return the lines at the primary endpoint: the largest sample count, mean over shots."""
    return board[(board["samples"] == samples) & (board["shots"].astype(str) == MEAN)]


def left_out(missing: Sequence[MissingCell]) -> Table:
    """Return the cells that did not run."""
    rows = [
        {"Selector": cell.preset, "Data set": cell.data, "Pools": cell.sampler, "LVLM": cell.lvlm, "Why": cell.why}
        for cell in missing
    ]
    return Table("missing", "cells", "Cells that did not run", framed(rows))


def _cell(row: Any) -> Row:
    accuracy = Estimate(row.accuracy, 1, low=row.low, high=row.high)
    setting = {"Data set": row.data, "Pools": row.sampler, "LVLM": row.lvlm}
    return {"Policy": called(row.policy), **setting, "Accuracy": accuracy}


def _share(row: Any) -> Cell:
    return None if pd.isna(row.share_of_oracle) else Estimate(100 * row.share_of_oracle, 0)


def _compared(row: Any) -> Row:
    left, right = GridCell.parse(row.left), GridCell.parse(row.right)
    is_tested = not pd.isna(row.p_holm)
    return {
        "Left − right": " − ".join(dict.fromkeys(called(str(side.policy)) for side in (left, right))),
        "Pools": left.sampler if left.sampler == right.sampler else f"{left.sampler} − {right.sampler}",
        "LVLM": left.lvlm,
        "Points": Estimate(row.difference, 1, sign=True, low=row.low, high=row.high),
        "Holm p": p_value(row.p_holm) if is_tested else None,
        "Verdict": _verdict(row) if is_tested else None,
        "Detectable": None if pd.isna(row.detectable) else Estimate(row.detectable, 1),
        "Runs": row.n_runs,
    }
