"""Document 004: both runs compared, best steps, rewards by step, stability, assessment and recommendations."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lever_pipe.report.agent.document_003 import by_step, our_rewards, rewards, steps_cell
from lever_pipe.report.agent.runs import (
    BY_MODE,
    MODES,
    PAIR,
    REWARD_DIGITS,
    RUN_NAMES,
    RUNS,
    AgentView,
    Curve,
    CurvePair,
    Measure,
    after_start,
    best_step,
    best_value,
    mean_of,
    tested,
    values_of,
)
from lever_pipe.report.cells import Cell, Estimate, derived, holm, level, message, p_value
from lever_pipe.report.claims import EvaluatedClaim
from lever_pipe.report.measures import MEASURES
from lever_pipe.report.table import SOURCE, Row, Table, framed, paired_rows
from lever_pipe.report.verdicts import OPEN
from lever_pipe.statistics.comparison import holm as holm_p

SECTION = "004"
Values = Mapping[int, float]
STARS = ("5 of 5 stars", "4 of 5 stars", "slightly lower, acceptable")
"""The document's ratings of both runs and of their difference."""
LARGEST = "largest value, mean over seeds"


def tables(view: AgentView) -> Iterator[Table]:
    """Yield the document's tables in its order."""
    facts = _verdicts(view)
    yield Table("004-answer", SECTION, "Is the KL run worse, or about the same?", framed(_answer(view)), facts=facts)
    facts = {"every": view.config.evaluation.every}
    yield Table("004-steps-to-best", SECTION, "Steps to the best reward", framed(_steps_to_best(view)), facts=facts)
    yield Table("004-step-by-step", SECTION, "Rewards step by step", framed(_step_by_step(view)))
    title = "Changes from evaluation to evaluation, in percent"
    yield Table("004-changes", SECTION, title, framed(_changes(view)))
    yield Table("004-stability", SECTION, "Stability of training", framed(_stability(view)))
    yield Table("004-assessment", SECTION, "Assessment: who wins", framed(_assessment(view)))
    title = "What documents 003 and 004 say of KL, for and against, and when to use it"
    yield Table("advice", SECTION, title, framed(map(_advice, view.context.claims_of("advice"))))


def _answer(view: AgentView) -> Iterator[Row]:
    for pair in view.pairs:
        cells = pair.cells(best_value, REWARD_DIGITS, LARGEST)
        left, _, gap = cells.values()
        yield pair.row("Quantity", "Best reward", {**cells, "Difference": _with_share(gap, left)})
    yield {"Quantity": "Rating", SOURCE: "published", **dict(zip(PAIR, STARS, strict=True))}
    for pair in view.pairs:
        cells = pair.cells(lambda curve: mean_of(curve.values()), REWARD_DIGITS, "mean over evaluations and seeds")
        yield pair.row("Quantity", "Mean over evaluations", {**cells, "p": _p(view, pair, "004-insignificant")})
    arm = view.config.document_arm
    for mode in MODES:
        ends = [view.score(view.held_out(f"arm~{name}", mode)) for name in view.pair.values()]
        cells = dict(zip(PAIR, (*ends, view.difference(arm, mode)), strict=True))
        row = {"Decoding": mode, **cells, "p": holm(view.compared(arm, mode))}
        yield from paired_rows({"Quantity": "Held-out score, as the table of arms"}, row, {}) if any(ends) else ()


def _p(view: AgentView, pair: CurvePair, claim: str) -> Estimate | None:
    """Return the p value of the claim about a pair; ours only of greedy curves, as claims are evaluated."""
    evaluated = view.claims.get(claim)
    if evaluated is None or (pair.is_ours and pair.mode != "greedy"):
        return None
    return evaluated.ours.p if pair.is_ours else evaluated.published.p


def _with_share(gap: Estimate | None, whole: Estimate | None) -> Cell:
    if gap is None or whole is None or not whole.value:
        return gap
    share = replace(gap, value=100 * gap.value / whole.value, digits=1, how="percent")
    return message("{gap} ({share} %)", gap=gap, share=share)


