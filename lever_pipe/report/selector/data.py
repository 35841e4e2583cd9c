"""What the selector learned from and is tested in: RL data, examples and pools."""

from __future__ import annotations

from collections.abc import Iterator

from lever_pipe.report.cells import Cell, Code, Estimate, level, say
from lever_pipe.report.evidence import EvidenceRow
from lever_pipe.report.material import Material
from lever_pipe.report.table import Column, Table, TableLine, heads

RL_FILE = "rl_data_k64_v3.json"
LEVEL = "accuracy_"
"""Beginning of the metric that counts the trajectories of one accuracy."""
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
"""What the metrics of a subject are called, in reading order."""

ABOUT = (
    ("examples", "Questions and images", "Skipped: without an image, or not readable."),
    (
        "pools",
        "What the pools hold",
        (
            "Exact demonstration: one of the query's type with a right answer. Best answer: the best "
            "that a demonstration in the pool shows; with zero shot: the better of both, which is "
            "what perfect copying could reach."
        ),
    ),
)
"""Subject, title and note of a table of facts."""


def tables(material: Material) -> Iterator[Table]:
    """Yield the tables of the data; one without a line is left out."""
    found = (_rl_data(material), *(_facts(material, *told) for told in ABOUT))
    yield from (table for table in found if table.lines)


def _rl_data(material: Material) -> Table:
    lines = []
    for metric, row, is_named in _rows(material, "rl_data"):
        name: Cell = say(FACTS["rl_data"][metric]) if is_named else Code(metric)
        if not is_named and metric.startswith(LEVEL):
            name = say("Trajectories of accuracy {level}", level=metric.removeprefix(LEVEL))
        theirs = next(iter(material.rl_data(metric, RL_FILE)), None) if is_named else None
        lines.append(TableLine((name, _plain(row), _plain(theirs))))
    columns = (
        Column(say("Quantity"), "name"),
        Column(say("ours"), whose="ours"),
        Column(say("published"), whose="published"),
    )
    notes = (
        say(
            ("A trajectory is one ordered selection of demonstrations with the LVLM's answer. Published: `{file}`."),
            file=Code(RL_FILE),
        ),
    )
    return Table("rl-data", "data", say("RL data"), columns, tuple(lines), notes=notes)


def _facts(material: Material, subject: str, title: str, note: str) -> Table:
    """Return a table of one number a line; one without a name keeps its own."""
    lines = []
    for metric, row, is_named in _rows(material, subject):
        lines.append(TableLine((say(FACTS[subject][metric]) if is_named else Code(metric), _plain(row))))
    return Table(subject, "data", say(title), heads("Quantity", "Value"), tuple(lines), notes=(say(note),))


def _rows(material: Material, subject: str) -> Iterator[tuple[str, EvidenceRow, bool]]:
    """Yield metrics with their rows and whether they have a message, those in reading order."""
    rows, known = {row.metric: row for row in material.evidence.where(subject)}, FACTS[subject]
    yield from ((name, rows[name], True) for name in known if name in rows)
    yield from ((name, row, False) for name, row in rows.items() if name not in known)


def _plain(row: EvidenceRow | None) -> Estimate | None:
    """Return a number with the decimals that it needs, two at most, four below one."""
    if row is None:
        return None
    digits = 0 if row.value.is_integer() else 4 if abs(row.value) < 1 else 2
    return level(row, digits)
