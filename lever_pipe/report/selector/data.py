"""What the selector learned from and is tested in: RL data, examples and pools."""

from __future__ import annotations

from collections.abc import Iterator

from lever_pipe.report.cells import Cell, Code, Number, level, say
from lever_pipe.report.evidence import EvidenceRow
from lever_pipe.report.material import Material
from lever_pipe.report.table import Column, Table, TableLine, heads

RL_FILE = "rl_data_k64_v3.json"
LEVEL = "accuracy_"
"""Beginning of the metric that counts the trajectories of one accuracy."""
FACTS = {
    "rl_data": "queries trajectories traj_per_query traj_min traj_max positive_trajectories positive_pct "
    "queries_with_positive queries_with_positive_pct all_negative_queries all_positive_queries mixed_queries "
    "one_accuracy_queries duplicate_selections mean_accuracy mean_reward reward_std",
    "examples": "train_questions train_skipped_questions train_skipped_images "
    "eval_questions eval_skipped_questions eval_skipped_images",
    "pools": "queries exact_demonstration best_answer best_answer_or_zero_shot",
}
"""By subject, in reading order; each has a message."""


def tables(material: Material) -> Iterator[Table]:
    """Yield the tables of the data; one without a line is left out."""
    found = (_rl_data(material), *(_facts(material, name) for name in ("examples", "pools")))
    yield from (table for table in found if table.lines)


def _rl_data(material: Material) -> Table:
    lines = []
    for metric, row, is_named in _rows(material, "rl_data"):
        name: Cell = say(f"data.rl.{metric}") if is_named else Code(metric)
        if not is_named and metric.startswith(LEVEL):
            name = say("data.rl.level", level=metric.removeprefix(LEVEL))
        theirs = next(iter(material.rl_data(metric, RL_FILE)), None) if is_named else None
        lines.append(TableLine((name, _plain(row), _plain(theirs))))
    columns = (
        Column(say("data.head.quantity"), "name"),
        Column(say("word.ours"), whose="ours"),
        Column(say("word.published"), whose="published"),
    )
    notes = (say("data.rl.note", file=Code(RL_FILE)),)
    return Table("rl-data", "data", say("data.rl.title"), columns, tuple(lines), notes=notes)


def _facts(material: Material, subject: str) -> Table:
    """Return a table of one number a line; one without a name keeps its own."""
    lines = []
    for metric, row, is_named in _rows(material, subject):
        lines.append(TableLine((say(f"data.{subject}.{metric}") if is_named else Code(metric), _plain(row))))
    title, note = (say(f"data.{subject}.{of}") for of in ("title", "note"))
    return Table(subject, "data", title, heads("data.head.quantity", "data.head.value"), tuple(lines), notes=(note,))


def _rows(material: Material, subject: str) -> Iterator[tuple[str, EvidenceRow, bool]]:
    """Yield metrics with their rows and whether they have a message, those in reading order."""
    rows, known = {row.metric: row for row in material.evidence.where(subject)}, FACTS[subject].split()
    yield from ((name, rows[name], True) for name in known if name in rows)
    yield from ((name, row, False) for name, row in rows.items() if name not in known)


def _plain(row: EvidenceRow | None) -> Number | None:
    """Return a number with the decimals that it needs, two at most, four below one."""
    if row is None:
        return None
    digits = 0 if row.value.is_integer() else 4 if abs(row.value) < 1 else 2
    return level(row, digits)
