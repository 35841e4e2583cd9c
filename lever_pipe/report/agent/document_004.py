"""Document 004: both runs compared, best steps, rewards by step, stability, assessment and recommendations."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lever_pipe.report.agent.document_003 import by_step, steps_cell
from lever_pipe.report.agent.runs import (
    BY_MODE,
    KL,
    MODES,
    NO_KL,
    PAIR,
    REWARD_DIGITS,
    RUN_NAMES,
    RUNS,
    AgentView,
    Curve,
    CurvePair,
    Measure,
    after_start,
    as_printed,
    best_step,
    best_value,
    mean_of,
    tested,
    values_of,
)
from lever_pipe.report.cells import Cell, Estimate, derived, holm, level, message, minus, p_value
from lever_pipe.report.claim_evaluation import pair_check
from lever_pipe.report.claims import MEASURES
from lever_pipe.report.table import SOURCE, Row, Table, framed, paired_rows
from lever_pipe.statistics.comparison import holm as holm_p

SECTION = "004"
Values = Mapping[int, float]
STARS = ("5 of 5 stars", "4 of 5 stars", "slightly lower, acceptable")
"""The document's ratings of both runs and of their difference."""


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


def _answer(view: AgentView) -> Iterator[Row]:
    for pair in view.pairs:
        cells = pair.cells(best_value, REWARD_DIGITS, "largest value, mean over seeds")
        left, _, gap = cells.values()
        yield pair.row("Quantity", "Best reward", {**cells, "Difference": _with_share(gap, left)})
    yield {"Quantity": "Rating", SOURCE: "published", **dict(zip(PAIR, STARS, strict=True))}
    for pair in view.pairs:
        cells = pair.cells(_mean, REWARD_DIGITS, "mean over evaluations and seeds")
        p = _p_of_claim(view, pair, "004-insignificant") if pair.is_ours else _published_p(pair, "mean")
        yield pair.row("Quantity", "Mean over evaluations", {**cells, "p": p})
    arm = view.config.document_arm
    for mode in MODES:
        ends = [view.score(view.held_out(f"arm~{name}", mode)) for name in view.pair.values()]
        row = {"Decoding": mode, **dict(zip(PAIR, (*ends, view.difference(arm, mode)), strict=True))}
        p = holm(view.compared(arm, mode))
        names = {"Quantity": "Held-out score, as the table of arms"}
        yield from paired_rows(names, row | {"p": p}, {}) if any(ends) else ()


def _p_of_claim(view: AgentView, pair: CurvePair, claim: str) -> Estimate | None:
    """Return the p value of the claim about a line; only greedy curves, because claims are evaluated on those."""
    is_evaluated = pair.is_ours and pair.mode == "greedy" and claim in view.evaluated_claims
    return view.evaluated_claims[claim].p if is_evaluated else None


def _with_share(gap: Estimate | None, whole: Estimate | None) -> Cell:
    if gap is None or whole is None or not whole.value:
        return gap
    share = replace(gap, value=100 * gap.value / whole.value, digits=1, how="percent")
    return message("{gap} ({share} %)", gap=gap, share=share)


def _verdicts(view: AgentView) -> dict[str, Any]:
    """Return whether tests separate the two runs: the published curves, and ours in each decoding."""
    rows = {mode: view.compared(view.config.document_arm, mode) for mode in MODES}
    published = next((tested(_published_p(pair, "mean")) for pair in view.pairs if not pair.is_ours), None)
    ours = [
        {
            "mode": mode,
            "gap": view.difference_cell(view.config.document_arm, mode),
            "evaluated": tested(holm(row)) if row.runs > 1 else "one seed cannot show it",
        }
        for mode, row in rows.items()
        if row is not None and not math.isnan(row.p_holm)
    ]
    return {"published": published, "ours": ours}


def _mean(curve: Values) -> float:
    return mean_of(curve.values())


def _published_p(pair: CurvePair, name: str, first: int = 0, last: float = math.inf) -> Estimate | None:
    """Return the p of a claim's measure on the two published curves, over the evaluations from `first` to `last`."""
    curves = {KL: pair.kl[0], NO_KL: pair.no_kl[0]}
    inside = [step for step in pair.kl[0] if step in pair.no_kl[0] and first <= step <= last]
    if len(inside) < 2:
        return None
    left, right = (_measure(name, first, last)(values_of(curve)) for curve in curves.values())
    p = pair_check(name, left - right, curves, inside).p
    return None if p is None else p_value(p)


