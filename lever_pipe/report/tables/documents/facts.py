"""Facts about data, pools, the embedded world and the work done, as tables."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lever_pipe.report.tables.results import standard_error
from lever_pipe.report.tables.table import Table, frame_of
from lever_pipe.report.tables.text import number

Fact = tuple[str, str]

PROBE_COLUMNS = {"accuracy": "VQA accuracy (%)", "truth": "Equals the world's fact (%)", "n_queries": "Queries"}
POOLS_CAPTION = (
    "In percent of the evaluated queries. Exact demonstration: one of the query's question type with a right answer is "
    "in the pool. Best answer: mean accuracy of the best answer that a demonstration in the pool shows. "
    "Best answer or zero shot: for each query the better of that and of the zero-shot answer, which is what perfect "
    "copying could reach, since some questions need no demonstration."
)


PROBES_CAPTION = (
    "Each probe asks knowledge questions only, so its zero-shot accuracy lies below that of the overview. "
    "Exact: demonstrations that show the right fact. Conflict: one shows the right fact and one another. "
    "Shuffled: the same two with images of other items."
)
CHECKS_CAPTION = (
    "Judged: enough questions were probed to hold the bounds against them. "
    "Stock agreement: prompts that this engine and the stock classes answer alike."
)


@dataclass(frozen=True, slots=True)
class Facts:
    """Contents of the files that the tables are made of."""

    examples: Mapping[str, Any]
    pools: Mapping[str, Any]
    world_checks: Sequence[Mapping[str, Any]] = field(default=())
    counters: Sequence[Mapping[str, Any]] = field(default=())


def tables(facts: Facts, samples: Sequence[int]) -> list[Table]:
    """Return the tables of the sections `how`, `data`, `world` and `work`; one without a row is left out."""
    found = [
        _standard_errors(samples),
        _fact_table("examples", "data", "Questions and images", "", ("Data", "Value"), flat(facts.examples)),
        _fact_table("pools", "data", "What the pools hold", POOLS_CAPTION, ("Pools", "Value"), flat(facts.pools)),
        *(table for check in facts.world_checks for table in _world(check)),
        _work(facts.counters),
    ]
    return [table for table in found if not table.frame.empty]


def totals(counters: Iterable[Mapping[str, Any]]) -> list[Fact]:
    """Return the sum of each counter over the files, by name; a ratio is taken anew over the sums."""
    sums: dict[str, float] = {}
    limited = 0.0  # seconds of the files that know their limit
    for file in counters:
        limited += file["seconds"] if "limit_seconds" in file else 0.0
        for name, value in file.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                sums[name] = sums.get(name, 0) + value
    if sums.get("limit_seconds"):
        sums["seconds_per_limit"] = limited / sums["limit_seconds"]
    return [(_words(name), plain(sums[name])) for name in sorted(sums)]


def flat(values: Mapping[str, Any], prefix: str = "") -> list[Fact]:
    """Return nested values as `Outer: inner` names with their texts, in the order of the file."""
    found: list[Fact] = []
    for name, value in values.items():
        words = str(name).replace("_", " ")
        full = f"{prefix}{words}" if prefix else _words(words)
        if isinstance(value, Mapping):
            found += flat(value, f"{full}: ")
        else:
            found.append((full, plain(value)))
    return found


def plain(value: object) -> str:
    """Return a value as the tables print it: whole numbers grouped, others with four significant digits."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer() and abs(value) < 1e15):
        return f"{int(value):,}"
    if isinstance(value, float):
        return f"{value:.4g}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _words(name: str) -> str:
    text = name.replace("_", " ")
    return text[:1].upper() + text[1:]


def _fact_table(
    name: str, section: str, title: str, caption: str, columns: tuple[str, str], facts: Iterable[Fact]
) -> Table:
    rows = [dict(zip(columns, fact, strict=True)) for fact in facts]
    return Table(name, section, title, caption, frame_of(rows, columns))


def _standard_errors(samples: Sequence[int]) -> Table:
    rows = [{"Samples": str(n), "Standard error": number(standard_error(50.0, n), 1)} for n in samples]
    caption = "In points, of an accuracy of 50 %: sqrt(p (1 - p) / n). VQA scores may be fractions: an upper bound."
    return Table(
        "standard-errors",
        "how",
        "Standard error of one accuracy",
        caption,
        frame_of(rows, ["Samples", "Standard error"]),
    )


def _world(check: Mapping[str, Any]) -> list[Table]:
    probes = {name: score for name, score in check.get("probes", {}).items() if isinstance(score, Mapping)}
    rows = [
        {"Probe": _words(name), **{title: plain(score.get(key, "")) for key, title in PROBE_COLUMNS.items()}}
        for name, score in probes.items()
    ]
    missed = "; ".join(plain(bound) for bound in check.get("bounds", [])) or "none"
    rest = {name: value for name, value in check.items() if name not in ("bounds", "probes")}
    return [
        Table(
            "world-probes",
            "world",
            "How the LVLM reads its demonstrations",
            f"Embedded world. {PROBES_CAPTION} Bounds missed: {missed}.",
            frame_of(rows, ["Probe", *PROBE_COLUMNS.values()]),
        ),
        _fact_table(
            "world-checks", "world", "Checks of the embedded LVLM", CHECKS_CAPTION, ("Check", "Value"), flat(rest)
        ),
    ]


def _work(counters: Sequence[Mapping[str, Any]]) -> Table:
    caption = (
        "Prompts from the ledger were answered by an earlier job or run and cost no forward pass. "
        "The emulated faults are not counted here."
    )
    return _fact_table("work", "work", "Work done", caption, ("Counter", "Sum over jobs"), totals(counters))
