"""Document 004: both runs compared, best steps, rewards by step, stability, assessment and recommendations."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from lever_pipe.report.agent.document_003 import by_step, our_rewards, rewards, steps_cell
from lever_pipe.report.agent.runs import (
    BY_MODE,
    MODES,
    PAIR,
    RUN_NAMES,
    RUNS,
    AgentView,
    Curve,
    CurvePair,
    after_start,
    tested,
    values_of,
)
from lever_pipe.report.cells import Cell, Estimate, derived, holm, level, message, p_value
from lever_pipe.report.claims import EvaluatedClaim
from lever_pipe.report.measures import measured
from lever_pipe.report.table import SOURCE, Row, Table, framed, paired_rows
from lever_pipe.report.verdicts import OPEN
from lever_pipe.statistics.comparison import holm as holm_p

SECTION = "004"
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
    title = "What documents 003 and 004 say of KL, for and against, and when to use it"
    yield Table("advice", SECTION, title, framed(map(_advice, view.context.claims_of("advice"))))


def _answer(view: AgentView) -> Iterator[Row]:
    for pair in view.pairs:
        cells = pair.cells("best")
        left, _, gap = cells.values()
        yield pair.row("Quantity", "Best reward", {**cells, "Difference": _with_share(gap, left)})
    yield {"Quantity": "Rating", SOURCE: "published", **dict(zip(PAIR, STARS, strict=True))}
    for pair in view.pairs:
        cells = pair.cells("mean")
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
    bests = [(pair, pair.cells("best")) for pair in view.pairs]
    for index, run in enumerate(RUNS):
        for pair, best in bests:
            steps = steps_cell(pair.values("best_step")[index])
            yield pair.row("Run", RUN_NAMES[run], {"Step of the best": steps, "Best": best[RUN_NAMES[run]]})
    for pair, best in bests:
        apart = pair.cells("best_step", digits=int(pair.is_ours))
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
    remarks, worst = dict[int, Cell](), dict[str, int]()
    for run, curve in common.items():
        falls = {step: curve[before] - curve[step] for before, step in pairwise(curve)}
        # `max` returns the first of equal falls.
        if falls and (largest := max(falls, key=falls.__getitem__)) and falls[largest] > 0:
            worst[run] = largest
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
        parts += [
            _run_text("best of {run}", run) for run, curve in common.items() if measured("best_step", curve) == step
        ]
        parts += [_run_text("largest fall of {run}", run) for run in RUNS if worst.get(run) == step]
        remarks[step] = tuple(parts)
    return remarks


def _run_text(text: str, run: str) -> Cell:
    return message(text, run=RUN_NAMES[run])


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


def _stability(view: AgentView) -> Iterator[Row]:
    for each, pair, cells in _measures(view, "004-stability"):
        for run, metric, *_ in () if pair.is_ours else each.claim.stated:
            if (printed := level(view.stated(run, metric), 1)) is not None:
                both = {"value": cells[RUN_NAMES[run]], "printed": printed}
                cells[RUN_NAMES[run]] = message("{value} (printed: {printed})", **both)
        p = _p(view, pair, each.claim.claim) if pair.is_ours else None
        yield pair.row("Statistic", each.claim.quote, {**cells, "p": p})


def _assessment(view: AgentView) -> Iterator[Row]:
    # The published tests are adjusted for all rows (Holm).
    published = {each.claim.id: each.published.p for each in view.context.claims_of("004-assessment")}
    p_values = {name: p.value for name, p in published.items() if p is not None}
    adjusted = dict(zip(p_values, map(float, holm_p(list(p_values.values()))), strict=True))
    for each, pair, cells in _measures(view, "004-assessment"):
        if None in cells.values():
            continue
        if each.claim.measure == ("best_step",):
            cells = dict(zip(cells, map(steps_cell, pair.values("best_step")), strict=True))
        winner, by_test = None, tested(_p(view, pair, each.claim.claim))
        if not pair.is_ours:
            winner, by_test = each.published.numbers, _by_test(each, adjusted)
        yield pair.row("Dimension", each.claim.quote, {**cells, "Winner as printed": winner, "By the test": by_test})


def _measures(view: AgentView, table: str) -> Iterator[tuple[EvaluatedClaim, CurvePair, dict[str, Cell]]]:
    """Yield the sentences of a table with their measure of both runs, for every pair."""
    for each in view.context.claims_of(table):
        for pair in view.pairs:
            (name,), where = each.claim.measure, each.claim.where
            left, right, _ = pair.cells(name, *where[:1], *where[-1:]).values()
            yield each, pair, dict(zip(PAIR, (left, right), strict=False))


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