def _verdicts(view: AgentView) -> dict[str, Any]:
    """Return whether tests separate the two runs: the published curves, and ours in each decoding."""
    rows = {mode: view.compared(view.config.document_arm, mode) for mode in MODES}
    ours = [
        {
            "mode": mode,
            "gap": view.difference_cell(view.config.document_arm, mode),
            "evaluated": tested(holm(row)) if row.runs > 1 else "one seed cannot show it",
        }
        for mode, row in rows.items()
        if row is not None and not math.isnan(row.p_holm)
    ]
    published = (tested(_p(view, pair, "004-insignificant")) for pair in view.pairs if not pair.is_ours)
    return {"published": next(published, None), "ours": ours}


def _steps_to_best(view: AgentView) -> Iterator[Row]:
    bests = [(pair, pair.cells(best_value, REWARD_DIGITS, LARGEST)) for pair in view.pairs]
    for index, run in enumerate(RUNS):
        for pair, best in bests:
            steps = steps_cell(pair.values(best_step)[index])
            yield pair.row("Run", RUN_NAMES[run], {"Step of the best": steps, "Best": best[RUN_NAMES[run]]})
    for pair, best in bests:
        apart = pair.cells(best_step, 1 if pair.is_ours else 0, "step of the largest value, mean over seeds")
        cells = {"Step of the best": apart["Difference"], "Best": best["Difference"]}
        yield pair.row("Run", "Difference", cells)


def _step_by_step(view: AgentView) -> Iterator[Row]:
    measured = [view.published(run, "val_reward") for run in RUNS]
    curves = (list(map(after_start, view.curves(mode))) for mode in MODES)
    ours = our_rewards(view) | {"Remark": next((_remarks(*pair) for pair in curves if all(pair)), {})}
    return by_step(ours, {**rewards(measured, PAIR), "Remark": _remarks(*measured)})


def _remarks(no_kl: Curve, kl: Curve) -> dict[int, Cell]:
    """Return a remark on every common step: the run ahead, rises and falls, the best steps and largest falls."""
    curves = {run: values_of(curve) for run, curve in zip(RUNS, (no_kl, kl), strict=True)}
    steps = [step for step in no_kl if step in kl]
    common = {run: {step: curve[step] for step in steps} for run, curve in curves.items()}
    falls = {run: _largest_fall(curve) for run, curve in common.items()}
    remarks: dict[int, Cell] = {}
    for before, step in zip([None, *steps], steps, strict=False):
        gap = common[RUNS[1]][step] - common[RUNS[0]][step]
        parts = [_run_text("{run} ahead", RUNS[gap > 0]) if gap else "equal"]
        if before is not None:
            signs = {run: int(np.sign(curve[step] - curve[before])) for run, curve in common.items()}
            if len({*signs.values()}) > 1:
                moves = {1: "{run} rises", -1: "{run} falls"}
                parts += [_run_text(moves[sign], run) for run, sign in signs.items() if sign]
            elif signs[RUNS[0]]:
                parts.append("both rise" if signs[RUNS[0]] > 0 else "both fall")
        parts += [_run_text("best of {run}", run) for run, curve in common.items() if best_step(curve) == step]
        parts += [_run_text("largest fall of {run}", run) for run in RUNS if falls[run] == step]
        remarks[step] = tuple(parts)
    return remarks


def _run_text(text: str, run: str) -> Cell:
    return message(text, run=RUN_NAMES[run])


def _largest_fall(curve: Values) -> int | None:
    falls = {step: curve[before] - curve[step] for before, step in pairwise(curve)}
    worst = max(falls, key=lambda step: (falls[step], -step), default=None)
    return worst if worst is not None and falls[worst] > 0 else None


def _changes(view: AgentView) -> Iterator[Row]:
    heads = [head for mode in MODES for head in BY_MODE[mode][:2]]
    measured = (_changes_of(curve) for mode in MODES for curve in view.curves(mode))
    published = (_changes_of(view.published(run, "val_reward")) for run in RUNS)
    return by_step(dict(zip(heads, measured, strict=True)), dict(zip(PAIR[:2], published, strict=True)))


def _changes_of(curve: Curve) -> dict[int, Cell]:
    changes: dict[int, Cell] = {}
    for before, (step, row) in pairwise(after_start(curve).items()):
        start = before[1]
        change = 100 * (row.value / start.value - 1) if start.value else None
        changes[step] = derived(change, 1, (row, start), "percent of the evaluation before", sign=True)
    return changes


