"""Document 003: the run without KL against the KL bundle, ours beside the published numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from lever_pipe.experiment.agent_config import AgentArm
from lever_pipe.report.agent.runs import (
    MODES,
    PAIR,
    REWARD_DIGITS,
    RUN_NAMES,
    RUNS,
    AgentView,
    best_step,
    best_value,
    run_of,
    sampled,
    schedule_cell,
    seeds_cell,
    table_of,
    told,
    weight_cell,
)
from lever_pipe.report.cells import Cell, Code, Estimate, derived, gap, level, minus, say
from lever_pipe.report.evidence import EvidenceRow
from lever_pipe.report.table import Column, Table, TableLine, beside

SECTION = "003"
LOSSES = {
    "pg_loss": "pg_loss",
    "kl_loss": "kl_loss",
    "kl": "",
    "entropy_all": "entropy",
    "entropy": "",
    "grad_norm": "grad_norm",
}
"""The published metric by ours."""
LENGTH_STEPS = (5, 10)
"""At which the document gives lengths: of the run without KL at the former, of the other at the latter."""
LENGTHS = {
    "tokens_per_rank": ("mean_sequence_length_tokens_as_labelled", 0),
    "sequence_length": ("", 1),
    "response_length": ("response_length_tokens", 1),
    "agent_tokens": ("", 1),
    "turns": ("", 1),
}
COSTS = {
    "seconds_step": ("time_per_step_s", 2),
    "tokens_per_second_per_device": ("throughput_tokens_per_s", 0),
    "agent_tokens_per_second": ("", 0),
    "mfu_update": ("mfu", 3),
    "mfu_step": ("", 3),
}
"""The published metric by ours, and the decimals."""
PARTS = ("seconds_rollout", "seconds_simulator", "seconds_log_probs", "seconds_reference", "seconds_update")
TIMED = {
    "native": (
        "Smallest to largest of a step; ours without evaluations and checkpoints. Every arm of "
        "ours computes the reference's log-probabilities. No MFU without a known peak."
    ),
    "verl": "Smallest to largest of a step; steps with an evaluation or a checkpoint take longer.",
}
TRAJECTORY_SCORES = {
    "sum": "sum of turn rewards",
    "mean": "mean of turn rewards",
    "r2g": "discounted sum of turn rewards",
}
LENGTHS_TOLD = {
    "tokens_per_rank": "Tokens of a device and step",
    "sequence_length": "Mean sequence length",
    "response_length": "Response length",
    "agent_tokens": "Agent tokens",
    "turns": "Turns",
}
SETTINGS = {
    "model": "Model",
    "kl": "KL loss",
    "entropy": "Entropy coefficient",
    "learning_rate": "Learning rate",
    "schedule": "Learning-rate schedule",
    "group": "Responses a prompt",
    "prompts": "Prompts a step",
    "planned_steps": "Planned steps",
    "executed_steps": "Executed steps (published: stated)",
    "last_step": "Last evaluated step",
    "seeds": "Seeds",
    "score": "Trajectory score",
    "device": "Device",
}
LOSSES_TOLD = {
    "pg_loss": "PG loss",
    "kl_loss": "KL loss",
    "kl": "KL before the update",
    "entropy_all": "Entropy, all response tokens",
    "entropy": "Entropy, agent tokens",
    "grad_norm": "Gradient norm",
}
SPREADS = {
    "nokl": "fluctuates (no number)",
    "kl": "relatively stable (no number)",
}
COSTS_TOLD = {
    "seconds_step": "Seconds a step",
    "tokens_per_second_per_device": "Tokens a second and device",
    "agent_tokens_per_second": "Agent tokens a second",
    "mfu_update": "MFU of the update",
    "mfu_step": "MFU of the whole step",
    "seconds_rollout": "Rollout (% of the step)",
    "seconds_simulator": "Of this the simulator (% of the step)",
    "seconds_log_probs": "Log-probabilities of the policy (% of the step)",
    "seconds_reference": "Log-probabilities of the reference (% of the step)",
    "seconds_update": "Update (% of the step)",
}


def tables(view: AgentView) -> Iterator[Table]:
    """Yield the document's tables in its order."""
    yield _configuration(view)
    yield _rewards(view)
    yield _losses(view)
    yield _lengths(view)
    yield _efficiency(view)


