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
    as_printed,
    best_step,
    best_value,
    run_of,
    schedule_cell,
    seeds_cell,
    weight_cell,
)
from lever_pipe.report.cells import Cell, derived, gap, level, message, minus
from lever_pipe.report.evidence import EvidenceRow
from lever_pipe.report.table import Row, Table, framed, paired_rows

SECTION = "003"
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


def tables(view: AgentView) -> Iterator[Table]:
    """Yield the document's tables in its order."""
    yield Table(
        "003-configuration", SECTION, "Configuration of the two runs", framed(_configuration(view)), facts=view.pair
    )
    yield Table(
        "003-validation-reward", SECTION, "Validation reward by step", framed(_rewards(view)), facts=_starts(view)
    )
    yield Table("003-losses", SECTION, "Losses, entropy and gradient norm at the printed steps", framed(_losses(view)))


def _both(cells: Iterable[Cell]) -> dict[str, Cell]:
    """Return cells of the run without KL and of the KL bundle by their heads; without cells an empty mapping."""
    return dict(zip(PAIR, cells, strict=False))


def _configuration(view: AgentView) -> Iterator[Row]:
    ours = [_our_settings(view, view.arm(arm)) for arm in view.pair.values()]
    published = [_stated_settings(view, run) for run in RUNS]
    for name in ours[0]:
        sides = ([side.get(name) for side in runs] for runs in (ours, published))
        left, right = (_both(cell or "not stated" for cell in cells) if any(cells) else {} for cells in sides)
        yield from paired_rows({"Setting": name}, left, right)


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
    return {
        "Model": as_printed(view.stated(run, "model")),
        "KL loss": _penalty(as_printed(view.stated(run, "kl_loss_coef")) if is_penalised else None),
        "Entropy coefficient": as_printed(view.stated(run, "entropy_coeff")),
        "Learning rate": as_printed(view.stated(run, "lr")),
        "Learning-rate schedule": as_printed(view.stated(run, "lr_schedule")),
        "Responses a prompt": as_printed(view.stated(run, "rollout_n")),
        "Executed steps (published: stated)": as_printed(view.stated(run, "total_steps_claimed")),
        "Last evaluated step": str(max(measured)) if measured else None,
        "Device": message("{n} GPUs (by its folder's name)", n=as_printed(gpus)) if gpus is not None else None,
    }


def _penalty(coefficient: Cell | float) -> Cell:
    return message("yes ({kl})", kl=coefficient) if coefficient else "no"


def by_step(
    view: AgentView, published: Mapping[int, Iterable[Cell]], remarks: Mapping[int, Cell], notes: Mapping[int, Cell]
) -> Iterator[Row]:
    """Yield the rewards of every step: ours (greedy and sampled) with `remarks`, and published ones with `notes`."""
    curves = {mode: view.curves(mode) for mode in MODES}
    steps = {step for pair in curves.values() for curve in pair for step in curve}
    for step in sorted(steps | set(published)):
        ours: dict[str, Cell] = {}
        for mode, pair in curves.items():
            left, right = (level(curve.get(step), REWARD_DIGITS, interval=False) for curve in pair)
            ours |= dict(zip(BY_MODE[mode], (left, right, minus(right, left)), strict=True))
        printed = dict(zip(PAIR, published.get(step, ()), strict=False))
        yield from paired_rows(
            {"Step": str(step)}, ours | {"Remark": remarks.get(step)}, printed | {"Remark": notes.get(step)}
        )


def _rewards(view: AgentView) -> Iterator[Row]:
    printed, estimated = (
        [view.published(run, metric, SECTION) for run in RUNS] for metric in ("val_reward", "val_reward_estimated")
    )
    differences = view.published("kl-nokl", "val_reward_diff", SECTION)
    published: dict[int, tuple[Cell, ...]] = {}
    for step in {step for curve in (*printed, *estimated) for step in curve}:
        sides = [_printed(curve.get(step), guess.get(step)) for curve, guess in zip(printed, estimated, strict=True)]
        change = gap(differences.get(step), REWARD_DIGITS)
        # Without the printed text, the number shows its sign.
        signed = None if change is None else replace(change, printed="")
        is_estimated = any(step in curve for curve in estimated)
        published[step] = (
            *sides,
            message("{value} (to an estimate)", value=signed) if is_estimated and signed else signed,
        )
    yield from by_step(view, published, {}, {})
    best: dict[bool, dict[str, Cell]] = {True: {}, False: {}}
    for pair in view.pairs:
        left, right, difference = pair.cells(best_value, REWARD_DIGITS, "largest value, mean over seeds").values()
        both = zip((left, right), pair.values(best_step), strict=True)
        cells = [message("{value} (step {steps})", value=value, steps=steps_cell(steps)) for value, steps in both]
        best[pair.is_ours] |= dict(zip(BY_MODE[pair.mode], (*cells, difference), strict=True))
    yield from paired_rows({"Step": "best"}, best[True], best[False])


def _printed(measured: EvidenceRow | None, estimate: EvidenceRow | None) -> Cell:
    number = level(measured, REWARD_DIGITS)
    return number if number or estimate is None else message("{value} (estimate)", value=level(estimate, REWARD_DIGITS))


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
