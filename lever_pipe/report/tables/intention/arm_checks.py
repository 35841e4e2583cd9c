"""What backs the arms' numbers: identities that hold."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal
from typing import NamedTuple

from lever_pipe.experiment.agent_config import Environment
from lever_pipe.report.tables.intention import columns
from lever_pipe.report.tables.intention.agent_runs import MODES, AgentRuns
from lever_pipe.report.tables.intention.arms import SECTION
from lever_pipe.report.tables.intention.shown import Shown
from lever_pipe.report.tables.table import Table, frame_of
from lever_pipe.report.tables.text import number, sentences

RATE_TOLERANCE = 0.01
"""Of throughput times seconds: both are rounded and timed apart."""
SUM_TOLERANCE = 1e-6
"""Of sums of means that are written with nine digits."""


class Identity(NamedTuple):
    """A sentence that must hold of every step or evaluation, with the relative deviation of each."""

    name: str
    deviations: list[float]
    tolerance: float

    @property
    def held(self) -> int:
        """Return of how many it holds."""
        return sum(deviation <= self.tolerance for deviation in self.deviations)


def tables(shown: Shown) -> list[Table]:
    """Return the table of identities; none without any."""
    return [table for table in (_audit(shown),) if not table.frame.empty]


def _audit(shown: Shown) -> Table:
    checked = [identity for identity in identities(shown) if identity.deviations]
    rows = [
        {
            "Identity": identity.name,
            "Checked": str(len(identity.deviations)),
            "Held": str(identity.held),
            "Largest deviation (%)": number(100 * max(identity.deviations), 3),
        }
        for identity in checked
    ]
    broken = [identity for identity in checked if identity.held < len(identity.deviations)]
    verdict = (
        f"Broken: {len(broken)} of {len(checked)} identities."
        if broken
        else f"All {len(checked)} identities hold at every step and evaluation."
    )
    return Table(
        id="arms-audit",
        document=SECTION,
        title="Identities that the logged numbers must keep",
        caption=sentences(
            f"Ours: {shown.size}.",
            "Sums agree to 1e-4 %, rates to 1 %.",
            "The same questions to the published numbers are claims of document 003.",
        ),
        frame=frame_of(rows, ["Identity", "Checked", "Held", "Largest deviation (%)"]),
        lead=verdict if checked else "",
    )


def identities(shown: Shown) -> list[Identity]:
    """Return what must hold of the numbers of all runs."""
    runs = shown.runs
    return [
        Identity(
            "tokens of a step = episodes x mean sequence length",
            _over_steps(runs, ("tokens_total",), ("episodes", "sequence_length")),
            SUM_TOLERANCE,
        ),
        Identity("prompt + response length = sequence length", _lengths(runs), SUM_TOLERANCE),
        Identity(
            "tokens a second x seconds = tokens of a step",
            _over_steps(runs, ("tokens_total",), ("tokens_per_second", "seconds_step")),
            RATE_TOLERANCE,
        ),
        Identity(
            "tokens a second and device x seconds = tokens of a device",
            _over_steps(runs, ("tokens_per_rank",), ("tokens_per_second_per_device", "seconds_step")),
            RATE_TOLERANCE,
        ),
        Identity("mean sequence length within the context", _over_context(runs, shown.config.max_context), 0.0),
        Identity("the shares of all ends of an episode add up to 1", _ends(runs), SUM_TOLERANCE),
        Identity(
            "a validation reward is a whole multiple of the reward unit / episodes",
            _off_grid(shown.runs, reward_unit(shown.config.environment)),
            SUM_TOLERANCE,
        ),
    ]


def reward_unit(environment: Environment) -> float:
    """Return what every turn's reward is a whole multiple of."""
    rewards, scale = environment.importance_reward, Decimal(str(environment.reward_scale))
    parts = [rewards.low, rewards.medium, rewards.high, environment.multi_detail_penalty]
    values = [Decimal(str(part)) * scale for part in parts] + [Decimal(str(environment.step_penalty))]
    values += [Decimal(1)] if environment.normalise_rewards else []
    digits = max(0, *(-int(value.normalize().as_tuple().exponent) for value in values))
    whole = [int(value.scaleb(digits)) for value in values]
    return float(math.gcd(*whole)) / float(10**digits)


def _over_steps(runs: AgentRuns, left: Sequence[str], right: Sequence[str]) -> list[float]:
    """Return the relative deviation of a product of metrics from another one, at every step that has all."""
    found = []
    for fact in runs.facts:
        series = {name: runs.training(fact.arm, fact.seed, name) for name in (*left, *right)}
        steps = set.intersection(*(set(of) for of in series.values()))
        for step in sorted(steps):
            sides = [math.prod(series[name][step] for name in names) for names in (left, right)]
            found.append(_relative(*sides))
    return found


def _lengths(runs: AgentRuns) -> list[float]:
    found = []
    for fact in runs.facts:
        prompt, response, whole = (
            runs.training(fact.arm, fact.seed, name) for name in ("prompt_length", "response_length", "sequence_length")
        )
        found += [_relative(prompt[step] + response[step], whole[step]) for step in whole if step in prompt]
    return found


def _over_context(runs: AgentRuns, limit: int | None) -> list[float]:
    """Return by what share of the limit each step's mean sequence length exceeds it; nothing without a limit."""
    if not limit:
        return []
    lengths = [runs.training(fact.arm, fact.seed, "sequence_length") for fact in runs.facts]
    return [max(0.0, length - limit) / limit for of in lengths for length in of.values()]


def _ends(runs: AgentRuns) -> list[float]:
    names = sorted({str(name) for name in runs.rows["metric"] if str(name).startswith("end_")})
    found = []
    for fact in runs.facts:
        series = [runs.training(fact.arm, fact.seed, name) for name in names]
        steps = sorted(set.intersection(*(set(of) for of in series))) if series else []
        found += [_relative(math.fsum(of[step] for of in series), 1.0) for step in steps]
    return found


def _off_grid(runs: AgentRuns, unit: float) -> list[float]:
    found = []
    for fact in runs.facts:
        for mode in MODES:
            rewards, tasks, samples = (
                runs.validation(fact.arm, fact.seed, mode, name)
                for name in ("reward", columns.N_TASKS, columns.N_SAMPLES)
            )
            for step, reward in rewards.items():
                multiple = reward * tasks[step] * samples[step] / unit
                found.append(abs(multiple - round(multiple)) / max(1.0, multiple))
    return found


def _relative(left: float, right: float) -> float:
    return abs(left - right) / abs(right) if right else abs(left)
