"""Document 003: the run without KL against the KL bundle, with our numbers next to the published ones."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from lever_pipe.experiment.agent_training import AgentArm
from lever_pipe.report.agent.runs import (
    BY_MODE,
    MODES,
    PAIR,
    REWARD_DIGITS,
    RUN_NAMES,
    RUNS,
    AgentView,
    Curve,
    as_printed,
    run_of,
    schedule_cell,
    seeds_cell,
    weight_cell,
)
from lever_pipe.report.cells import Cell, derived, gap, level, message, minus
from lever_pipe.report.table import Row, Table, framed, paired_rows

SECTION = "003"
STATED = {
    "Model": "model",
    "Entropy coefficient": "entropy_coeff",
    "Learning rate": "lr",
    "Learning-rate schedule": "lr_schedule",
    "Responses a prompt": "rollout_n",
    "Executed steps (published: stated)": "total_steps_claimed",
}
"""Settings that the documents state as one value, and their published metrics."""
LOSSES = {
    "pg_loss": ("PG loss", "pg_loss"),
    "kl_loss": ("KL loss", "kl_loss"),
    "kl": ("KL before the update", ""),
    "entropy_all": ("Entropy, all response tokens", "entropy"),
    "entropy": ("Entropy, agent tokens", ""),
    "grad_norm": ("Gradient norm", "grad_norm"),
}
"""Name of each metric, and the published metric, if any."""
TRAJECTORY_SCORES = {
    "sum": "sum of turn rewards",
    "mean": "mean of turn rewards",
    "r2g": "discounted sum of turn rewards",
}
Columns = Mapping[str, Mapping[int, Cell]]
"""Cells by step, for each head."""


def tables(view: AgentView) -> Iterator[Table]:
    """Yield the document's tables in its order."""
    rows = framed(_configuration(view))
    yield Table("003-configuration", SECTION, "Configuration of the two runs", rows, facts=view.pair)
    rows = framed(_rewards(view))
    yield Table("003-validation-reward", SECTION, "Validation reward by step", rows, facts=_starts(view))
    yield Table("003-losses", SECTION, "Losses, entropy and gradient norm at the printed steps", framed(_losses(view)))


def _configuration(view: AgentView) -> Iterator[Row]:
    ours = [_our_settings(view, view.arm(arm)) for arm in view.pair.values()]
    published = [_stated_settings(view, run) for run in RUNS]
    for name in ours[0]:
        rows: list[Row] = []
        for runs in (ours, published):
            cells = [of_run.get(name) for of_run in runs]
            rows.append(
                dict(zip(PAIR[:2], [cell or "not stated" for cell in cells], strict=True)) if any(cells) else {}
            )
        yield from paired_rows({"Setting": name}, rows[0], rows[1])


def _our_settings(view: AgentView, arm: AgentArm) -> dict[str, Cell]:
    grpo, run = view.config.grpo, run_of(arm.name, view.seeds[arm.name][0])
    model = next(study.model for study in view.context.config.studies if study.name == "intention")
    parameters = level(view.find(run, "n_parameters", at="run"), 0)
    device = view.find(run, "device", at="run")
    evaluated = [step for mode in MODES for step in view.curve(f"arm~{arm.name}", mode)]
    return {
        "Model": message("{model}, {n} parameters", model=model, n=parameters) if parameters else model,
        "KL loss": _penalty(arm.kl and weight_cell(arm.kl, arm.kl_schedule)),
        "Entropy coefficient": weight_cell(arm.entropy, arm.entropy_schedule),
        "Learning rate": f"{arm.learning_rate or grpo.learning_rate:g}",
        "Learning-rate schedule": schedule_cell(arm.schedule),
        "Responses a prompt": grpo.group,
        "Prompts a step": grpo.prompts,
        "Planned steps": level(view.find(run, "planned_steps", at="run"), 0),
        "Executed steps (published: stated)": view.ended(arm.name),
        "Last evaluated step": str(max(evaluated)) if evaluated else None,
        "Seeds": seeds_cell(view.seeds[arm.name]),
        "Trajectory score": TRAJECTORY_SCORES[arm.trajectory_score or grpo.trajectory_score],
        "Device": device.printed if device is not None and device.printed else None,
    }


def _stated_settings(view: AgentView, run: str) -> dict[str, Cell]:
    penalised, gpus = view.stated(run, "use_kl_loss"), view.stated(run, "n_gpus")
    is_penalised = penalised is not None and penalised.printed == "True"
    measured = view.published(run, "val_reward")
    return {name: as_printed(view.stated(run, metric)) for name, metric in STATED.items()} | {
        "KL loss": _penalty(as_printed(view.stated(run, "kl_loss_coef")) if is_penalised else None),
        "Last evaluated step": str(max(measured)) if measured else None,
        "Device": message("{n} GPUs (by its folder's name)", n=as_printed(gpus)) if gpus is not None else None,
    }