def _measure(name: str, first: int = 0, last: float = math.inf) -> Measure:
    """Return a measure of claims over the evaluations from `first` to `last`; NaN for too few of them."""

    def measure(curve: Values) -> float:
        steps = [step for step in curve if first <= step <= last]
        values = np.array([curve[step] for step in steps])
        # The sd of changes needs two changes, so three evaluations.
        least = 3 if name == "sd_of_changes" else 1
        return float(MEASURES[name].compute(np.array(steps), values, ())) if len(steps) >= least else math.nan

    return measure


def _steps_to_best(view: AgentView) -> Iterator[Row]:
    bests = [(pair, pair.cells(best_value, REWARD_DIGITS, "largest value, mean over seeds")) for pair in view.pairs]
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
    published: dict[int, tuple[Cell, ...]] = {}
    for step in {step for curve in measured for step in curve}:
        left, right = (level(curve.get(step), REWARD_DIGITS) for curve in measured)
        published[step] = (left, right, minus(right, left))
    curves = (list(map(after_start, view.curves(mode))) for mode in MODES)
    remarks = next((dict(_remarks(*pair)) for pair in curves if all(pair)), {})
    return by_step(view, published, remarks, dict(_remarks(*measured)))


def _remarks(no_kl: Curve, kl: Curve) -> Iterator[tuple[int, Cell]]:
    """Yield a remark on every common step: the run ahead, rises and falls, the best steps and largest falls."""
    curves = {run: values_of(curve) for run, curve in zip(RUNS, (no_kl, kl), strict=True)}
    steps = [step for step in no_kl if step in kl]
    common = {run: {step: curve[step] for step in steps} for run, curve in curves.items()}
    falls = {run: _largest_fall(curve) for run, curve in common.items()}
    for before, step in pairwise([None, *steps]):
        assert step is not None
        gap = common[RUNS[1]][step] - common[RUNS[0]][step]
        parts = [_run_text("{run} ahead", RUNS[gap > 0]) if gap else "equal"]
        if before is not None:
            signs = [(curve[step] > curve[before]) - (curve[step] < curve[before]) for curve in common.values()]
            if signs[0] == signs[1]:
                parts += ["both rise" if signs[0] > 0 else "both fall"] if signs[0] else []
            else:
                moves = zip(RUNS, signs, strict=True)
                parts += [_run_text("{run} rises" if sign > 0 else "{run} falls", run) for run, sign in moves if sign]
        parts += [_run_text("best of {run}", run) for run, curve in common.items() if best_step(curve) == step]
        parts += [_run_text("largest fall of {run}", run) for run in RUNS if falls[run] == step]
        yield step, tuple(parts)


def _run_text(text: str, run: str) -> Cell:
    return message(text, run=RUN_NAMES[run])


def _largest_fall(curve: Values) -> int | None:
    falls = {step: curve[before] - curve[step] for before, step in pairwise(curve)}
    worst = max(falls, key=lambda step: (falls[step], -step), default=None)
    return worst if worst is not None and falls[worst] > 0 else None


def _changes(view: AgentView) -> Iterator[Row]:
    heads = [head for mode in MODES for head in BY_MODE[mode][:2]]
    measured = [_changes_of(curve) for mode in MODES for curve in view.curves(mode)]
    published = [_changes_of(view.published(run, "val_reward")) for run in RUNS]
    for step in sorted({step for changes in (*measured, *published) for step in changes}):
        left, right = ([changes.get(step) for changes in side] for side in (measured, published))
        yield from paired_rows(
            {"Step": str(step)}, dict(zip(heads, left, strict=True)), dict(zip(PAIR, right, strict=False))
        )


def _changes_of(curve: Curve) -> dict[int, Cell]:
    changes: dict[int, Cell] = {}
    for step, before, row in ((step, curve[before], curve[step]) for before, step in pairwise(after_start(curve))):
        change = 100 * (row.value / before.value - 1) if before.value else None
        changes |= {step: derived(change, 1, (row, before), "percent of the evaluation before", sign=True)}
    return changes


def _largest_change(curve: Values) -> float:
    shares = [abs(after / before - 1) for before, after in pairwise(curve.values()) if before]
    return 100 * max(shares, default=math.nan)


class Compared(NamedTuple):
    """A row of the tables of stability and assessment: its measure, its decimals, and the claim that tests ours."""

    how: str
    measure: Measure
    digits: int = 3
    claim: str = ""
    winner: str = ""
    """As the document prints it."""
    test: tuple[Any, ...] = ()
    """A claim's measure with the first and last step, for the test of the published pair."""


