"""Document 004: is the KL run worse, when is it best, step by step, how steady, who wins, and what it advises."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import scipy

from lever_pipe.report.agent.document_003 import by_step, steps_cell
from lever_pipe.report.agent.runs import (
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
    p_cell,
    sampled,
    separation,
    table_of,
    tested,
    told,
    values_of,
)
from lever_pipe.report.cells import Cell, Estimate, Series, derived, holm, level, minus, say
from lever_pipe.report.claims import flat_curves
from lever_pipe.report.table import Table, TableLine, Whose, beside
from lever_pipe.statistics.comparison import holm as holm_p
from lever_pipe.statistics.curves import drawdowns, f_test, paired_t

FEWEST = 5
"""Evaluations below which two curves are not compared."""
Values = Mapping[int, float]
STARS = {
    "nokl": "5 of 5 stars",
    "kl": "4 of 5 stars",
    "difference": "slightly lower, acceptable",
}
DIMENSION_NAMES = {
    "best": "Best reward",
    "best_step": "Step of the best reward",
    "stability": "Stability: sd of changes",
    "early": "Early: mean of steps 5 to 15",
    "middle": "Middle: range of steps 20 to 35",
    "late": "Late: mean of steps 40 and 45",
}
STEADINESS_TOLD = {
    "largest_change": "Largest change (%)",
    "sd_of_changes": "Standard deviation of changes",
    "total_variation": "Total variation",
    "sign_changes": "Sign changes",
    "drawdown": "Largest drawdown",
}
WINNERS = {
    "best": "no KL (KL {share} %)",
    "best_step": "KL bundle ({steps} steps)",
    "stability": "KL bundle",
    "early": "no KL",
    "middle": "KL bundle",
    "late": "no KL (KL {share} %)",
}


def tables(view: AgentView) -> Iterator[Table]:
    """Yield the document's tables in its order."""
    yield _answer(view)
    yield _steps_to_best(view)
    yield _step_by_step(view)
    yield _changes(view)
    yield _stability(view)
    yield _assessment(view)


def _answer(view: AgentView) -> Table:
    lines: list[TableLine] = []
    for pair in view.pairs:
        left, right, gap = pair.cells(best_value, REWARD_DIGITS, "largest value, mean over seeds")
        lines.append(_line("Best reward", pair, (left, right, _with_share(gap, left), None)))
    rating: list[Cell] = [say(STARS[name]) for name in PAIR]
    lines.append(TableLine((say("Rating"), say("published"), None, *rating, None), "published"))
    for pair in view.pairs:
        cells = pair.cells(_mean, REWARD_DIGITS, "mean over evaluations and seeds")
        p = _judged_p(view, pair, "004-insignificant") if pair.is_ours else p_cell(_paired_p(pair))
        lines.append(_line("Mean over evaluations", pair, (*cells, p)))
    arm = view.config.document_arm
    for mode in MODES:
        ends = [view.score(view.held_out(f"arm~{name}", mode)) for name in view.pair.values()]
        row = (say(mode), *ends, view.difference(arm, mode), holm(view.compared(arm, mode)))
        lines += beside((say("Held-out score, as the table of arms"),), row, []) if any(ends) else []
    heads = ("quantity", "source", "curve", *PAIR, "p")
    notes = (
        (
            "p: of the published pair a paired t test over evaluations, as if independent; of ours "
            "over paired seeds, greedy, none with one. The held-out endpoint has Holm p and 95 % "
            "intervals."
        ),
    )
    return table_of(
        "004-answer", "Is the KL run worse, or about the same?", heads, lines, lead=_verdicts(view), notes=notes
    )


def _line(name: str, pair: CurvePair, cells: Sequence[Cell]) -> TableLine:
    whose: Whose = "ours" if pair.is_ours else "published"
    return TableLine((say(name), say(whose), say(pair.mode), *cells), whose)


def _judged_p(view: AgentView, pair: CurvePair, claim: str) -> Estimate | None:
    """Return the p value of the claim about what a line shows: claims are judged greedily."""
    return view.p_of(claim) if pair.is_ours and pair.mode == "greedy" else None


def _with_share(gap: Estimate | None, whole: Estimate | None) -> Cell:
    if gap is None or whole is None or not whole.value:
        return gap
    share = replace(gap, value=100 * gap.value / whole.value, digits=1, how="percent")
    return say("{gap} ({share} %)", gap=gap, share=share)


