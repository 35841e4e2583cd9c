"""What documents 003 and 004 say in prose of KL, pro and con, and when to use it; each answered by our runs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from lever_pipe.experiment.agent_config import SCHEDULES, WEIGHTS
from lever_pipe.report.agent.runs import MODES, AgentView, mean_of, p_cell, run_of, table_of, told
from lever_pipe.report.cells import Cell, Number, Series, Verdict, derived, say
from lever_pipe.report.evidence import ALPHA, EvidenceRow
from lever_pipe.report.table import Table, TableLine
from lever_pipe.statistics.curve_tests import paired_t

HELD_OUT = "held_out"
"""The primary endpoint."""
KL_SCHEDULE: Final = "kl_schedule"


@dataclass(frozen=True, slots=True)
class Saying:
    """A sentence of a document, and what of our runs answers it.

    Attributes:
        id: of the messages `advice.ID`.
        metric: endpoint of a run; empty where none answers.
        expected: sign of KL bundle minus no KL by which the sentence holds.
        step: where `metric` is the validation reward of one step.
        arms: which arms answer instead, by their difference to the reference arm.
        stated: published numbers that it rests on: run, metric and, of a step, which.
    """

    id: str
    metric: str = ""
    expected: Literal[-1, 1] = 1
    step: int | None = None
    arms: Literal["", "kl", "entropy", "schedule", "kl_schedule"] = ""
    stated: tuple[tuple[str, str] | tuple[str, str, int], ...] = ()


BEST, CHANGE = "best_val_reward", "max_abs_change_pct"
SAID = {
    "003": (
        Saying("drift", "kl_end", -1, stated=(("kl", "kl_loss", 1), ("kl", "kl_loss", 45))),
        Saying("entropy", "entropy_end", stated=(("kl", "entropy", 1), ("kl", "entropy", 45))),
        Saying("step_10", "reward", step=10),
        Saying("slower", stated=(("kl-nokl", "time_per_step_diff_s_min"), ("kl-nokl", "time_per_step_diff_s_max"))),
        Saying("limits", "best_value", -1, stated=(("kl", BEST, 40), ("nokl", BEST, 45), ("kl", f"{BEST}_stale", 10))),
        Saying("collapse", "drawdown", -1),
        Saying("coefficient", arms="kl"),
    ),
    "004": (
        Saying("stable", "sd_of_changes", -1, stated=(("kl", CHANGE), ("nokl", CHANGE))),
        Saying("fast", "best_step", -1, stated=(("kl", "steps_to_best"), ("nokl", "steps_to_best"))),
        Saying("resources", "steps_to_others_best", -1),
        Saying("production", HELD_OUT, stated=(("kl-nokl", f"{BEST}_diff_pct"),)),
        Saying("extreme", "best_value", -1, stated=(("nokl", BEST, 45), ("kl", BEST, 40))),
        Saying("repeats"),
        Saying("swings", "drawdown", -1, stated=(("nokl", "val_reward", 25),)),
        Saying("lower_entropy", arms="entropy"),
        Saying("schedule", arms="schedule"),
        Saying("staged", arms=KL_SCHEDULE),
    ),
}


def tables(view: AgentView) -> Iterator[Table]:
    """Yield the sentences of each document with their answers."""
    heads = ("document", "its_reason", "ours", "verdict")
    for document, sayings in SAID.items():
        lines = [TableLine((say(f"advice.{of.id}"), _reason(view, of), *_answered(view, of))) for of in sayings]
        yield table_of(f"{document}-advice", f"advice.title_{document}", heads, lines, notes=("advice.note",))


def _reason(view: AgentView, of: Saying) -> Cell:
    """Return why the document says so; nothing where the reference lacks a number of it."""
    rows = [_stated(view, *place) for place in of.stated]
    cells = [told(row) for row in rows]
    known = dict(zip("abc"[: len(cells)], cells, strict=True))
    return say(f"advice.{of.id}_published", **known) if all(cells) else None


def _stated(view: AgentView, run: str, metric: str, step: int | None = None) -> EvidenceRow | None:
    return view.stated(run, metric) if step is None else view.published(run, metric).get(step)


def _answered(view: AgentView, of: Saying) -> tuple[Cell, Cell]:
    answer = _of_arms(view, of.arms) if of.arms else None
    if answer is not None or of.arms not in ("", KL_SCHEDULE):
        return answer or say("advice.no_arm"), None
    found = [(mode, *_paired(view, of, mode)) for mode in ("", *MODES)]
    known = [(mode, numbers, p) for mode, numbers, p in found if numbers is not None]
    if not known:
        return say("advice.missing" if of.metric else f"advice.{of.id}_ours"), Verdict("advice.unjudged", "mute")
    texts = [_sentence(mode, numbers, p) for mode, numbers, p in known]
    verdicts = [(mode, _verdict(numbers[-1], of.expected, p)) for mode, numbers, p in known]
    if len({verdict for _, verdict in verdicts}) == 1:
        return Series(tuple(texts), "parts"), verdicts[0][1]
    parts = (say("advice.in_mode", mode=say(f"agent.{mode}"), verdict=verdict) for mode, verdict in verdicts)
    return Series(tuple(texts), "parts"), Series(tuple(parts), "parts")


def _paired(view: AgentView, of: Saying, mode: str) -> tuple[tuple[Number | None, ...] | None, float]:
    """Return an endpoint without KL, with KL, and their difference over common seeds, with its p."""
    tested = view.compared(view.config.document_arm, mode) if of.metric == HELD_OUT and mode else None
    if tested is not None:
        ends = [view.score(view.held_out(f"arm~{arm}", mode)) for arm in view.pair.values()]
        gap = view.difference(view.config.document_arm, mode)
        return (*(end.plain if end else None for end in ends), gap), tested.p_holm if tested.runs > 1 else math.nan
    common = view.common(*view.pair.values())
    sides = [[_row(view, arm, seed, of, mode) for seed in common] for arm in view.pair.values()]
    rows = [[row for row in side if row is not None and math.isfinite(row.value)] for side in sides]
    if not common or any(len(side) < len(common) for side in rows):
        return None, math.nan
    scale = view.scale if of.metric == HELD_OUT else 1.0
    values = [[scale * row.value for row in side] for side in rows]
    means, digits = [mean_of(side) for side in values], 1 if scale > 1 or "step" in of.metric else 3
    cells = [derived(mean, digits, side, "mean over common seeds") for mean, side in zip(means, rows, strict=True)]
    how = "KL minus no KL, mean over common seeds"
    difference = derived(means[1] - means[0], digits, [*rows[0], *rows[1]], how, sign=True)
    return (*cells, difference), paired_t(np.subtract(values[1], values[0]))[1]


def _row(view: AgentView, arm: str, seed: int, of: Saying, mode: str) -> EvidenceRow | None:
    run = run_of(arm, seed)
    if of.metric == HELD_OUT:
        return view.held_out(run, mode)
    if of.step is not None:
        return view.curve(run, mode).get(of.step) if mode else None
    return view.find(run, of.metric, mode=mode) if of.metric else None


def _sentence(mode: str, numbers: tuple[Number | None, ...], p: float) -> Cell:
    left, right, gap = numbers
    where = say(f"agent.{mode}") if mode else say("advice.training")
    text = "advice.compared" if math.isnan(p) else "advice.compared_p"
    return say(text, where=where, left=left, right=right, gap=gap, p=p_cell(p))


def _verdict(gap: Number | None, expected: int, p: float) -> Verdict:
    if gap is None or math.isnan(p):
        return Verdict("advice.one_seed", "mute")
    if p >= ALPHA:
        return Verdict("advice.open", "open")
    return Verdict("advice.holds", "yes") if gap.value * expected > 0 else Verdict("advice.reversed", "no")


def _of_arms(view: AgentView, factor: str) -> Cell:
    """Return what the arms that differ in one factor alone score against the reference arm, in each decoding, or None.

    A schedule of KL comes with its KL, and only rises: a small coefficient early, a larger one late.
    """
    base, keys = view.arm(view.reference), (*WEIGHTS, *SCHEDULES, "stop")
    texts = []
    for arm in view.arms:
        changed = {name for name in keys if getattr(arm, name) != getattr(base, name)}
        is_fit = changed == {factor}
        if factor == KL_SCHEDULE:
            is_fit = changed - {"kl"} == {factor} and arm.kl_schedule.kind in ("constant", "rising")
        gaps = [(mode, view.difference(arm.name, mode)) for mode in MODES] if is_fit else []
        parts = [say("advice.gap", where=say(f"agent.{mode}"), gap=gap) for mode, gap in gaps if gap is not None]
        texts += [say("advice.arm", arm=arm.name, gaps=parts)] if parts else []
    return Series(tuple(texts), "parts") if texts else None
