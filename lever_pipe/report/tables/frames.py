"""The collected CSV files as frames with fixed column types."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from lever_pipe.base.errors import RecordError
from lever_pipe.report.tables.columns import SCORES_COLUMNS, STEPS_COLUMNS, TRAINING_COLUMNS
from lever_pipe.report.tables.costs import CostRow

TYPES = {
    "policy": "str",
    "stage": "str",
    "mode": "str",
    "base_rce_epoch": "Int64",
    "kl_beta": "float64",
    "seed": "Int64",
    "epoch": "Int64",
    "subset": "str",
    "samples": "int64",
    "shots": "int64",
    "accuracy": "float64",
    "n_questions": "int64",
    "n_distinct_prompts": "int64",
    "step": "int64",
    "prompts": "int64",
    "rl_data_prompts": "int64",
    "own_prompts": "int64",
    "metric": "str",
    "value": "float64",
    "preset": "str",
}


def read_scores(path: Path) -> pd.DataFrame:
    """Return `scores.csv` or `arms.csv`."""
    return _read(path, SCORES_COLUMNS)


def read_training(path: Path) -> pd.DataFrame:
    """Return `training.csv` or `arms_training.csv`."""
    return _read(path, TRAINING_COLUMNS)


def read_steps(path: Path) -> pd.DataFrame:
    """Return `steps.csv`."""
    return _read(path, STEPS_COLUMNS)


def read_costs(path: Path) -> pd.DataFrame:
    """Return `costs.csv`."""
    return _read(path, CostRow._fields)


def within(scores: pd.DataFrame, *, samples: tuple[int, ...], shots: tuple[int, ...]) -> pd.DataFrame:
    """Return the cells of these counts; policies without demonstrations may count 0 shots."""
    return scores[scores["samples"].isin(samples) & scores["shots"].isin([0, *shots])]


def read_text_columns(path: Path) -> pd.DataFrame:
    """Return any CSV with every cell as text, empty cells as empty text."""
    try:
        return pd.read_csv(path, dtype=str, keep_default_na=False)
    except FileNotFoundError:
        raise _missing(path) from None


def _read(path: Path, columns: tuple[str, ...]) -> pd.DataFrame:
    try:
        head = list(pd.read_csv(path, nrows=0).columns)
        if head[: len(columns)] != list(columns):
            raise RecordError(
                f"{path}: expected the columns {', '.join(columns)}",
                found=", ".join(head),
                do="Run collect_results again.",
            )
        types = {column: TYPES[column] for column in columns}
        return pd.read_csv(path, dtype=types, keep_default_na=False, na_values={c: [""] for c in _numeric(columns)})
    except FileNotFoundError:
        raise _missing(path) from None
    except ValueError as fault:
        raise RecordError(f"{path}: expected numbers", found=str(fault), do="Run collect_results again.") from None


def _numeric(columns: tuple[str, ...]) -> list[str]:
    return [column for column in columns if TYPES[column] != "str"]


def _missing(path: Path) -> RecordError:
    return RecordError(f"{path}: expected a file", found="none", do="Run the rule that makes it.")