def _penalty(coefficient: Cell | float) -> Cell:
    return message("yes ({kl})", kl=coefficient) if coefficient else "no"


def by_step(ours: Columns, published: Columns) -> Iterator[Row]:
    """Yield our row of every step and below it the published one."""
    for step in sorted({step for column in (*ours.values(), *published.values()) for step in column}):
        left, right = ({head: column.get(step) for head, column in side.items()} for side in (ours, published))
        yield from paired_rows({"Step": str(step)}, left, right)


def rewards(curves: Iterable[Curve], heads: Iterable[str], *, interval: bool = True) -> Columns:
    """Return the rewards of the run without KL, of the KL bundle, and their differences."""
    left, right = ({at: level(row, REWARD_DIGITS, interval=interval) for at, row in curve.items()} for curve in curves)
    differences = {step: minus(right.get(step), left.get(step)) for step in {**left, **right}}
    return dict(zip(heads, (left, right, differences), strict=True))


def our_rewards(view: AgentView) -> dict[str, Mapping[int, Cell]]:
    """Return the rewards of both arms in both decodings."""
    by_mode = (rewards(view.curves(mode), BY_MODE[mode], interval=False) for mode in MODES)
    return {head: column for columns in by_mode for head, column in columns.items()}


def _rewards(view: AgentView) -> Iterator[Row]:
    printed, estimated = (
        [view.published(run, metric, SECTION) for run in RUNS] for metric in ("val_reward", "val_reward_estimated")
    )
    sides = [
        {step: message("{value} (estimate)", value=level(row, REWARD_DIGITS)) for step, row in estimates.items()}
        | {step: level(row, REWARD_DIGITS) for step, row in curve.items()}
        for curve, estimates in zip(printed, estimated, strict=True)
    ]
    differences: dict[int, Cell] = {}
    for step, row in view.published("kl-nokl", "val_reward_diff", SECTION).items():
        # Without the printed text, the number shows its sign.
        number = gap(row, REWARD_DIGITS)
        signed = number and replace(number, printed="")
        is_estimated = signed and any(step in curve for curve in estimated)
        differences[step] = message("{value} (to an estimate)", value=signed) if is_estimated else signed
    yield from by_step(our_rewards(view), dict(zip(PAIR, (*sides, differences), strict=True)))
    best: dict[bool, dict[str, Cell]] = {True: {}, False: {}}
    for pair in view.pairs:
        left, right, difference = pair.cells("best").values()
        both = zip((left, right), pair.values("best_step"), strict=True)
        cells = [message("{value} (step {steps})", value=value, steps=steps_cell(steps)) for value, steps in both]
        best[pair.is_ours] |= dict(zip(BY_MODE[pair.mode], (*cells, difference), strict=True))
    yield from paired_rows({"Step": "best"}, best[True], best[False])


def steps_cell(steps: Iterable[float]) -> Cell:
    """Return the steps of several seeds in order, or one step if they agree; ∞ is a step that is never reached."""
    texts = ["∞" if math.isinf(step) else f"{step:g}" for step in steps]
    return texts[0] if len(set(texts)) == 1 else " / ".join(texts)


def _starts(view: AgentView) -> dict[str, Any]:
    """Return the share of the ceiling at which each kind of our curves starts, if the start was evaluated."""
    shares: list[Cell] = []
    for mode in MODES:
        run = run_of(view.reference, view.seeds[view.reference][0])
        start, top = (view.curve(run, mode, metric).get(0) for metric in ("reward", "ceiling"))
        if start is not None and top is not None and top.value > 0:
            share = derived(100 * start.value / top.value, 1, (start, top), "percent of the ceiling")
            shares.append(message("{value} % ({mode})", mode=mode, value=share))
    return {"shares": shares}


def _losses(view: AgentView) -> Iterator[Row]:
    printed = {(run, name): view.published(run, name, SECTION) for _, name in LOSSES.values() if name for run in RUNS}
    ended = [view.find(run_of(arm, view.seeds[arm][0]), "executed_steps", at="run") for arm in view.pair.values()]
    steps = {step for curve in printed.values() for step in curve} | {int(row.value) for row in ended if row}
    heads = {step: message("Step {step}", step=str(step)) for step in sorted(steps)}
    for metric, (called, name) in LOSSES.items():
        for run, ours in zip(RUNS, view.trained(metric), strict=True):
            published = printed.get((run, name), {})
            left = {head: level(ours.get(step), 3, interval=False) for step, head in heads.items()}
            right = {head: level(published.get(step), 3) for step, head in heads.items()}
            yield from paired_rows({"Metric": called, "Run": RUN_NAMES[run]}, left, right)
