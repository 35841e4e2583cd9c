"""Data of the selector's training and evaluation: RL data, examples and pools."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lever_pipe.report.cells import Cell, Estimate, code, level, message
from lever_pipe.report.context import ReportContext
from lever_pipe.report.evidence import EvidenceRow
from lever_pipe.report.table import Row, Table, framed

RL_FILE = "rl_data_k64_v3.json"
LEVEL = "accuracy_"
"""Prefix of metrics that count the trajectories of one accuracy."""
FACTS = {
    "rl_data": {
        "queries": "Queries",
        "trajectories": "Trajectories",
        "traj_per_query": "Trajectories a query",
        "traj_min": "Fewest trajectories of a query",
        "traj_max": "Most trajectories of a query",
        "positive_trajectories": "Trajectories with a correct answer",
        "positive_pct": "Trajectories with a correct answer (%)",
        "queries_with_positive": "Queries with a correct trajectory",
        "queries_with_positive_pct": "Queries with a correct trajectory (%)",
        "all_negative_queries": "Queries with wrong trajectories only",
        "all_positive_queries": "Queries with correct trajectories only",
        "mixed_queries": "Queries with both",
        "one_accuracy_queries": "Queries whose trajectories all have one accuracy",
        "duplicate_selections": "Repeated selections within a query",
        "mean_accuracy": "Mean accuracy",
        "mean_reward": "Mean reward",
        "reward_std": "Standard deviation of the reward",
    },
    "examples": {
        "train_questions": "Training questions",
        "train_skipped_questions": "Training questions skipped",
        "train_skipped_images": "Training images skipped",
        "eval_questions": "Evaluated questions",
        "eval_skipped_questions": "Evaluated questions skipped",
        "eval_skipped_images": "Evaluated images skipped",
    },
    "pools": {
        "queries": "Queries",
        "exact_demonstration": "Queries with an exact demonstration (%)",
        "best_answer": "Accuracy of the best answer in the pool (%)",
        "best_answer_or_zero_shot": "Accuracy of that or zero shot (%)",
    },
}
"""Names of each subject's metrics, in reading order."""

SCORING = "scoring"
"""Subject of the rules of VQA accuracy, and of the number of answers that they empty."""
TITLES = {"rl_data": "RL data", "examples": "Questions and images", "pools": "What the pools hold"}


def tables(context: ReportContext) -> Iterator[Table]:
    """Yield the tables of the data."""
    for subject, title in TITLES.items():
        rows = framed(_of_rl_data(context) if subject == "rl_data" else _facts(context, subject))
        yield Table(subject.replace("_", "-"), "data", title, rows)


def scoring(context: ReportContext) -> dict[str, Any] | None:
    """Return the scoring rules, and the number of answers that the cut empties; None without the study."""
    rows = {row.metric: row for row in context.evidence.where(SCORING)}
    if not rows:
        return None
    rules = {name: rows[name].printed for name in ("answers", "normalise_references")}
    return rules | {name: level(rows[name], 0) for name in ("prompts", "emptied")}


def _of_rl_data(context: ReportContext) -> Iterator[Row]:
    for metric, row, is_named in _rows(context, "rl_data"):
        name: Cell = FACTS["rl_data"][metric] if is_named else code(metric)
        if not is_named and metric.startswith(LEVEL):
            name = message("Trajectories of accuracy {level}", level=metric.removeprefix(LEVEL))
        published = next(iter(context.rl_data(metric, RL_FILE)), None) if is_named else None
        yield {"Quantity": name, "ours": _plain(row), "published": _plain(published)}


def _facts(context: ReportContext, subject: str) -> Iterator[Row]:
    """Yield a number per row; metrics without a display name keep their own."""
    for metric, row, is_named in _rows(context, subject):
        yield {"Quantity": FACTS[subject][metric] if is_named else code(metric), "Value": _plain(row)}


def _rows(context: ReportContext, subject: str) -> Iterator[tuple[str, EvidenceRow, bool]]:
    """Yield metrics with their rows, and whether they have a display name; named ones come first, in reading order."""
    rows, labels = {row.metric: row for row in context.evidence.where(subject)}, FACTS[subject]
    yield from ((name, rows[name], True) for name in labels if name in rows)
    yield from ((name, row, False) for name, row in rows.items() if name not in labels)


def _plain(row: EvidenceRow | None) -> Estimate | None:
    """Return a number without decimals if it is whole, else with two, or four below 1."""
    if row is None:
        return None
    digits = 0 if row.value.is_integer() else 4 if abs(row.value) < 1 else 2
    return level(row, digits)
