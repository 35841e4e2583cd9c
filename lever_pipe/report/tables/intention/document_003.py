"""Document 003: the run without KL against the KL bundle: set-up, rewards by step, losses, lengths, efficiency."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lever_pipe.experiment.agent_config import AgentArm
from lever_pipe.report.tables.intention import published as theirs
from lever_pipe.report.tables.intention.agent_runs import GREEDY, MODES, SAMPLED, Series
from lever_pipe.report.tables.intention.document_003_costs import efficiency, lengths
from lever_pipe.report.tables.intention.pairs import CurvePair, curve_pairs
from lever_pipe.report.tables.intention.published import DIFFERENCE, KL, NO_KL, RUNS
from lever_pipe.report.tables.intention.run_measures import best_step, ceiling
from lever_pipe.report.tables.intention.shown import (
    Shown,
    change_text,
    reward_text,
    schedule_text,
    seeds_text,
    steps_listed,
)
from lever_pipe.report.tables.table import Table, frame_of
from lever_pipe.report.tables.text import listing, number, sentences

DOCUMENT = "003"
NOT_STATED = "not stated"
STATED_STEPS = "Stated steps (document: trained)"
LITTLE_ROOM = "Our greedy curves start near their ceiling, which leaves little room to rise."
NEAR_CEILING = 80.0
"""Percent of the ceiling from which a start is called near it."""
SCORES = {"sum": "the sum", "mean": "the mean", "r2g": "the discounted sum"}
REWARD_COLUMNS = (*RUNS.values(), "Difference")
SAMPLED_COLUMNS = tuple(f"{column}, sampled" for column in REWARD_COLUMNS)
Cells = Mapping[str, str]


def tables(shown: Shown) -> list[Table]:
    """Return the document's tables in its order."""
    return [_configuration(shown), _rewards(shown), _losses(shown), lengths(shown), efficiency(shown)]


def _configuration(shown: Shown) -> Table:
    ours = {run: _our_settings(shown, shown.arm(arm)) for run, arm in shown.pair.items()}
    stated = {run: _stated_settings(shown, run) for run in RUNS}
    scores = dict.fromkeys(SCORES[of["Trajectory score"]] for of in ours.values())
    rows: list[dict[str, str]] = []
    for name in ours[NO_KL]:
        rows.append({"Setting": name, "Source": shown.source, **{RUNS[run]: ours[run][name] for run in RUNS}})
        cells = {RUNS[run]: stated[run].get(name, NOT_STATED) for run in RUNS}
        rows.append({"Setting": name, "Source": theirs.SOURCE, **cells})
        if name == "Planned steps":
            cells = {RUNS[run]: stated[run][STATED_STEPS] for run in RUNS}
            rows.append({"Setting": STATED_STEPS, "Source": theirs.SOURCE, **cells})
    return Table(
        id="003-configuration",
        document=DOCUMENT,
        title="Configuration of the two runs",
        caption=sentences(
            shown.origin(),
            "The published runs differ in three settings at once: KL loss, entropy bonus and learning-rate schedule.",
            "The published steps are stated ones; both published curves end at step 45.",
            f"Training compares the episodes of a task by their trajectory score, ours by {listing(scores)} of the "
            "turn rewards, the published runs by one that is not stated; validation adds up the turn rewards in all.",
        ),
        frame=frame_of(rows, ["Setting", "Source", *RUNS.values()]),
    )


def _our_settings(shown: Shown, arm: AgentArm) -> dict[str, str]:
    grpo, fact = shown.config.grpo, shown.runs.fact(arm.name, shown.runs.seeds(arm.name)[0])
    return {
        "Model": shown.size,
        "KL loss": _kl_text(arm.kl),
        "Entropy coefficient": f"{arm.entropy:g}",
        "Learning rate": f"{arm.learning_rate or grpo.learning_rate:g}",
        "Learning-rate schedule": schedule_text(arm.schedule),
        "Responses a prompt": str(grpo.group),
        "Prompts a step": str(grpo.prompts),
        "Planned steps": str(fact.planned_steps),
        "Executed steps": str(fact.executed_steps),
        "Last evaluated step": str(max(_curve(shown, arm.name, GREEDY) or _curve(shown, arm.name, SAMPLED) or [0])),
        "Training seeds": seeds_text(shown.runs.seeds(arm.name)),
        "Trajectory score": arm.trajectory_score or grpo.trajectory_score,
        "Devices": fact.device or NOT_STATED,
    }


