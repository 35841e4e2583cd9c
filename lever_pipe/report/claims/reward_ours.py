"""Our side of the claims of documents 003 and 004: the runs of study `intention`, seed by seed.

The documents had one run each. Ours are judged in the same way, one pair of runs a seed, and after the start, at which
the documents evaluated nothing. A verdict stands where all seeds agree. The documents evaluated greedily, one episode a
task; of ours the kind of curve is judged that the primary endpoint has, so that it was fixed before the runs.

A sentence about a cause is judged by the arm that differs from the reference arm in just this cause, where one does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import pandas as pd

from lever_pipe.experiment.agent_config import Schedule
from lever_pipe.experiment.stage_configs import ClaimArm
from lever_pipe.report.claims.reward_runs import OVER_SEEDS_LEAD, SETTINGS, RewardRuns
from lever_pipe.report.claims.verdicts import Finding
from lever_pipe.report.tables.intention.agent_runs import MODES, SAMPLED, VAL, AgentRuns, Series, after_start, last_mean
from lever_pipe.report.tables.intention.curve_rows import noise_of
from lever_pipe.report.tables.intention.published import KL, NO_KL, REWARD
from lever_pipe.report.tables.intention.shown import ONE_SEED, UPPER_BOUND, schedule_text
from lever_pipe.report.tables.text import listing
from lever_pipe.statistics.curve_tests import FlatNoise

OUR_SETTINGS = {**SETTINGS, "learning_rate": "learning rate", "trajectory_score": "trajectory score"}
DIGITS = 3
"""As the documents print rewards."""
TRAINING = {
    "pg_loss": "pg_loss",
    "kl_loss": "kl",
    "entropy": "entropy",
    "grad_norm": "grad_norm",
    "mean_sequence_length_tokens_as_labelled": "sequence_length",
    "response_length_tokens": "response_length",
    "train_reward": "normalised_reward",
}
"""Names in the reference, and our metrics; the KL is that before the update, which every arm logs."""
RANGES = {
    "time_per_step_s": "seconds_step",
    "throughput_tokens_per_s": "tokens_per_second_per_device",
    "mfu": "mfu_update",
}
NO_COMMON_SEED = "The two arms have no seed in common."
MakeNoise = Callable[[int, float], FlatNoise]
"""From the evaluations of a curve and the standard error of one to flat curves."""


@dataclass(frozen=True)
class OurRewards:
    """Our runs for the claims of one document."""

    runs: AgentRuns
    arms: Sequence[ClaimArm]
    reference_arm: str
    document_arm: str
    mode: str
    document: str
    noise: MakeNoise
    noise_sd: float
    """Standard error of an evaluation where our runs do not tell it."""

    def judged(self, judge: Callable[[RewardRuns], Finding], cause: Collection[str] | None) -> Finding:
        """Return the finding on which all seeds agree, or that they do not; `cause` names settings, None any."""
        arm = self.document_arm if cause is None else self.arm_for(cause)
        found = {seed: judge(pair) for seed, pair in self.pairs(arm).items()}
        return together(found) if found else Finding("not testable", NO_COMMON_SEED)

    def arm_for(self, cause: Collection[str]) -> str:
        """Return the arm that differs from the reference arm in just these settings, of several the mildest.

        Without one it is the arm of the documents.
        """
        reference = _settings(self._arm(self.reference_arm))
        document = _settings(self._arm(self.document_arm))
        fitting = [
            arm
            for arm in self.arms
            if {name for name, value in _settings(arm).items() if value != reference[name]} == set(cause)
        ]
        alike = [arm for arm in fitting if all(_settings(arm)[name] == document[name] for name in cause)]
        return next((arm.name for arm in (*alike, *fitting)), self.document_arm)

    def pairs(self, arm: str) -> Mapping[int, RewardRuns]:
        """Return the pairs of an arm and the reference arm by common seed."""
        if arm not in self._pairs:
            common = self.runs.common_seeds(arm, self.reference_arm)
            self._pairs[arm] = {seed: self._pair(arm, seed) for seed in common}
        return self._pairs[arm]

    @cached_property
    def _pairs(self) -> dict[str, Mapping[int, RewardRuns]]:
        return {}

    def _pair(self, arm: str, seed: int) -> RewardRuns:
        names, mode = {NO_KL: self.reference_arm, KL: arm}, mode_of(self.runs, self.mode)
        columns = ["source_file", "run", "step", "metric", "value", "notes"]
        rows = [
            (self.document, run, step, metric, value, "")
            for run, name in names.items()
            for step, metric, value in _rows(self.runs, self._arm(name), seed, mode)
        ]
        curves = [after_start(self.runs.validation(name, seed, mode)) for name in names.values()]
        sd = noise_of(self.runs, tuple(names.values()), mode)
        n = len(set.intersection(*(set(curve) for curve in curves)))
        return RewardRuns(
            rows=pd.DataFrame(rows, columns=columns, dtype=str),
            document=self.document,
            noise=self.noise(max(2, n), self.noise_sd if math.isnan(sd) else sd),
            labels={run: f"`{name}`" for run, name in names.items()},
            settings=OUR_SETTINGS,
            seed_differences=self._differences(arm, mode),
            digits=DIGITS,
        )

    def _differences(self, arm: str, mode: str) -> tuple[float, ...]:
        """Return the mean reward after the start of an arm minus that of the reference arm, by common seed."""
        found = []
        for seed in self.runs.common_seeds(arm, self.reference_arm):
            of = [after_start(self.runs.validation(name, seed, mode)) for name in (arm, self.reference_arm)]
            found.append(last_mean(of[0], len(of[0])) - last_mean(of[1], len(of[1])))
        return tuple(found)

    def _arm(self, name: str) -> ClaimArm:
        return next(arm for arm in self.arms if arm.name == name)


def together(found: Mapping[int, Finding]) -> Finding:
    """Return the verdict that all seeds agree on, the verdict of each, and the numbers of the first that has any."""
    verdicts = {seed: finding.verdict for seed, finding in found.items()}
    reasons = {finding.numbers for finding in found.values()}
    if set(verdicts.values()) == {"not testable"} and len(reasons) == 1:
        return next(iter(found.values()))
    if len(set(found.values())) == 1 and next(iter(reasons)).startswith(OVER_SEEDS_LEAD):
        return next(iter(found.values()))
    first = next((seed for seed, verdict in verdicts.items() if verdict != "not testable"), next(iter(found)))
    agreed = set(verdicts.values())
    verdict = found[first].verdict if len(agreed) == 1 else "not supported"
    parts = [] if len(found) > 1 else [ONE_SEED]
    for name in dict.fromkeys(verdicts.values()) if len(found) > 1 else ():
        seeds = [seed for seed, of in verdicts.items() if of == name]
        parts.append(f"Seed{'s' * (len(seeds) > 1)} {listing(seeds)}: {name}.")
    return Finding(verdict, " ".join([*parts, f"Numbers of seed {first}.", found[first].numbers]))


def described(runs: AgentRuns, scale: str, reference_arm: str, document_arm: str, wanted: str) -> str:
    """Return the sentences that say which runs of ours are judged, and how."""
    seeds = listing(runs.common_seeds(document_arm, reference_arm))
    noise = "Noise of ours: the standard error of an evaluation on the same tasks."
    noise += f" {UPPER_BOUND}" if any(fact.engine == "native" for fact in runs.facts) else ""
    return (
        f"Ours: {scale}. Ours without KL: arm `{reference_arm}`; ours with the KL bundle: arm `{document_arm}`. "
        "A sentence about a cause: the arm that differs in just this cause, where there is one. "
        f"Ours are judged seed by seed ({seeds}) on the {mode_of(runs, wanted)} curve after the start; the published "
        "curves are greedy. "
        "A verdict stands where all seeds agree. "
        f"{noise}"
    )


def _settings(arm: ClaimArm) -> dict[str, str]:
    schedule = Schedule(kind=arm.schedule, warmup_steps=arm.warmup_steps)
    return {
        "kl_loss_coef": f"{arm.kl:g}",
        "entropy_coeff": f"{arm.entropy:g}",
        "lr_schedule": schedule_text(schedule),
        "learning_rate": f"{arm.learning_rate:g}",
        "trajectory_score": arm.trajectory_score,
    }


def mode_of(runs: AgentRuns, wanted: str) -> str:
    """Return the kind of curve that is judged: the wanted one, or the other where no run has it."""
    known = set(runs.rows.loc[runs.rows["split"] == VAL, "mode"])
    return wanted if wanted in known or not known else next(mode for mode in MODES if mode in known)


def _rows(runs: AgentRuns, arm: ClaimArm, seed: int, mode: str) -> Iterator[tuple[str, str, str]]:
    """Yield step, metric and value of a run under the names of the reference.

    Training metrics stand at the first step and at the evaluated ones, as the documents print them.
    """
    for name, value in _settings(arm).items():
        yield "", name, value
    curve = after_start(runs.validation(arm.name, seed, mode))
    yield from _series(REWARD, curve, curve)
    evaluated = {1, *curve}
    for name, metric in TRAINING.items():
        yield from _series(name, runs.training(arm.name, seed, metric), evaluated)
    shares = runs.validation(arm.name, seed, SAMPLED, "normalised_reward")
    yield from _series("val_reward_sampled", shares, evaluated)
    for name, metric in RANGES.items():
        values = runs.training(arm.name, seed, metric).values()
        if values:
            yield "", f"{name}_min", repr(min(values))
            yield "", f"{name}_max", repr(max(values))


def _series(name: str, series: Series, steps: Collection[int]) -> Iterator[tuple[str, str, str]]:
    for step, value in series.items():
        if step in steps:
            yield str(step), name, repr(value)