def _verdicts(view: AgentView) -> Cell:
    """Return whether the two runs are told apart: the published curves, and ours in each decoding."""
    parts: list[Cell] = []
    for pair in view.pairs:
        judged = None if pair.is_ours else separation(_paired_p(pair))
        parts += [say("Published curves: {judged}.", judged=judged)] if judged is not None else []
    for mode in MODES:
        row = view.compared(view.config.document_arm, mode)
        if row is not None and not math.isnan(row.p_holm):
            judged = separation(row.p_holm, row.key) if row.runs > 1 else say("not shown with one seed")
            parts.append(
                say("Ours, held-out, {mode}: {gap}, {judged}.", mode=say(mode), gap=view.gap_of(row), judged=judged)
            )
    return Series(tuple(parts), "sentences") if parts else None


def _mean(curve: Values) -> float:
    return mean_of(curve.values())


def _gaps(pair: CurvePair) -> dict[int, float]:
    """Return KL minus no KL of the published pair by common step."""
    (no_kl,), (kl,) = pair.values(dict)
    return {step: value - no_kl[step] for step, value in kl.items() if step in no_kl}


def _paired_p(pair: CurvePair) -> float:
    gaps = list(_gaps(pair).values())
    return paired_t(gaps)[1] if len(gaps) >= FEWEST else math.nan


def _steps_to_best(view: AgentView) -> Table:
    lines = []
    found = [(pair, pair.cells(best_value, REWARD_DIGITS, "largest value, mean over seeds")) for pair in view.pairs]
    for index, run in enumerate(RUNS):
        for pair, best in found:
            lines.append(_line(RUN_NAMES[run], pair, (steps_cell(pair.values(best_step)[index]), best[index])))
    for pair, best in found:
        steps = pair.cells(best_step, 1 if pair.is_ours else 0, "step of the largest value, mean over seeds")
        lines.append(_line("Difference", pair, (steps[2], best[2])))
    heads = ("run", "source", "curve", "best_step", "best")
    notes = (
        say(
            (
                "Ours: the step of each seed in order; differences are means over seeds. Ours are "
                "evaluated every {every:step|steps}, the published runs every 5: no smaller difference "
                "can be seen."
            ),
            every=view.config.evaluation.every,
        ),
    )
    return table_of("004-steps-to-best", "Steps to the best reward", heads, lines, notes=notes)


def _step_by_step(view: AgentView) -> Table:
    measured = [view.published(run, "val_reward") for run in RUNS]
    theirs: dict[int, tuple[Cell, ...]] = {}
    for step in {step for of in measured for step in of}:
        left, right = (level(of.get(step), REWARD_DIGITS) for of in measured)
        theirs[step] = (left, right, minus(right, left))
    curves = (list(map(after_start, view.curves(mode))) for mode in MODES)
    own = next((dict(_remarks(*of)) for of in curves if all(of)), {})
    lines = by_step(view, theirs, own, dict(_remarks(*measured)))
    heads = ("step", "source", *PAIR, *sampled(PAIR), "remark")
    return table_of(
        "004-step-by-step",
        "Rewards step by step",
        heads,
        lines,
        notes=("Remarks are computed from the greedy curve of the row's source, untested.",),
    )


def _remarks(no_kl: Curve, kl: Curve) -> Iterator[tuple[int, Cell]]:
    """Yield a remark on every common step: who is ahead, who rises or falls, whose best or largest fall it is."""
    curves = {run: values_of(of) for run, of in zip(RUNS, (no_kl, kl), strict=True)}
    steps = [step for step in no_kl if step in kl]
    common = {run: {step: of[step] for step in steps} for run, of in curves.items()}
    falls = {run: _largest_fall(of) for run, of in common.items()}
    for before, step in pairwise([None, *steps]):
        assert step is not None
        gap = common[RUNS[1]][step] - common[RUNS[0]][step]
        parts = [_of_run("{run} ahead", RUNS[gap > 0]) if gap else say("equal")]
        if before is not None:
            signs = [(of[step] > of[before]) - (of[step] < of[before]) for of in common.values()]
            if signs[0] == signs[1]:
                parts += [say("both rise" if signs[0] > 0 else "both fall")] if signs[0] else []
            else:
                moves = zip(RUNS, signs, strict=True)
                parts += [_of_run("{run} rises" if sign > 0 else "{run} falls", run) for run, sign in moves if sign]
        parts += [_of_run("best of {run}", run) for run, of in common.items() if best_step(of) == step]
        parts += [_of_run("largest fall of {run}", run) for run in RUNS if falls[run] == step]
        yield step, Series(tuple(parts), "parts")