def _configuration(view: AgentView) -> Table:
    ours = [_our_settings(view, view.arm(arm)) for arm in view.pair.values()]
    theirs = [_stated_settings(view, run) for run in RUNS]
    lines: list[TableLine] = []
    for name in ours[0]:
        sides = [[side.get(name) for side in of] for of in (ours, theirs)]
        known = [[cell or say("not stated") for cell in of] for of in sides]
        lines += beside((say(SETTINGS[name]),), known[0], known[1] if any(sides[1]) else [])
    arms = {run: Code(arm) for run, arm in view.pair.items()}
    notes = (
        say(
            (
                "Columns: no KL is our arm {nokl}, KL bundle our arm {kl}; ours are means over seeds. "
                "Greedy is the documents' decoding."
            ),
            **arms,
        ),
        ("The published runs differ in three settings at once: KL loss, entropy bonus and schedule. One run each."),
        "Published steps are stated ones; both curves end at step 45.",
    )
    return table_of(
        "003-configuration", "Configuration of the two runs", ("setting", "source", *RUNS), lines, notes=notes
    )


def _our_settings(view: AgentView, arm: AgentArm) -> dict[str, Cell]:
    grpo, run = view.config.grpo, run_of(arm.name, view.seeds[arm.name][0])
    model = next(study.model for study in view.material.config.studies if study.name == "intention")
    parameters = level(view.find(run, "n_parameters", at="run"), 0)
    device = view.find(run, "device", at="run")
    evaluated = [step for mode in MODES for step in view.curve(f"arm~{arm.name}", mode)]
    return {
        "model": say("{model}, {n} parameters", model=model, n=parameters) if parameters else model,
        "kl": _penalty(arm.kl and weight_cell(arm.kl, arm.kl_schedule)),
        "entropy": weight_cell(arm.entropy, arm.entropy_schedule),
        "learning_rate": f"{arm.learning_rate or grpo.learning_rate:g}",
        "schedule": schedule_cell(arm.schedule),
        "group": grpo.group,
        "prompts": grpo.prompts,
        "planned_steps": level(view.find(run, "planned_steps", at="run"), 0),
        "executed_steps": view.ended(arm.name),
        "last_step": str(max(evaluated)) if evaluated else None,
        "seeds": seeds_cell(view.seeds[arm.name]),
        "score": say(TRAJECTORY_SCORES[arm.trajectory_score or grpo.trajectory_score]),
        "device": device.printed if device is not None and device.printed else None,
    }


def _stated_settings(view: AgentView, run: str) -> dict[str, Cell]:
    penalised, gpus = view.stated(run, "use_kl_loss"), view.stated(run, "n_gpus")
    is_penalised = penalised is not None and penalised.printed == "True"
    measured = view.published(run, "val_reward")
    return {
        "model": told(view.stated(run, "model")),
        "kl": _penalty(told(view.stated(run, "kl_loss_coef")) if is_penalised else None),
        "entropy": told(view.stated(run, "entropy_coeff")),
        "learning_rate": told(view.stated(run, "lr")),
        "schedule": told(view.stated(run, "lr_schedule")),
        "group": told(view.stated(run, "rollout_n")),
        "executed_steps": told(view.stated(run, "total_steps_claimed")),
        "last_step": str(max(measured)) if measured else None,
        "device": say("{n} GPUs (by its folder's name)", n=told(gpus)) if gpus is not None else None,
    }


def _penalty(coefficient: Cell | float) -> Cell:
    return say("yes ({kl})", kl=coefficient) if coefficient else say("no")


