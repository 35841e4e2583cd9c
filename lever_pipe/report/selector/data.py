"""What the selector learned from and is tested in: RL data, pools, the embedded world, and the work done."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from lever_pipe.report.cells import Cell, Code, Number, Series, Verdict, level, say
from lever_pipe.report.evidence import MEAN, EvidenceRow
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
    "work": "prompts_asked prompts_distinct prompts_from_ledger forwards tokens_prefilled prompt_tokens "
    "trie_tokens_distinct tokens_padded products_tiled images_shown images_distinct images_encoded flop seconds "
    "limit_seconds seconds_per_limit",
}
"""By subject, in reading order; each has a message."""
ZERO_SHOT, RANDOM, SIMILAR, ORACLE = (f"baseline/{name}" for name in ("zero_shot", "random", "similar_both", "oracle"))
RCE = "rce"
"""Stands for the last RCE epoch of the main preset."""


class Target(NamedTuple):
    """A condition on the accuracies in percent of one or two policies, which the embedded world is made for."""

    id: str
    policies: tuple[str, ...]
    holds: Callable[..., bool]
    bounds: Mapping[str, float]


TARGETS = (
    Target("zero_shot", (ZERO_SHOT, RANDOM), operator.le, {}),
    Target("random", (RANDOM, SIMILAR), operator.lt, {}),
    Target("similar", (SIMILAR, RCE), operator.lt, {}),
    Target("rce", (RCE, ORACLE), operator.lt, {}),
    Target("random_range", (RANDOM,), lambda random, low, high: low <= random <= high, {"low": 40.0, "high": 50.0}),
    Target("rce_gain", (RANDOM, RCE), lambda random, rce, points: rce - random >= points, {"points": 15.0}),
    Target("oracle", (ORACLE,), operator.ge, {"low": 80.0}),
)


def tables(material: Material) -> Iterator[Table]:
    """Yield the tables of the data, the world and the work; one without a line is left out."""
    world = [_probes(material), _order(material)] if material.is_world else []
    found = [_rl_data(material), *(_facts(material, name) for name in ("examples", "pools")), *world]
    yield from (table for table in (*found, _facts(material, "work")) if table.lines)


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
        cell = level(row, 2, scale=1e-12) if metric == "flop" else _plain(row)
        lines.append(TableLine((say(f"data.{subject}.{metric}") if is_named else Code(metric), cell)))
    title, note = (say(f"data.{subject}.{of}") for of in ("title", "note"))
    return Table(subject, "data", title, heads("data.head.quantity", "data.head.value"), tuple(lines), notes=(note,))


def _rows(material: Material, subject: str) -> Iterator[tuple[str, EvidenceRow, bool]]:
    """Yield metrics with their rows and whether they have a message, those in reading order."""
    rows, known = {row.metric: row for row in material.evidence.where(subject)}, FACTS[subject].split()
    yield from ((name, rows[name], True) for name in known if name in rows)
    yield from ((name, row, False) for name, row in rows.items() if name not in known)


def _probes(material: Material) -> Table:
    rows = {row.metric: row for row in material.evidence.where("world") if row.metric.startswith("probes.")}
    lines = []
    for probe in dict.fromkeys(name.split(".")[1] for name in rows):
        accuracy, truth, n = (rows.get(f"probes.{probe}.{name}") for name in ("accuracy", "truth", "n_queries"))
        lines.append(TableLine((Code(probe), level(accuracy, 2), level(truth, 2), _plain(n))))
    columns = heads(*(f"data.head.{name}" for name in ("probe", "probe_accuracy", "probe_truth", "probe_queries")))
    notes = tuple(_probe_notes(material))
    return Table("world-probes", "data", say("data.probes.title"), columns, tuple(lines), notes=notes)


def _probe_notes(material: Material) -> Iterator[Cell]:
    find = material.evidence.find
    yield say("data.probes.note")
    equal, prompts = (_plain(find("world", f"stock_agreement.{name}")) for name in ("equal", "prompts"))
    if equal and prompts:
        yield say("data.probes.stock", equal=equal, prompts=prompts)
    judged = find("world", "judged")
    missed = [row for row in material.evidence.where("world") if row.metric.startswith("bounds.")]
    if missed:
        yield say("data.probes.missed", bounds=[Code(row.printed) for row in missed])
    elif judged is not None:
        yield say("data.probes.held" if judged.value else "data.probes.not_judged")


def _order(material: Material) -> Table:
    """Return each target with its numbers and whether it holds, by shots and for their mean."""
    places: list[int | str] = [*material.shots, MEAN]
    lines = []
    for target in TARGETS:
        groups = [(material.main.last_rce or "") if name == RCE else name for name in target.policies]
        cells = [_target(target, [level(material.accuracy(group, at)) for group in groups]) for at in places]
        if any(cell is not None for cell in cells):
            lines.append(TableLine((say(f"data.order.{target.id}", **target.bounds), *cells)))
    shots = (Column(say("head.shot", shots=k)) for k in material.shots)
    columns = (Column(say("data.head.target"), "name"), *shots, Column(say("head.average")))
    title = say("data.order.title", samples=max(material.samples, default=0))
    return Table("world-order", "data", title, columns, tuple(lines), notes=(say("data.order.note"),))


def _target(target: Target, cells: Sequence[Number | None]) -> Cell:
    known = [cell.plain for cell in cells if cell is not None]
    if len(known) < len(cells):
        return None
    is_held = target.holds(*(cell.value for cell in known), *target.bounds.values())
    verdict = Verdict("data.order.held", "yes") if is_held else Verdict("data.order.missed", "no")
    return Series((Series(tuple(known), "parts"), verdict), "spaced")


def _plain(row: EvidenceRow | None) -> Number | None:
    """Return a number with the decimals that it needs, two at most, four below one."""
    if row is None:
        return None
    digits = 0 if row.value.is_integer() else 4 if abs(row.value) < 1 else 2
    return level(row, digits)
