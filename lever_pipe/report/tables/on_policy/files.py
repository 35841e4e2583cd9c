"""The files that this section reads in its own way: ties, tests with their runs, and agreement with the base."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from lever_pipe.base.errors import RecordError
from lever_pipe.report.tables.columns import TIES_COLUMNS
from lever_pipe.report.tables.comparisons.estimates import ComparisonRow
from lever_pipe.report.tables.evidence import Pair, kind_of
from lever_pipe.report.tables.frames import read_text_columns

AGREEMENT_COLUMNS = ("left", "right", "shots", "as_sequence")
BEST = "best_"  # prefix of the columns of `ties.csv` that count kept selections
COMPARED = ("difference", "low", "high", "p", "p_holm", "detectable", "left_value", "right_value")

Tests = Mapping[Pair, ComparisonRow]
Agreement = Mapping[tuple[str, str, int], float]
"""Share of queries with equal selections by policy, other policy and shots; each pair in both orders."""


def read_ties(path: Path) -> pd.DataFrame:
    """Return `ties.csv` as text: a row a reward, and a column `best_K` for each number of kept selections.

    Raises:
        RecordError: a missing file or column.
    """
    return _with_columns(path, TIES_COLUMNS)


def read_tests(path: Path) -> dict[Pair, ComparisonRow]:
    """Return every row of `comparisons.csv`.

    Raises:
        RecordError: a missing file or column, or a cell that is no number.
    """
    frame = _with_columns(path, ComparisonRow._fields)
    types = dict.fromkeys(("samples", "n_runs", "n_questions"), "int64") | dict.fromkeys(COMPARED, "float64")
    try:
        typed = frame.astype(types)
    except ValueError as fault:
        raise RecordError(f"{path}: expected numbers", found=str(fault), do="Run compare_policies again.") from None
    rows = [ComparisonRow(*row) for row in typed[list(ComparisonRow._fields)].itertuples(index=False, name=None)]
    return {Pair(kind_of(row.family), row.left, row.right, row.samples, row.shots): row for row in rows}


def read_agreement(path: Path) -> Agreement:
    """Return the pairs of `agreement.csv` that hold one RCE epoch.

    Raises:
        RecordError: a missing file or column.
    """
    frame = _with_columns(path, AGREEMENT_COLUMNS)
    is_rce = {side: frame[side].str.contains("/rce/", regex=False) for side in ("left", "right")}
    found: dict[tuple[str, str, int], float] = {}
    kept = frame.loc[is_rce["left"] ^ is_rce["right"], list(AGREEMENT_COLUMNS)]
    for left, right, shots, share in kept.itertuples(index=False, name=None):
        found[left, right, int(shots)] = found[right, left, int(shots)] = float(share)
    return found


def _with_columns(path: Path, columns: tuple[str, ...]) -> pd.DataFrame:
    frame = read_text_columns(path)
    missing = [column for column in columns if column not in frame.columns]
    if missing:
        raise RecordError(
            f"{path}: expected the columns {', '.join(columns)}",
            found=f"no {', '.join(missing)}",
            do="Run the rule that makes it again.",
        )
    return frame