def by_step(
    view: AgentView, theirs: Mapping[int, Iterable[Cell]], remarks: Mapping[int, Cell], said: Mapping[int, Cell]
) -> Iterator[TableLine]:
    """Yield the rewards of every step: ours greedy and sampled, then the published three, each with its remark."""
    curves = [view.curves(mode) for mode in MODES]
    steps = {step for of in curves for curve in of for step in curve}
    for step in sorted(steps | set(theirs)):
        cells: list[Cell] = []
        for of in curves:
            left, right = (level(curve.get(step), REWARD_DIGITS, interval=False) for curve in of)
            cells += [left, right, minus(right, left)]
        printed = (*theirs[step], None, None, None, said.get(step)) if step in theirs else ()
        yield from beside((str(step),), (*cells, remarks.get(step)), printed)


def _rewards(view: AgentView) -> Table:
    printed, estimated = (
        [view.published(run, metric, SECTION) for run in RUNS] for metric in ("val_reward", "val_reward_estimated")
    )
    differences = view.published("kl-nokl", "val_reward_diff", SECTION)
    theirs: dict[int, tuple[Cell, ...]] = {}
    for step in {step for of in (*printed, *estimated) for step in of}:
        sides = [_printed(known.get(step), guess.get(step)) for known, guess in zip(printed, estimated, strict=True)]
        change = gap(differences.get(step), REWARD_DIGITS)
        signed = None if change is None else replace(change, printed="")
        is_estimated = any(step in of for of in estimated)
        theirs[step] = (*sides, say("{value} (to an estimate)", value=signed) if is_estimated and signed else signed)
    lines = [*by_step(view, theirs, {}, {}), *_best_lines(view)]
    heads = ("step", "source", *PAIR, *sampled(PAIR), "remark")
    notes = (
        ("Estimates of document 003 are no measurements and enter no statistic; document 004 has the values."),
        (
            "Difference: KL bundle minus no KL. Best: ours the mean over common seeds of each run's "
            "largest value after the start, with the step of each seed."
        ),
        _start_note(view),
    )
    return table_of("003-validation-reward", "Validation reward by step", heads, lines, notes=notes)


def _printed(measured: EvidenceRow | None, estimate: EvidenceRow | None) -> Cell:
    found = level(measured, REWARD_DIGITS)
    return found if found or estimate is None else say("{value} (estimate)", value=level(estimate, REWARD_DIGITS))


def _best_lines(view: AgentView) -> Iterator[TableLine]:
    absent: tuple[Cell, ...] = (None, None, None)
    found: dict[tuple[bool, str], tuple[Cell, ...]] = {}
    for pair in view.pairs:
        *sides, difference = pair.cells(best_value, REWARD_DIGITS, "largest value, mean over seeds")
        both = zip(sides, pair.values(best_step), strict=True)
        cells = [say("{value} (step {steps})", value=value, steps=steps_cell(steps)) for value, steps in both]
        found[pair.is_ours, pair.mode] = (*cells, difference)
    ours = [cell for mode in MODES for cell in found.get((True, mode), absent)]
    theirs = (*found.get((False, "greedy"), absent), *absent, None)
    yield from beside((say("best"),), (*ours, None), theirs)


def steps_cell(steps: Iterable[float]) -> Cell:
    """Return the steps of several seeds in order, one where they agree, ∞ for one that is never reached."""
    texts = ["∞" if math.isinf(step) else f"{step:g}" for step in steps]
    return texts[0] if len(set(texts)) == 1 else " / ".join(texts)


def _start_note(view: AgentView) -> Cell:
    """Return how near its ceiling each kind of our curves starts, where the start was evaluated."""
    shares: list[Cell] = []
    for mode in MODES:
        run = run_of(view.reference, view.seeds[view.reference][0])
        start, top = (view.curve(run, mode, metric).get(0) for metric in ("reward", "ceiling"))
        if start is not None and top is not None and top.value > 0:
            share = derived(100 * start.value / top.value, 1, (start, top), "percent of the ceiling")
            shares.append(say("{value} % ({mode})", mode=say(mode), value=share))
    return say("Of the ceiling our curves start at {shares}.", shares=shares) if shares else None


