"""Identities that the logged numbers of the agent's runs must keep."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal
from itertools import product
from typing import Any

from lever_pipe.experiment.agent_config import Environment
from lever_pipe.report.agent.runs import MODES, STUDY, AgentView, run_of
from lever_pipe.report.cells import derived

LOST = ("simulator_failures", "environment_timeouts")
"""Metrics that count lost episodes."""
TOLERANCE = 1e-6
"""Relative, of means that are written with nine digits."""
IDENTITY_NAMES = {
    "tokens": "tokens of a step = episodes x mean length",
    "lengths": "prompt + response = sequence",
    "context": "no mean length exceeds the context",
    "ends": "the shares of all ends add up to 1",
    "grid": "every validation reward is a whole multiple of the reward's unit / episodes",
}


def says(view: AgentView) -> dict[str, Any]:
    """Return which identities hold or are broken, and how often simulator and environment failed in training."""
    outcome: dict[str, Any] = {"kept": [], "broken": []}
    for name, deviations in identities(view).items():
        outcome["kept" if max(deviations) <= TOLERANCE else "broken"].append(IDENTITY_NAMES[name])
    for name, metric in zip(("failures", "timeouts"), LOST, strict=True):
        rows = [view.find(f"arm~{arm.name}", metric, at="sum", subset="train") for arm in view.arms]
        measured = [row for row in rows if row is not None]
        total = math.fsum(row.runs * row.value for row in measured) if measured else math.nan
        outcome[name] = derived(total, 0, measured, "sum over runs")
    return outcome


def identities(view: AgentView) -> dict[str, Sequence[float]]:
    """Return of what must hold of all arms, as far as it is logged, the relative deviation wherever it is looked at."""
    gaps: dict[str, list[float]] = {"tokens": [], "lengths": [], "context": [], "ends": [], "grid": _off_grid(view)}
    limit = view.config.max_context
    for arm in (f"arm~{arm.name}" for arm in view.arms):
        names = ("tokens_total", "episodes", "sequence_length", "prompt_length", "response_length")
        series = [view.training(arm, name) for name in names]
        for step in sorted(set.intersection(*(set(curve) for curve in series))):
            total, episodes, length, prompt, response = (curve[step].value for curve in series)
            gaps["tokens"].append(_relative(episodes * length, total))
            gaps["lengths"].append(_relative(prompt + response, length))
            gaps["context"] += [max(0.0, length - limit) / limit] if limit else []
        logged = view.evidence.where(arm, study=STUDY, subset="train")
        kinds = sorted({row.metric for row in logged if row.metric.startswith("end_")})
        ends = [view.training(arm, kind) for kind in kinds]
        steps = set.intersection(*(set(curve) for curve in ends)) if ends else set()
        gaps["ends"] += [_relative(math.fsum(curve[step].value for curve in ends), 1.0) for step in steps]
    return {name: deviations for name, deviations in gaps.items() if deviations}


def reward_unit(environment: Environment) -> float:
    """Return what every turn's reward is a whole multiple of."""
    rewards, scale = environment.importance_reward, Decimal(str(environment.reward_scale))
    parts = [rewards.low, rewards.medium, rewards.high, environment.multi_detail_penalty]
    values = [Decimal(str(part)) * scale for part in parts] + [Decimal(str(environment.step_penalty))]
    values += [Decimal(1)] if environment.normalise_rewards else []
    digits = max(0, *(-int(value.normalize().as_tuple().exponent) for value in values))
    return float(math.gcd(*(int(value.scaleb(digits)) for value in values))) / float(10**digits)


def _off_grid(view: AgentView) -> list[float]:
    """Return how far each mean validation reward is from a whole multiple of the unit / episodes."""
    unit, gaps = reward_unit(view.config.environment), []
    runs = [run_of(arm, seed) for arm, seeds in view.seeds.items() for seed in seeds]
    for run, mode in product(runs, MODES):
        parts = [view.curve(run, mode, name) for name in ("reward", "n_tasks", "n_samples")]
        lost = [view.curve(run, mode, name) for name in LOST]
        for step in set.intersection(*(set(part) for part in parts)):
            if not any(step in curve and curve[step].value for curve in lost):  # such a task weighs as much as others
                multiple = math.prod(part[step].value for part in parts) / unit
                gaps.append(abs(multiple - round(multiple)) / max(1.0, multiple))
    return gaps


def _relative(left: float, right: float) -> float:
    return abs(left - right) / abs(right) if right else abs(left)