def _of_run(message: str, run: str) -> Cell:
    return say(message, run=say(RUN_NAMES[run]))


def _largest_fall(curve: Values) -> int | None:
    falls = {step: curve[before] - curve[step] for before, step in pairwise(curve)}
    worst = max(falls, key=lambda step: (falls[step], -step), default=None)
    return worst if worst is not None and falls[worst] > 0 else None


def _changes(view: AgentView) -> Table:
    own = [_changes_of(curve) for mode in MODES for curve in view.curves(mode)]
    said = [_changes_of(view.published(run, "val_reward")) for run in RUNS]
    lines: list[TableLine] = []
    for step in sorted({step for of in (*own, *said) for step in of}):
        ours, theirs = ([of.get(step) for of in side] for side in (own, said))
        lines += beside((str(step),), ours, [*theirs, None, None])
    heads = ("step", "source", *RUNS, *sampled(RUNS))
    return table_of(
        "004-changes",
        "Changes from evaluation to evaluation, in percent",
        heads,
        lines,
        notes=(
            (
                "Relative to the evaluation before; ours of the mean over seeds. The document begins "
                "behind step 10 and so leaves out the largest change of both runs."
            ),
        ),
    )


def _changes_of(curve: Curve) -> dict[int, Cell]:
    found: dict[int, Cell] = {}
    for step, before, row in ((step, curve[before], curve[step]) for before, step in pairwise(after_start(curve))):
        change = 100 * (row.value / before.value - 1) if before.value else None
        found |= {step: derived(change, 1, (row, before), "percent of the evaluation before", sign=True)}
    return found


def _differences(curve: Values) -> list[float]:
    return [after - before for before, after in pairwise(curve.values())]


def _sd_of_changes(curve: Values) -> float:
    changes = _differences(curve)
    return float(np.std(changes, ddof=1)) if len(changes) > 1 else math.nan


def _largest_change(curve: Values) -> float:
    shares = [abs(after / before - 1) for before, after in pairwise(curve.values()) if before]
    return 100 * max(shares, default=math.nan)


STEADINESS: Mapping[str, tuple[Measure, int]] = {
    "largest_change": (_largest_change, 1),
    "sd_of_changes": (_sd_of_changes, 4),
    "total_variation": (lambda curve: math.fsum(map(abs, _differences(curve))), 3),
    "sign_changes": (lambda curve: float(sum(a * b < 0 for a, b in pairwise(_differences(curve)))), 1),
    "drawdown": (lambda curve: float(drawdowns(np.array([list(curve.values())]))[0]), 3),
}


STEADINESS_CLAIMS = {"sd_of_changes": "004-more-stable", "drawdown": "004-drawdown"}
"""Which claim tests it."""


def _stability(view: AgentView) -> Table:
    lines = []
    for name, (measure, digits) in STEADINESS.items():
        for pair in view.pairs:
            cells: list[Cell] = list(pair.cells(measure, digits, f"{name}, mean over seeds")[:2])
            if name == "largest_change" and not pair.is_ours:
                stated = [level(view.stated(run, "max_abs_change_pct"), 1) for run in RUNS]
                both = zip(cells, stated, strict=True)
                cells = [
                    cell if said is None else say("{value} (printed: {said})", value=cell, said=said)
                    for cell, said in both
                ]
            p = _judged_p(view, pair, STEADINESS_CLAIMS.get(name, ""))
            lines.append(_line(STEADINESS_TOLD[name], pair, (*cells, p)))
    heads = ("statistic", "source", "curve", *RUNS, "p")
    return table_of(
        "004-stability",
        "Stability of training",
        heads,
        lines,
        notes=(
            (
                "Ours: mean over seeds of what each run shows; p is that of the claim about it, greedy, "
                "over seeds and adjusted for all claims. The published spread is tested in the "
                "assessment."
            ),
        ),
    )


def _within(first: int, last: int) -> Callable[[Values], list[float]]:
    return lambda curve: [value for step, value in curve.items() if first <= step <= last]


def _changes_p(pair: CurvePair) -> float:
    return _f_p(pair, _differences)