def _losses(view: AgentView) -> Table:
    printed = {(run, name): view.published(run, name, SECTION) for name in LOSSES.values() if name for run in RUNS}
    ended = [view.find(run_of(arm, view.seeds[arm][0]), "executed_steps", at="run") for arm in view.pair.values()]
    stated = {step for of in printed.values() for step in of}
    steps = sorted(stated | {int(row.value) for row in ended if row is not None})
    lines: list[TableLine] = []
    for metric, name in LOSSES.items():
        for run, ours in zip(RUNS, view.trained(metric), strict=True):
            theirs = printed.get((run, name), {})
            left, right = [ours.get(step) for step in steps], [level(theirs.get(step), 3) for step in steps]
            names = (say(LOSSES_TOLD[metric]), say(RUN_NAMES[run]))
            lines += beside(names, [level(row, 3, interval=False) for row in left], right)
    at = (Column(say("Step {step}", step=str(step))) for step in steps)
    heads: tuple[str | Column, ...] = ("metric", "run", "source", *at)
    return table_of(
        "003-losses",
        "Losses, entropy and gradient norm at the printed steps",
        heads,
        lines,
        notes=(
            (
                "PG loss need not fall; its sign follows the lengths of episodes. KL loss: k3 to the "
                "start policy, unweighted. Published entropy counts tokens of user messages. Gradient "
                "norm: before clipping."
            ),
        ),
    )


def _lengths(view: AgentView) -> Table:
    lines: list[TableLine] = []
    for metric, (stated, digits) in LENGTHS.items():
        printed = [view.published(run, stated) for run in RUNS]
        for step in LENGTH_STEPS:
            ours = [level(of.get(step), digits, interval=False) for of in view.trained(metric)]
            said = [say("about {value}", value=level(of[step], 0)) if step in of else None for of in printed]
            lines += beside((say(LENGTHS_TOLD[metric]), str(step)), ours, said)
    for metric in LENGTHS:
        theirs = [say(SPREADS[run]) for run in RUNS] if metric == "tokens_per_rank" else []
        names = (say(LENGTHS_TOLD[metric]), say("sd over steps"))
        lines += beside(names, _over_steps(view, metric, "spread", 1), theirs)
    heads = ("quantity", "step", "source", *RUNS)
    return table_of(
        "003-lengths",
        "Lengths of sequences",
        heads,
        lines,
        notes=(
            (
                "The document calls the tokens of a device and step the mean sequence length; tokens a "
                "second times seconds gives the same number. It gives one number of each run, at "
                "different steps. Response length counts user messages."
            ),
        ),
    )


def _over_steps(view: AgentView, metric: str, at: str, digits: int) -> list[Estimate | None]:
    return [level(view.find(f"arm~{arm}", metric, at=at, subset="train"), digits) for arm in view.pair.values()]


def _efficiency(view: AgentView) -> Table:
    lines: list[TableLine] = []
    for metric, (stated, digits) in COSTS.items():
        ours = zip(*(_over_steps(view, metric, at, digits) for at in ("least", "most")), strict=True)
        theirs = ([level(view.stated(run, f"{stated}_{end}"), digits) for end in ("min", "max")] for run in RUNS)
        left, right = ([_range(*ends) for ends in side] for side in (ours, theirs))
        lines += beside((say(COSTS_TOLD[metric]),), left, right)
    wholes = _over_steps(view, "seconds_step", "sum", 1)
    for metric in PARTS:
        shares = list(map(_percent, _over_steps(view, metric, "sum", 1), wholes))
        lines += beside((say(COSTS_TOLD[metric]),), shares, [])
    notes = ("These numbers depend on the machine's load; no verdict counts them.", TIMED[view.config.engine])
    return table_of("003-efficiency", "Training efficiency", ("quantity", "source", *RUNS), lines, notes=notes)


def _range(low: Estimate | None, high: Estimate | None) -> Cell:
    return None if low is None or high is None else say("{low} to {high}", low=low, high=high)


def _percent(piece: Estimate | None, whole: Estimate | None) -> Estimate | None:
    if piece is None or whole is None or not whole.value:
        return None
    return derived(100 * piece.value / whole.value, 1, (piece, whole), "percent of the step")