def _stated_settings(shown: Shown, run: str) -> dict[str, str]:
    published = shown.published
    penalised = published.text(run, "use_kl_loss") == "True"
    found = {
        "Model": published.text(run, "model"),
        "KL loss": _kl_text(float(published.text(run, "kl_loss_coef") or 0) if penalised else 0.0),
        "Entropy coefficient": published.text(run, "entropy_coeff"),
        "Learning rate": published.text(run, "lr"),
        "Learning-rate schedule": published.text(run, "lr_schedule"),
        "Responses a prompt": published.text(run, "rollout_n"),
        STATED_STEPS: published.text(run, "total_steps_claimed"),
        "Last evaluated step": str(max(published.measured(run), default="")),
        "Devices": f"{published.text(run, 'n_gpus')} GPUs (by its folder's name)",
    }
    return {name: value or NOT_STATED for name, value in found.items()}


def _kl_text(coefficient: float) -> str:
    return f"yes (coefficient {coefficient:g})" if coefficient else "no"


def _curve(shown: Shown, arm: str, mode: str) -> Series:
    return shown.runs.mean_validation(arm, mode)


def _rewards(shown: Shown) -> Table:
    ours = {mode: {run: _curve(shown, arm, mode) for run, arm in shown.pair.items()} for mode in MODES}
    at = {step for of in ours.values() for curve in of.values() for step in curve}
    printed = {run: shown.published.series(run, theirs.REWARD, DOCUMENT) for run in RUNS}
    estimated = {run: shown.published.series(run, theirs.ESTIMATE, DOCUMENT) for run in RUNS}
    differences = shown.published.series(DIFFERENCE, theirs.REWARD_DIFFERENCE, DOCUMENT)
    stated = {step for of in (*printed.values(), *estimated.values()) for step in of}
    rows: list[dict[str, str]] = []
    for step in sorted(at | stated):
        if step in at:
            rows.append({"Step": str(step), "Source": shown.source, **our_rewards(ours, step)})
        if step in stated:
            cells = {RUNS[run]: _stated(printed[run], estimated[run], step) for run in RUNS}
            is_estimated = any(step in of for of in estimated.values())
            remark = " (to an estimate)" if is_estimated and step in differences else ""
            said = change_text(float(differences[step])) + remark if step in differences else ""
            rows.append({"Step": str(step), "Source": theirs.SOURCE, **cells, "Difference": said})
    rows += _best_rows(shown)
    return Table(
        id="003-validation-reward",
        document=DOCUMENT,
        title="Validation reward by step",
        caption=sentences(
            shown.origin(),
            shown.mode_names,
            "Difference: KL bundle minus no KL.",
            "In document 003 an estimate is no measurement: it enters no statistic, and document 004 has the values.",
            "Best: the largest value and its step; ours the mean over the common seeds of each run's best after the "
            "start, with the step of each seed in order.",
            _start_text(shown),
        ),
        frame=frame_of(rows, ["Step", "Source", *REWARD_COLUMNS, *SAMPLED_COLUMNS]),
    )


def our_rewards(ours: Mapping[str, Mapping[str, Series]], step: int) -> dict[str, str]:
    """Return our cells of one step: both runs and their difference, greedy and sampled."""
    cells: dict[str, str] = {}
    for mode, names in ((GREEDY, REWARD_COLUMNS), (SAMPLED, SAMPLED_COLUMNS)):
        values = [ours[mode][run].get(step) for run in RUNS]
        known = [value for value in values if value is not None]
        texts = [reward_text(value) if value is not None else "" for value in values]
        gap = change_text(known[1] - known[0]) if len(known) == 2 else ""
        cells |= dict(zip(names, (*texts, gap), strict=True))
    return cells


