"""What every table of study `intention` is made of, and how it names runs, arms and scales."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from lever_pipe.experiment.agent_config import AgentArm, Schedule
from lever_pipe.experiment.agent_stage_configs import TabulateAgentsConfig
from lever_pipe.report.tables.intention.agent_runs import AgentRuns
from lever_pipe.report.tables.intention.arm_comparisons import ArmComparisonRow
from lever_pipe.report.tables.intention.found import Found
from lever_pipe.report.tables.intention.published import KL, NO_KL, RUNS, SET_UP, PublishedAgents
from lever_pipe.report.tables.text import ABSENT, bracketed, listing, number, sentences, signed

REWARD_DIGITS = 3
"""As the documents print rewards."""
ONE_SEED = "No inference about training variance: one seed."
ONE_PUBLISHED_RUN = "One published run each."
SHARED_DRAWS = "Every evaluation of ours draws the same random numbers, whatever step or arm, so values share noise."
UPPER_BOUND = "Evaluations of ours share random numbers, so this is an upper bound."
GREEDY_IS_THEIRS = "Greedy evaluation is the documents' metric: the mean over tasks of the sum of the turn rewards."


class Given(NamedTuple):
    """What the statistics of the published curves take as given."""

    ceiling: float
    reward_unit: float
    noise_sd: float
    """Modelled error of one published evaluation on other tasks."""
    same_tasks_sd: float
    """The same on the same tasks, as all published evaluations are."""


@dataclass(frozen=True)
class Shown:
    """Our runs, what was found about them, and the published ones."""

    config: TabulateAgentsConfig
    runs: AgentRuns
    found: Found
    published: PublishedAgents
    given: Given
    held_out: tuple[int, int] | None = None
    """Held-out tasks, and those that hide what a trained one of their category hides; None where that is not known."""

    @property
    def pair(self) -> dict[str, str]:
        """Return the arms that stand beside the documents' runs, by the names of these."""
        return {NO_KL: self.config.reference_arm, KL: self.config.document_arm}

    @property
    def source(self) -> str:
        """Return how a row says that its numbers are ours, and of which scale they are."""
        where = "embedded world" if self.config.is_world else self.config.scale
        size = f"{self.n_parameters / 1e9:.2f} B" if self.n_parameters >= 1e9 else f"{self.n_parameters / 1e6:.2f} M"
        return f"ours ({where}, {size})" if self.n_parameters else f"ours ({where})"

    @property
    def size(self) -> str:
        """Return which model on which tasks, with its number of parameters where it is known."""
        return f"{self.config.scale}, {self.n_parameters:,} parameters" if self.n_parameters else self.config.scale

    @property
    def n_parameters(self) -> int:
        """Return the parameters of the policy; 0 where the engine does not say."""
        return max((fact.n_parameters for fact in self.runs.facts), default=0)

    def arm(self, name: str) -> AgentArm:
        """Return an arm's settings."""
        return next(arm for arm in self.config.arms if arm.name == name)

    def seed_differences(self, row: ArmComparisonRow) -> list[float]:
        """Return the difference of a comparison by common seed."""
        seeds = self.runs.common_seeds(row.arm, row.reference)
        sides = [self.found.by_seed(arm, row.endpoint, seeds) for arm in (row.arm, row.reference)]
        return [left - right for left, right in zip(*sides, strict=True)]

    def origin(self, *, is_beside_published: bool = True) -> str:
        """Return the sentences that say whose numbers the columns of the documents' tables hold."""
        columns = [
            f"Column {RUNS[run]}: our arm `{arm}`, {seeds_text(self.runs.seeds(arm))}."
            for run, arm in self.pair.items()
        ]
        published = sentences(SET_UP, ONE_PUBLISHED_RUN) if is_beside_published else ""
        return sentences(f"Ours: {self.size}.", *columns, self.averaging(*self.pair.values()), published)

    def averaging(self, *arms: str) -> str:
        """Return that numbers are means over seeds, or that one seed allows no inference."""
        counts = [len(self.runs.seeds(arm)) for arm in arms]
        mean = "Mean over seeds." if max(counts) > 1 else ""
        return sentences(mean, ONE_SEED if max(counts) == 1 else "")

    @property
    def shares_draws(self) -> bool:
        """Return whether all evaluations draw the same random numbers, as those of our own trainer do."""
        return self.config.engine == "native"

    @property
    def mode_names(self) -> str:
        """Return the sentence about the two kinds of evaluation."""
        return sentences(
            GREEDY_IS_THEIRS,
            f"Sampled: {self.config.evaluation.samples} rollouts a task at the training temperature.",
            SHARED_DRAWS if self.shares_draws else "",
        )


def seeds_text(seeds: Sequence[int]) -> str:
    """Return `seed 0` or `seeds 0, 1 and 2`."""
    return f"seed{'s' * (len(seeds) > 1)} {listing(seeds)}"


def schedule_text(schedule: Schedule) -> str:
    """Return a schedule of the learning rate in words."""
    then = {"constant": "fixed", "cosine": "cosine"}[schedule.kind]
    return f"warm-up of {schedule.warmup_steps} steps, then {then}" if schedule.warmup_steps else then


def reward_text(value: float) -> str:
    """Return a reward as the documents print it."""
    return number(value, REWARD_DIGITS)


def change_text(value: float) -> str:
    """Return a difference of rewards with its sign."""
    return signed(value, REWARD_DIGITS)


def with_interval(text: str, low: float, high: float, digits: int) -> str:
    """Return a number with its interval, or alone where there is none."""
    return text if not text or math.isnan(low) else bracketed(text, low, high, digits)


def steps_listed(steps: Sequence[float], last: int) -> str:
    """Return the steps of several seeds as `10 / 10 / 45`, one where they agree; an absent cell of unknown ones.

    A step that is not reached within the `last` one stands as `>45`.
    """
    texts = ["?" if math.isnan(step) else f">{last}" if math.isinf(step) else f"{step:g}" for step in steps]
    if set(texts) == {"?"}:
        return ABSENT
    return texts[0] if len(set(texts)) == 1 else " / ".join(texts)