def _measure(name: str, first: float = 0, last: float = math.inf) -> Measure:
    """Return a measure of claims over the evaluations from `first` to `last`; NaN for too few of them."""

    def measure(curve: Values) -> float:
        steps = [step for step in curve if first <= step <= last]
        values = np.array([curve[step] for step in steps])
        # The sd of changes needs two changes, so three evaluations.
        least = 3 if name == "sd_of_changes" else 1
        return float(MEASURES[name].compute(np.array(steps), values, ())) if len(steps) >= least else math.nan

    return measure


def _largest_change(curve: Values) -> float:
    shares = [abs(after / before - 1) for before, after in pairwise(curve.values()) if before]
    return 100 * max(shares, default=math.nan)


def _changes_in(curve: Values) -> NDArray[np.float64]:
    return np.diff(list(curve.values()))


def _turns(curve: Values) -> float:
    changes = _changes_in(curve)
    return float((changes[1:] * changes[:-1] < 0).sum())


class Steadiness(NamedTuple):
    """A row of the table of stability: its measure, its decimals, and the claim that tests ours."""

    how: str
    measure: Measure
    digits: int = 3
    claim: str = ""


STEADINESS = {
    "Largest change (%)": Steadiness("largest_change", _largest_change, 1),
    "Standard deviation of changes": Steadiness("sd_of_changes", _measure("sd_of_changes"), 4, "004-more-stable"),
    "Total variation": Steadiness("total_variation", lambda curve: float(np.abs(_changes_in(curve)).sum())),
    "Sign changes": Steadiness("sign_changes", _turns, 1),
    "Largest drawdown": Steadiness("drawdown", _measure("drawdown"), 3, "004-drawdown"),
}
"""Rows of the table of stability."""


def _stability(view: AgentView) -> Iterator[Row]:
    stated = {RUN_NAMES[run]: level(view.stated(run, "max_abs_change_pct"), 1) for run in RUNS}
    for called, row in STEADINESS.items():
        for pair in view.pairs:
            cells: dict[str, Cell] = dict(pair.cells(row.measure, row.digits, f"{row.how}, mean over seeds"))
            del cells["Difference"]
            if row.measure is _largest_change and not pair.is_ours:
                for run, printed in stated.items():
                    both = message("{value} (printed: {printed})", value=cells[run], printed=printed)
                    cells[run] = cells[run] if printed is None else both
            yield pair.row("Statistic", called, {**cells, "p": _p(view, pair, row.claim) if pair.is_ours else None})


def _assessment(view: AgentView) -> Iterator[Row]:
    dimensions = view.context.claims_of("004-assessment")
    # The published tests are adjusted for all rows (Holm).
    p_values = {each.claim.id: each.published.p.value for each in dimensions if each.published.p is not None}
    adjusted = dict(zip(p_values, map(float, holm_p(list(p_values.values()))), strict=True))
    for each in dimensions:
        claim = each.claim
        (name,), where = claim.measure, claim.where or (0, math.inf)
        digits = 0 if name == "best_step" else REWARD_DIGITS + (name == "sd_of_changes")
        for pair in view.pairs:
            cells: dict[str, Cell] = dict(pair.cells(_measure(name, where[0], where[-1]), digits, name))
            del cells["Difference"]
            if None in cells.values():
                continue
            if name == "best_step":
                cells = dict(zip(cells, map(steps_cell, pair.values(best_step)), strict=True))
            if pair.is_ours:
                further = {"Winner as printed": None, "By the test": tested(_p(view, pair, claim.claim))}
            else:
                further = {"Winner as printed": each.published.numbers, "By the test": _by_test(each, adjusted)}
            yield pair.row("Dimension", claim.quote, cells | further)


def _by_test(dimension: EvaluatedClaim, adjusted: Mapping[str, float]) -> Cell:
    """Return the verdict of a published test."""
    if dimension.claim.id in adjusted:
        return tested(p_value(adjusted[dimension.claim.id]))
    # Best steps are known only up to the distance between evaluations.
    return "not separated (one evaluation apart)" if dimension.published.verdict == OPEN else None


def _advice(each: EvaluatedClaim) -> Row:
    """Return a recommendation with its reason and our answer."""
    return {
        "In document": each.claim.document,
        "The document": each.claim.quote,
        "Its reason": each.published.numbers,
        "Ours": each.ours.numbers,
        "Verdict": each.ours.verdict,
    }