STEADINESS = {
    "Largest change (%)": Compared("largest_change", _largest_change, 1),
    "Standard deviation of changes": Compared("sd_of_changes", _measure("sd_of_changes"), 4, "004-more-stable"),
    "Total variation": Compared("total_variation", lambda curve: float(np.abs(_changes_in(curve)).sum())),
    "Sign changes": Compared("sign_changes", lambda curve: _turns(_changes_in(curve)), 1),
    "Largest drawdown": Compared("drawdown", _measure("drawdown"), 3, "004-drawdown"),
}
"""Rows of the table of stability."""


def _changes_in(curve: Values) -> NDArray[np.float64]:
    return np.diff(list(curve.values()))


def _turns(changes: NDArray[np.float64]) -> float:
    return float((changes[1:] * changes[:-1] < 0).sum())


def _stability(view: AgentView) -> Iterator[Row]:
    stated = {RUN_NAMES[run]: level(view.stated(run, "max_abs_change_pct"), 1) for run in RUNS}
    for called, row in STEADINESS.items():
        for pair in view.pairs:
            cells: dict[str, Cell] = dict(pair.cells(row.measure, row.digits, f"{row.how}, mean over seeds"))
            del cells["Difference"]
            if row.measure is _largest_change and not pair.is_ours:
                printed = {run: number for run, number in stated.items() if number is not None}
                cells |= {
                    run: message("{value} (printed: {printed})", value=cells[run], printed=cell)
                    for run, cell in printed.items()
                }
            yield pair.row("Statistic", called, {**cells, "p": _p_of_claim(view, pair, row.claim)})


def _dimension(how: str, claim: str, winner: str, digits: int, *test: Any) -> Compared:
    return Compared(how, _measure(*test), digits, claim, winner, test)


DIMENSIONS = {
    "Best reward": _dimension("best", "004-lower-best", "no KL (KL {share} %)", 3, "best"),
    "Step of the best reward": _dimension("best_step", "004-five-steps", "KL bundle ({steps} steps)", 0, "best_step"),
    "Stability: sd of changes": _dimension("stability", "004-more-stable", "KL bundle", 4, "sd_of_changes"),
    "Early: mean of steps 5 to 15": _dimension("early", "004-early", "no KL", 3, "mean", 5, 15),
    "Middle: range of steps 20 to 35": _dimension("middle", "004-middle-phase", "KL bundle", 3, "range", 20, 35),
    "Late: mean of steps 40 and 45": _dimension("late", "", "no KL (KL {share} %)", 3, "mean", 40, 45),
}
"""Rows of the assessment."""


def _assessment(view: AgentView) -> Iterator[Row]:
    evaluated = [_tested(view, pair) for pair in view.pairs]
    sources = {"share": "best_val_reward_diff_pct", "steps": "steps_to_best_diff"}
    stated = {name: as_printed(view.stated("kl-nokl", metric)) for name, metric in sources.items()}
    for called, row in DIMENSIONS.items():
        for verdicts, pair in zip(evaluated, view.pairs, strict=True):
            cells: dict[str, Cell] = dict(pair.cells(row.measure, row.digits, row.how))
            del cells["Difference"]
            if None in cells.values():
                continue
            if row.how == "best_step":
                cells = dict(zip(cells, map(steps_cell, pair.values(best_step)), strict=True))
            winner = None if pair.is_ours else message(row.winner, **stated)
            yield pair.row(
                "Dimension", called, {**cells, "Winner as printed": winner, "By the test": verdicts.get(called)}
            )


def _tested(view: AgentView, pair: CurvePair) -> dict[str, Cell]:
    """Return the verdict on every dimension: of our claims, or of published tests, adjusted for all of them (Holm)."""
    if pair.is_ours:
        return {called: tested(_p_of_claim(view, pair, row.claim)) for called, row in DIMENSIONS.items()}
    p_values = {called: _published_p(pair, *row.test) for called, row in DIMENSIONS.items()}
    values = {called: p.value for called, p in p_values.items() if p is not None}
    adjusted = zip(values, map(float, holm_p(list(values.values()))), strict=True)
    verdicts: dict[str, Cell] = {called: tested(p_value(p)) for called, p in adjusted}
    # The best steps are known only up to the distance between evaluations.
    (left,), (right,) = pair.values(best_step)
    if abs(left - right) <= max(np.diff(list(pair.kl[0])), default=0):
        verdicts["Step of the best reward"] = "not separated (one evaluation apart)"
    return verdicts