def _f_p(pair: CurvePair, of: Callable[[Values], list[float]]) -> float:
    (no_kl,), (kl,) = pair.values(of)
    return f_test(kl, no_kl) if min(len(kl), len(no_kl)) > 1 else math.nan


def _best_gap_p(pair: CurvePair) -> float:
    (no_kl,), (kl,) = pair.values(dict)
    return flat_curves(min(len(no_kl), len(kl))).chance_of_best_gap(abs(best_value(no_kl) - best_value(kl)))


def _window_p(window: Callable[[Values], list[float]]) -> Callable[[CurvePair], float]:
    """Return the t test of a mean over a few steps, with the standard deviation of all paired differences."""

    def p(pair: CurvePair) -> float:
        gaps = _gaps(pair)
        chosen = window(gaps)
        if not chosen or len(gaps) < 2:
            return math.nan
        error = float(np.std(list(gaps.values()), ddof=1)) / math.sqrt(len(chosen))
        return float(2 * scipy.special.stdtr(len(gaps) - 1, -abs(mean_of(chosen)) / error))

    return p


EARLY, MIDDLE, LATE = _within(5, 15), _within(20, 35), _within(40, 45)


def _middle_p(pair: CurvePair) -> float:
    return _f_p(pair, MIDDLE)


@dataclass(frozen=True, slots=True)
class Dimension:
    """A row of the assessment: what is compared, how the published pair is tested, and which claim tests ours."""

    name: str
    measure: Measure
    test: Callable[[CurvePair], float]
    claim: str = ""
    digits: int = 3


DIMENSIONS = (
    Dimension("best", best_value, _best_gap_p, "004-lower-best"),
    Dimension("best_step", best_step, lambda _: math.nan, "004-five-steps", 0),
    Dimension("stability", _sd_of_changes, _changes_p, "004-more-stable", 4),
    Dimension("early", lambda curve: mean_of(EARLY(curve)), _window_p(EARLY), "004-early"),
    Dimension("middle", lambda curve: float(np.ptp(MIDDLE(curve) or math.nan)), _middle_p, "004-middle-phase"),
    Dimension("late", lambda curve: mean_of(LATE(curve)), _window_p(LATE)),
)


def _assessment(view: AgentView) -> Table:
    found = [_tested(view, pair) for pair in view.pairs]
    sources = {"share": "best_val_reward_diff_pct", "steps": "steps_to_best_diff"}
    stated = {name: told(view.stated("kl-nokl", metric)) for name, metric in sources.items()}
    lines = []
    for dimension in DIMENSIONS:
        for verdicts, pair in zip(found, view.pairs, strict=True):
            cells: Sequence[Cell] = pair.cells(dimension.measure, dimension.digits, dimension.name)[:2]
            if None in cells:
                continue
            cells = list(map(steps_cell, pair.values(best_step))) if dimension.measure is best_step else cells
            winner = None if pair.is_ours else say(WINNERS[dimension.name], **stated)
            name = DIMENSION_NAMES[dimension.name]
            lines.append(_line(name, pair, (*cells, winner, verdicts.get(dimension.name))))
    heads = ("dimension", "source", "curve", *RUNS, "winner", "by_test")
    return table_of(
        "004-assessment",
        "Assessment: who wins",
        heads,
        lines,
        notes=(
            (
                "Published p is adjusted for its rows (Holm): chance that the best of two flat runs "
                "differ as much, F tests of changes and of the middle, t tests of early and late means. "
                "Ours: the test of the claim about it, greedy, over paired seeds and adjusted for all "
                "claims; one seed has none."
            ),
        ),
    )


def _tested(view: AgentView, pair: CurvePair) -> dict[str, Cell]:
    """Return the verdict on every dimension: of ours that of its claim, published ones adjusted for all (Holm)."""
    if pair.is_ours:
        return {of.name: tested(_judged_p(view, pair, of.claim)) for of in DIMENSIONS}
    found = {of.name: of.test(pair) for of in DIMENSIONS}
    known = {name: p for name, p in found.items() if not math.isnan(p)}
    adjusted = dict(zip(known, holm_p(list(known.values())), strict=True))
    verdicts: dict[str, Cell] = {name: separation(float(p)) for name, p in adjusted.items()}
    (left,), (right,) = pair.values(best_step)
    if abs(left - right) <= max(np.diff(list(pair.kl[0])), default=0):
        verdicts["best_step"] = say("not separated (one evaluation apart)")
    return verdicts