def _best_rows(shown: Shown) -> list[dict[str, str]]:
    """Return ours, then the published best values with their steps, as document 004 has them."""
    published, *ours = curve_pairs(shown)
    cells: dict[str, str] = {}
    for pair in ours:
        cells |= _best_cells(pair, REWARD_COLUMNS if pair.mode == GREEDY else SAMPLED_COLUMNS)
    rows = [{"Step": "best", "Source": shown.source, **cells}] if cells else []
    return [*rows, {"Step": "best", "Source": theirs.SOURCE, **_best_cells(published, REWARD_COLUMNS)}]


def _best_cells(pair: CurvePair, names: Sequence[str]) -> dict[str, str]:
    best, steps = pair.means(lambda curve: max(curve.values())), pair.values(best_step)
    texts = [f"{reward_text(best[run])} ({_steps_text(steps[run])})" for run in RUNS]
    return dict(zip(names, (*texts, change_text(best[KL] - best[NO_KL])), strict=True))


def _steps_text(steps: Sequence[float]) -> str:
    return f"step{'s' * (len(set(steps)) > 1)} {steps_listed(steps, 0)}"


def _start_text(shown: Shown) -> str:
    """Return how near its ceiling each kind of our curves starts, where the start was evaluated."""
    arm = shown.config.reference_arm
    shares: dict[str, float] = {}
    for mode in (GREEDY, SAMPLED):
        start = _curve(shown, arm, mode).get(0)
        top = ceiling(shown.runs, arm, shown.runs.seeds(arm)[0], mode)
        if start is not None and top > 0:
            shares[mode] = 100 * start / top
    parts = [f"{mode} {number(share, 1)} %" for mode, share in shares.items()]
    return sentences(
        f"Share of the ceiling at step 0, ours: {', '.join(parts)}." if parts else "",
        LITTLE_ROOM if shares.get(GREEDY, 0.0) >= NEAR_CEILING else "",
    )


def _stated(printed: Mapping[int, str], estimated: Mapping[int, str], step: int) -> str:
    return printed.get(step) or (f"{estimated[step]} (estimate)" if step in estimated else "")


LOSSES = (
    ("PG loss", "pg_loss", "pg_loss"),
    ("KL loss", "kl_loss", "kl_loss"),
    ("KL before the update", "kl", ""),
    ("Entropy, all response tokens", "entropy_all", "entropy"),
    ("Entropy, agent tokens", "entropy", ""),
    ("Gradient norm", "grad_norm", "grad_norm"),
)
"""Name of a row, our metric, and the published one."""


def _losses(shown: Shown) -> Table:
    printed = {
        (run, theirs_name): shown.published.series(run, theirs_name, DOCUMENT)
        for _, _, theirs_name in LOSSES
        for run in RUNS
        if theirs_name
    }
    last = {fact.executed_steps for fact in shown.runs.facts if fact.arm in shown.pair.values()}
    at = sorted({step for of in printed.values() for step in of} | last)
    rows: list[dict[str, str]] = []
    for name, metric, theirs_name in LOSSES:
        for run, arm in shown.pair.items():
            series = shown.runs.mean_training(arm, metric)
            ours = {f"Step {step}": number(series[step], 3) for step in at if step in series}
            said = printed.get((run, theirs_name), {})
            key = {"Metric": name, "Run": RUNS[run]}
            rows += [{**key, "Source": shown.source, **ours}] if ours else []
            stated = {f"Step {step}": number(float(value), 3) for step, value in said.items()}
            rows += [{**key, "Source": theirs.SOURCE, **stated}] if said else []
    return Table(
        id="003-losses",
        document=DOCUMENT,
        title="Losses, entropy and gradient norm at the printed steps",
        caption=sentences(
            shown.origin(),
            "The document prints other steps of one run than of the other.",
            "PG loss: the clipped policy loss; it need not fall, and its sign follows the lengths of the episodes.",
            "KL loss: k3 to the start policy inside the update, unweighted.",
            "Entropy as published counts the tokens of user messages, too.",
            "Gradient norm: before clipping.",
        ),
        frame=frame_of(rows, ["Metric", "Run", "Source", *(f"Step {step}" for step in at)]),
    )
