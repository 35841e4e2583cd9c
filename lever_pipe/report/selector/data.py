"""What the selector learned from and is tested in: RL data, pools, the embedded world, and the work done."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from lever_pipe.report.cells import Cell, Code, Number, Series, Verdict, level, say
from lever_pipe.report.evidence import MEAN, EvidenceRow
from lever_pipe.report.material import Material
from lever_pipe.report.table import Column, Table, TableLine

RL_FILE = "rl_data_k64_v3.json"
RL_FACTS = (
    "queries",
    "trajectories",
    "traj_per_query",
    "traj_min",
    "traj_max",
    "positive_trajectories",
    "positive_pct",
    "queries_with_positive",
    "queries_with_positive_pct",
    "all_negative_queries",
    "all_positive_queries",
    "mixed_queries",
    "one_accuracy_queries",
    "duplicate_selections",
    "mean_accuracy",
    "mean_reward",
    "reward_std",
)
LEVEL = "accuracy_"
"""Beginning of the metric that counts the trajectories of one accuracy."""
POOLS = ("queries", "exact_demonstration", "best_answer", "best_answer_or_zero_shot")
EXAMPLES = tuple(
    f"{split}_{fact}" for split in ("train", "eval") for fact in ("questions", "skipped_questions", "skipped_images")
)
WORK = (
    "prompts_asked",
    "prompts_distinct",
    "prompts_from_ledger",
    "forwards",
    "tokens_prefilled",
    "prompt_tokens",
    "trie_tokens_distinct",
    "tokens_padded",
    "products_tiled",
    "images_shown",
    "images_distinct",
    "images_encoded",
    "flop",
    "seconds",
    "limit_seconds",
    "seconds_per_limit",
)
ZERO_SHOT, RANDOM, SIMILAR, ORACLE = (f"baseline/{name}" for name in ("zero_shot", "random", "similar_both", "oracle"))
RCE = "rce"
"""Stands for the last RCE epoch of the main preset."""
RANDOM_LOW, RANDOM_HIGH, RCE_GAIN, ORACLE_LOW = 40.0, 50.0, 15.0, 80.0


@dataclass(frozen=True, slots=True)
class OrderTarget:
    """A condition on the accuracies in percent of one or two policies, which the embedded world is made for."""

    id: str
    policies: tuple[str, ...]
    holds: Callable[..., bool]


TARGETS = (
    OrderTarget("zero_shot", (ZERO_SHOT, RANDOM), lambda zero, random: zero <= random),
    OrderTarget("random", (RANDOM, SIMILAR), lambda random, similar: random < similar),
    OrderTarget("similar", (SIMILAR, RCE), lambda similar, rce: similar < rce),
    OrderTarget("rce", (RCE, ORACLE), lambda rce, oracle: rce < oracle),
    OrderTarget("random_range", (RANDOM,), lambda random: RANDOM_LOW <= random <= RANDOM_HIGH),
    OrderTarget("rce_gain", (RANDOM, RCE), lambda random, rce: rce - random >= RCE_GAIN),
    OrderTarget("oracle", (ORACLE,), lambda oracle: oracle >= ORACLE_LOW),
)


def tables(material: Material) -> Iterator[Table]:
    """Yield the tables of the data, the world and the work; one without a line is left out."""
    found = [_rl_data(material), _facts(material, "examples", EXAMPLES), _facts(material, "pools", POOLS)]
    if material.is_world:
        found += [_probes(material), _order(material)]
    found.append(_facts(material, "work", WORK))
    yield from (table for table in found if table.lines)


def _rl_data(material: Material) -> Table:
    others = [row for row in material.evidence.where("rl_data") if row.metric not in RL_FACTS]
    lines = []
    for metric in RL_FACTS:
        theirs = next(iter(material.rl_data(metric, RL_FILE)), None)
        cells = (_plain(material.evidence.find("rl_data", metric)), _plain(theirs))
        if cells[0] is not None:
            lines.append(TableLine((say(f"data.rl.{metric}"), *cells)))
    lines += [TableLine((_other_fact(row.metric), _plain(row), None)) for row in others]
    columns = (
        Column(say("data.head.quantity"), "name"),
        Column(say("word.ours"), whose="ours"),
        Column(say("word.published"), whose="published"),
    )
    return Table(
        "rl-data", "data", say("data.rl.title"), columns, tuple(lines), notes=(say("data.rl.note", file=Code(RL_FILE)),)
    )


def _other_fact(metric: str) -> Cell:
    """Return the count of trajectories of one accuracy, or what the file itself calls something else."""
    if metric.startswith(LEVEL):
        return say("data.rl.level", level=metric.removeprefix(LEVEL))
    return Code(metric)


def _facts(material: Material, subject: str, metrics: Sequence[str]) -> Table:
    """Return a table of one number a line; a metric without a row is left out, one without a name keeps its own."""
    rows = {row.metric: row for row in material.evidence.where(subject)}
    names = [*(name for name in metrics if name in rows), *(name for name in rows if name not in metrics)]
    lines = [
        TableLine(
            (
                say(f"data.{subject}.{name}") if name in metrics else Code(name),
                level(rows[name], 2, scale=1e-12) if name == "flop" else _plain(rows[name]),
            )
        )
        for name in names
    ]
    columns = (Column(say("data.head.quantity"), "name"), Column(say("data.head.value")))
    notes = (say(f"data.{subject}.note"),)
    return Table(subject, "data", say(f"data.{subject}.title"), columns, tuple(lines), notes=notes)


def _probes(material: Material) -> Table:
    rows = [row for row in material.evidence.where("world") if row.metric.startswith("probes.")]
    probes = dict.fromkeys(row.metric.split(".")[1] for row in rows)
    found = {row.metric: row for row in rows}
    lines = []
    for probe in probes:
        cells = [level(found.get(f"probes.{probe}.{name}"), digits) for name, digits in (("accuracy", 2), ("truth", 2))]
        lines.append(TableLine((Code(probe), *cells, _plain(found.get(f"probes.{probe}.n_queries")))))
    columns = (
        Column(say("data.head.probe"), "name"),
        *(Column(say(f"data.head.{name}")) for name in ("probe_accuracy", "probe_truth", "probe_queries")),
    )
    return Table(
        "world-probes", "data", say("data.probes.title"), columns, tuple(lines), notes=tuple(_probe_notes(material))
    )


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
        groups = [material.main.last_rce if name == RCE else name for name in target.policies]
        cells = [_target(target, [level(material.accuracy(g or "", at)) for g in groups]) for at in places]
        if any(cell is not None for cell in cells):
            lines.append(TableLine((say(f"data.order.{target.id}", **_bounds(target)), *cells)))
    columns = (
        Column(say("data.head.target"), "name"),
        *(Column(say("head.shot", shots=k)) for k in material.shots),
        Column(say("head.average")),
    )
    samples = max(material.samples, default=0)
    title = say("data.order.title", samples=samples)
    return Table("world-order", "data", title, columns, tuple(lines), notes=(say("data.order.note"),))


def _bounds(target: OrderTarget) -> dict[str, float]:
    match target.id:
        case "random_range":
            return {"low": RANDOM_LOW, "high": RANDOM_HIGH}
        case "rce_gain":
            return {"points": RCE_GAIN}
        case "oracle":
            return {"low": ORACLE_LOW}
        case _:
            return {}


def _target(target: OrderTarget, cells: Sequence[Number | None]) -> Cell:
    known = [cell.plain for cell in cells if cell is not None]
    if len(known) < len(cells):
        return None
    is_held = target.holds(*(cell.value for cell in known))
    verdict = Verdict("data.order.held", "yes") if is_held else Verdict("data.order.missed", "no")
    return Series((Series(tuple(known), "parts"), verdict), "spaced")


def _plain(row: EvidenceRow | None) -> Number | None:
    """Return a number with the decimals that it needs, two at most, four below one."""
    if row is None:
        return None
    digits = 0 if row.value.is_integer() else 4 if abs(row.value) < 1 else 2
    return level(row, digits)
