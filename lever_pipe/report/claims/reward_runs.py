"""The runs that documents 003 and 004 compare: rewards by step, and what is stated about each run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from lever_pipe.report.cells import Cell, Code, say
from lever_pipe.report.claims.quantities import Quantity, average, decimals_of, printed
from lever_pipe.report.claims.verdicts import NotTestable, lacking
from lever_pipe.report.evidence import Evidence, EvidenceRow
from lever_pipe.statistics.curve_tests import CurveComparison, FlatNoise, compare_curves
from lever_pipe.statistics.curves import CurveStatistics, curve_statistics

NO_KL, KL, DIFFERENCE = "nokl", "kl", "kl-nokl"
RUNS = (NO_KL, KL)
REWARD = "val_reward"
FURTHER = ("kl_schedule", "entropy_schedule", "stop")
SETTINGS = ("kl_loss_coef", "entropy_coeff", "lr_schedule", "learning_rate", "trajectory_score", *FURTHER)
"""Settings that two runs may differ in; of the published ones the last five are not stated."""
COMPARED = ("kl_loss_coef",)
"""The settings that the runs are named by, so that they are what is compared and not what differs beside it."""
FEWEST = 5
"""Evaluations below which a curve has no statistics."""
DIGITS = 3
"""As the documents print rewards."""
LARGE = 100.0
"""Logged numbers from here on are shown without decimals: tokens and their rates."""
VALIDATED = "val_reward_sampled"
"""Of ours: sampled normalised validation reward; nothing of the kind is published."""
TRAINING = {
    "pg_loss": "pg_loss",
    "kl_loss": "kl",
    "entropy": "entropy",
    "mean_sequence_length_tokens_as_labelled": "sequence_length",
    "response_length_tokens": "response_length",
    "train_reward": "normalised_reward",
}
"""Names in the reference, and our metrics; the KL is that before the update, which every arm logs."""
MakeNoise = Callable[[int, float], FlatNoise]
"""From the evaluations of a curve and the standard error of one to flat curves."""


@dataclass(frozen=True)
class RewardRuns:
    """Two runs, the published ones or two arms of ours: of one seed, or the mean over several.

    Attributes:
        evidence: holds their numbers.
        document: which one quotes the published numbers.
        make_noise: simulates flat curves.
        noise_sd: standard error of a published evaluation.
        arms: of ours, by the name of the published run that it stands beside; empty for the published runs.
        seeds: of ours, those that both arms have.
        mode: which validation curve of ours is judged.
        settings: of ours by run.
    """

    evidence: Evidence
    document: str
    make_noise: MakeNoise
    noise_sd: float
    arms: Mapping[str, str] = field(default_factory=dict)
    seeds: tuple[int, ...] = ()
    mode: str = ""
    settings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def is_print(self) -> bool:
        """Return whether the runs are the printed ones."""
        return not self.arms

    def of_seed(self, seed: int) -> RewardRuns:
        """Return the runs of one seed."""
        return replace(self, seeds=(seed,))

    def label(self, run: str) -> Cell:
        """Return what a reader calls a run."""
        return Code(self.arms[run]) if self.arms else say(f"claims.run.{'no_kl' if run == NO_KL else 'bundle'}")

    def lacking(self, why: str, /, **args: object) -> NotTestable:
        """Return why a claim cannot be asked; what is not printed is not stated of ours."""
        return lacking(why, **args) if self.is_print else lacking("none_of_ours")

    @cached_property
    def noise(self) -> FlatNoise:
        """Return flat curves of as many evaluations."""
        return self.make_noise(max(2, len(self._common)), self.noise_sd)

    @cached_property
    def steps(self) -> NDArray[np.float64]:
        """Return [N] the steps at which every run was measured; fewer than `FEWEST` are no curve."""
        if len(self._common) < FEWEST:
            raise lacking("few_rewards", least=FEWEST)
        return np.array(self._common, dtype=np.float64)

    def rewards(self, run: str) -> NDArray[np.float64]:
        """Return [N] the measured rewards of a run."""
        return np.array([self.measured[run][int(step)].value for step in self.steps], dtype=np.float64)

    def reward(self, run: str, step: int) -> Quantity:
        """Return a measured reward."""
        found = self.measured[run].get(step)
        if found is None:
            raise lacking("no_reward", run=self.label(run), step=step)
        return found

    def change(self, run: str, step: int) -> Quantity:
        """Return how far a run's reward lies above that of the evaluation before, evaluated in either run."""
        grid = sorted({at for name in RUNS for at in self.measured[name]} | {step})
        at = grid.index(step)
        if not at:
            raise lacking("none_before", step=step)
        return self.reward(run, step) - self.reward(run, grid[at - 1])

    def curve(self, run: str) -> CurveStatistics:
        """Return the statistics of a run's measured rewards, which many claims ask for."""
        if run not in self._curves:
            self._curves[run] = curve_statistics(self.steps, self.rewards(run))
        return self._curves[run]

    @cached_property
    def _curves(self) -> dict[str, CurveStatistics]:
        return {}

    def of(self, value: float, digits: int, how: str, *runs: str, sign: bool = False) -> Quantity:
        """Return what the rewards of runs, of both if none is named, give by a statistic."""
        keys = dict.fromkeys(key for run in runs or RUNS for each in self.measured[run].values() for key in each.of)
        return Quantity(value, digits, of=tuple(keys), how=how, sign=sign)

    @cached_property
    def comparison(self) -> CurveComparison:
        """Return the comparison of the KL bundle minus no KL."""
        return compare_curves(self.rewards(KL), self.rewards(NO_KL))

    @property
    def seed_differences(self) -> list[float]:
        """Return of ours the mean reward of the KL bundle minus that of the run without KL, by seed."""
        pairs = [self.of_seed(seed) for seed in self.seeds]
        return [float(np.mean(pair.rewards(KL) - pair.rewards(NO_KL))) for pair in pairs]

    def series(self, run: str, metric: str) -> dict[int, Quantity]:
        """Return the values of a metric by step in order, as this document prints them.

        Training metrics of ours stand at the first step and at the evaluated ones, as the documents print theirs.
        """
        if not self.is_print:
            steps = {1, *self.measured[run]}
            return {step: value for step, value in self._ours(run, metric).items() if step in steps}
        rows = [row for row in self._of(run, metric) if row.quoted == self.document and row.at and row.printed]
        return dict(sorted((int(row.at), self._printed(row)) for row in rows))

    def fact(self, run: str, metric: str) -> Quantity:
        """Return a number that is stated of a published run as a whole."""
        return self._printed(self._stated(run, metric))

    def text(self, run: str, metric: str) -> str:
        """Return a text that is stated of a published run as a whole, this document's first."""
        return self._stated(run, metric).printed

    def only(self, run: str, metric: str) -> tuple[int, Quantity]:
        """Return the one value of a metric that this document prints, with its step."""
        found = self.series(run, metric)
        if len(found) != 1:
            raise self.lacking("not_published_of", what=say(f"claims.metric.{metric}"), run=self.label(run))
        return next(iter(found.items()))

    def differs(self, *, beside: tuple[str, ...] = COMPARED) -> tuple[Cell, ...]:
        """Return the settings that differ between the runs, those in `beside` left out."""
        own = [self.settings.get(run) or self._stated_settings(run) for run in RUNS]
        return tuple(Code(name) for name in SETTINGS if name not in beside and len({of[name] for of in own}) > 1)

    @cached_property
    def measured(self) -> Mapping[str, dict[int, Quantity]]:
        """Return the measured rewards after the start, by run and step."""
        if self.arms:
            return {run: self._ours(run, REWARD) for run in RUNS}
        return {run: {int(row.at): self._printed(row) for row in self._of(run, REWARD)} for run in RUNS}

    @cached_property
    def _common(self) -> list[int]:
        return sorted(set.intersection(*(set(self.measured[run]) for run in RUNS)))

    def _ours(self, run: str, metric: str) -> dict[int, Quantity]:
        """Return a metric by step after the start at the steps of all seeds, mean over these."""
        place = {"subset": "val", "mode": "sampled" if metric == VALIDATED else self.mode}
        name = {REWARD: "reward", VALIDATED: "normalised_reward"}.get(metric)
        if name is None:
            name, place = TRAINING.get(metric, metric), {"subset": "train", "mode": ""}
        where = {"metric": name, "study": "intention", "against": "", **place}
        found: list[dict[int, Quantity]] = []
        for seed in self.seeds:
            rows = self.evidence.where(f"arm~{self.arms[run]}/seed~{seed}", **where)
            found.append({int(row.at): _logged(row) for row in rows if row.at.isdigit() and int(row.at)})
        common = sorted(set.intersection(*map(set, found))) if found else []
        return {step: average([values[step] for values in found], found[0][step].digits) for step in common}

    def _stated_settings(self, run: str) -> dict[str, str]:
        return {name: next((row.printed for row in self._of(run, name) if row.printed), "") for name in SETTINGS}

    def _stated(self, run: str, metric: str) -> EvidenceRow:
        rows = [row for row in self._of(run, metric) if row.printed]
        own = [row for row in rows if row.quoted == self.document]
        if not rows:
            raise self.lacking("not_published", what=say(f"claims.metric.{metric}"), beta=None)
        return (own or rows)[0]

    def _of(self, run: str, metric: str) -> Sequence[EvidenceRow]:
        return self.evidence.where(f"published/{run}" if run else "published", metric, study="intention")

    def _printed(self, row: EvidenceRow) -> Quantity:
        return printed(row.printed, self._decimals.get(row.metric), of=row)

    @cached_property
    def _decimals(self) -> Mapping[str, int]:
        found: dict[str, int] = {}
        for row in self.evidence:
            if row.study == "intention" and row.quoted and row.value == row.value:
                found[row.metric] = max(found.get(row.metric, 0), decimals_of(row.printed))
        return found


def seeds_by_arm(subjects: Sequence[str]) -> dict[str, list[int]]:
    """Return the seeds of every arm, rising, of subjects such as `arm~bundle/seed~0`."""
    found: dict[str, list[int]] = {}
    for subject in subjects:
        arm, _, seed = subject.removeprefix("arm~").partition("/seed~")
        if seed:
            found.setdefault(arm, []).append(int(seed))
    return {arm: sorted(seeds) for arm, seeds in found.items()}


def _logged(row: EvidenceRow) -> Quantity:
    return Quantity(row.value, DIGITS if abs(row.value) < LARGE else 0, of=(row.key,))
