"""The documents' two runs beside ours as curves: published, and of every common seed, greedy and sampled."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from lever_pipe.report.tables.evidence import ALPHA, p_text
from lever_pipe.report.tables.intention import published as theirs
from lever_pipe.report.tables.intention.agent_runs import GREEDY, MODES, Series, after_start
from lever_pipe.report.tables.intention.estimates import paired_over_seeds
from lever_pipe.report.tables.intention.published import KL, NO_KL, RUNS
from lever_pipe.report.tables.intention.shown import Shown
from lever_pipe.statistics.comparison import holm

Measure = Callable[[Series], float]


class CurvePair(NamedTuple):
    """Both runs' curves after the start, one of each a seed; the published runs are one pair."""

    source: str
    mode: str
    no_kl: Sequence[Series]
    kl: Sequence[Series]

    @property
    def is_ours(self) -> bool:
        """Return whether the curves are ours."""
        return self.source != theirs.SOURCE

    @property
    def keys(self) -> dict[str, str]:
        """Return the cells that say whose curves these are."""
        return {"Source": self.source, "Curve": self.mode}

    def values(self, measure: Measure) -> dict[str, list[float]]:
        """Return a measure of every curve, by run."""
        return {run: [measure(curve) for curve in of] for run, of in ((NO_KL, self.no_kl), (KL, self.kl))}

    def means(self, measure: Measure) -> dict[str, float]:
        """Return a measure of the curves, mean over seeds, by run."""
        return {run: math.fsum(values) / len(values) for run, values in self.values(measure).items()}

    def differences(self, measure: Measure) -> list[float]:
        """Return a measure of the KL bundle minus that of the run without KL, by seed."""
        values = self.values(measure)
        return [kl - no_kl for kl, no_kl in zip(values[KL], values[NO_KL], strict=True)]

    def p(self, measure: Measure) -> float:
        """Return the p value of a paired t test over seeds; NaN with one."""
        values = self.values(measure)
        return paired_over_seeds(values[KL], values[NO_KL]).p


def curve_pairs(shown: Shown) -> list[CurvePair]:
    """Return the published pair, then ours: greedy as the documents, and sampled; ours need a common seed."""
    found = [published_pair(shown)]
    arms = shown.pair
    common = shown.runs.common_seeds(arms[NO_KL], arms[KL])
    for mode in MODES:
        curves = {
            run: [after_start(shown.runs.validation(arm, seed, mode)) for seed in common] for run, arm in arms.items()
        }
        if common and all(all(of) for of in curves.values()):
            found.append(CurvePair(shown.source, mode, curves[NO_KL], curves[KL]))
    return found


def published_pair(shown: Shown) -> CurvePair:
    """Return the published curves, which were evaluated greedily."""
    measured = {run: shown.published.measured(run) for run in RUNS}
    return CurvePair(theirs.SOURCE, GREEDY, [measured[NO_KL]], [measured[KL]])


def within(first: int, last: int) -> Callable[[Series], list[float]]:
    """Return what picks the values of a curve between two steps."""
    return lambda curve: [value for step, value in curve.items() if first <= step <= last]


def verdicts(p_values: Mapping[str, float]) -> dict[str, str]:
    """Return `separated (p 0.012)` or `not separated (p 0.250)` by name, adjusted for the family (Holm).

    One without a p value has no verdict.
    """
    known = {name: p for name, p in p_values.items() if not math.isnan(p)}
    adjusted = dict(zip(known, holm(list(known.values())), strict=True))
    texts = {name: f"{'' if p < ALPHA else 'not '}separated (p {p_text(float(p))})" for name, p in adjusted.items()}
    return {name: texts.get(name, "") for name in p_values}


def remarks(no_kl: Series, kl: Series) -> Iterator[tuple[int, str]]:
    """Yield a remark on every common step: who is ahead, who rises or falls, whose best or largest fall it is."""
    steps = [step for step in no_kl if step in kl]
    curves = {NO_KL: no_kl, KL: kl}
    best = {run: max(steps, key=lambda step, of=of: (of[step], -step)) for run, of in curves.items() if steps}  # type: ignore[misc]
    falls = {run: _largest_fall(of, steps) for run, of in curves.items()}
    for before, step in zip([None, *steps], steps, strict=False):
        gap = kl[step] - no_kl[step]
        parts = [f"{RUNS[KL if gap > 0 else NO_KL]} ahead" if gap else "equal"]
        if before is not None:
            signs = {run: (of[step] > of[before]) - (of[step] < of[before]) for run, of in curves.items()}
            parts += _moves(signs)
        parts += [f"best of {RUNS[run]}" for run in RUNS if best[run] == step]
        parts += [f"largest fall of {RUNS[run]}" for run in RUNS if falls[run] == step]
        yield step, "; ".join(parts)


def _moves(signs: Mapping[str, int]) -> list[str]:
    words = {1: "rise", -1: "fall"}
    if len(set(signs.values())) == 1:
        return [f"both {words[signs[KL]]}"] if signs[KL] else []
    return [f"{RUNS[run]} {words[sign]}s" for run, sign in signs.items() if sign]


def _largest_fall(curve: Series, steps: Sequence[int]) -> int | None:
    falls = {step: curve[before] - curve[step] for before, step in pairwise(steps)}
    worst = max(falls, key=lambda step: (falls[step], -step), default=None)
    return worst if worst is not None and falls[worst] > 0 else None
