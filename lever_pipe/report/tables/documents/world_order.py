"""The order of the policies that the embedded world is made for, held against this run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import pandas as pd

from lever_pipe.report.tables import policies
from lever_pipe.report.tables.documents.extras import shots_of
from lever_pipe.report.tables.table import Table, frame_of
from lever_pipe.report.tables.text import mean, number

RANDOM_LOW = 40.0
RANDOM_HIGH = 50.0
RCE_GAIN = 15.0
ORACLE_LOW = 80.0

ZERO_SHOT, RANDOM, SIMILAR, ORACLE = (
    policies.BASELINE_LABELS[name] for name in ("zero_shot", "random", "similar_both", "oracle")
)
RCE = "RCE, last epoch"


@dataclass(frozen=True, slots=True)
class Expectation:
    """A condition on the accuracies in percent of one or two policies."""

    text: str
    policies: tuple[str, ...]
    holds: Callable[..., bool]


EXPECTATIONS = (
    Expectation("Zero-shot at most random", (ZERO_SHOT, RANDOM), lambda zero, random: zero <= random),
    Expectation(
        "Random below most similar image and question", (RANDOM, SIMILAR), lambda random, similar: random < similar
    ),
    Expectation(
        "Most similar image and question below RCE, last epoch", (SIMILAR, RCE), lambda similar, rce: similar < rce
    ),
    Expectation("RCE, last epoch, below oracle", (RCE, ORACLE), lambda rce, oracle: rce < oracle),
    Expectation(
        f"Random from {RANDOM_LOW:g} to {RANDOM_HIGH:g}", (RANDOM,), lambda random: RANDOM_LOW <= random <= RANDOM_HIGH
    ),
    Expectation(
        f"RCE, last epoch, at least {RCE_GAIN:g} points above random",
        (RANDOM, RCE),
        lambda random, rce: rce - random >= RCE_GAIN,
    ),
    Expectation(f"Oracle at least {ORACLE_LOW:g}", (ORACLE,), lambda oracle: oracle >= ORACLE_LOW),
)


def world_order(scores: pd.DataFrame) -> list[Table]:
    """Return each expectation with its numbers and whether they hold, by shots and for the mean over shots.

    An expectation about a policy without scores is left out.
    """
    accuracies = _accuracies(scores)
    if not accuracies:
        return []
    columns = list(next(iter(accuracies.values())))
    rows = [
        {"Expectation": expected.text, **{column: _cell(expected, accuracies, column) for column in columns}}
        for expected in EXPECTATIONS
        if accuracies.keys() >= set(expected.policies)
    ]
    caption = (
        "These are design targets of this generated world, chosen when it was made; they say nothing about other data. "
        "Compared are the accuracies in percent as they are, in the order of the expectation, mean over seeds or "
        "draws, without any statistics: a missed cell may lie within the noise of the questions, and so may a held one."
    )
    title = f"Expected order in the embedded world at {int(scores['samples'].max())} samples"
    return [Table("world-order", "world", title, caption, frame_of(rows, ["Expectation", *columns]))]


def _accuracies(scores: pd.DataFrame) -> dict[str, dict[str, float | None]]:
    """Return accuracy in percent by policy and column, the last column being the mean over shots."""
    found: dict[str, dict[str, float | None]] = {}
    for name, group in _groups(scores):
        shots = shots_of(scores)
        by_shots = group.by_shots(int(scores["samples"].max()), shots)
        at = [by_shots[k].value if k in by_shots else None for k in shots]
        found[name] = {**{f"Shot {k}": value for k, value in zip(shots, at, strict=True)}, "Mean": mean(at)}
    return found


def _groups(scores: pd.DataFrame) -> Iterator[tuple[str, policies.PolicyGroup]]:
    for group in policies.baselines(scores):
        yield group.label, group
    for group in policies.rce_epochs(scores)[-1:]:
        yield RCE, group


def _cell(expected: Expectation, accuracies: Mapping[str, Mapping[str, float | None]], column: str) -> str:
    values = [accuracies[name][column] for name in expected.policies]
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return ""
    verdict = "held" if expected.holds(*known) else "missed"
    return f"{', '.join(number(value, 2) for value in known)}: {verdict}"
