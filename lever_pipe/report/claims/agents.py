"""What documents 003 and 004 say of two runs, their rewards, steadiness and drift: the published ones, and ours."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from lever_pipe.experiment.stage_configs import ClaimArm
from lever_pipe.report.cells import Cell, Code, Name, Number, Series, say
from lever_pipe.report.claims.verdicts import (
    ALPHA,
    Check,
    NotTestable,
    Part,
    Parts,
    average,
    decimals,
    difference,
    keys_of,
    labelled,
    less,
    listed,
    p_value,
    printed,
    t_p,
)
from lever_pipe.report.evidence import Evidence, EvidenceRow
from lever_pipe.statistics.curve_tests import CurveComparison, FlatNoise, compare_curves, f_test, half_width
from lever_pipe.statistics.curves import CurveStatistics, curve_statistics, first_reaching

NO_KL, KL = "nokl", "kl"
RUNS = (NO_KL, KL)
FURTHER = ("kl_schedule", "entropy_schedule", "stop")
SETTINGS = ("kl_loss_coef", "entropy_coeff", "lr_schedule", "learning_rate", "trajectory_score", *FURTHER)
"""Settings that two runs may differ in; of the published ones the last five are not stated."""
FEWEST = 5
"""Evaluations below which a curve has no statistics."""
DIGITS = 3  # as the documents print rewards
TRAINING = {
    "pg_loss": "pg_loss",
    "kl_loss": "kl",
    "entropy": "entropy",
    "mean_sequence_length_tokens_as_labelled": "sequence_length",
}
"""Names in the reference, and our metrics; the KL is that before the update, which every arm logs."""


@dataclass(frozen=True)
class RewardRuns:
    """Two runs, the published ones or two arms of ours: of one seed, or the mean over several."""

    evidence: Evidence
    document: str  # which one quotes the published numbers
    make_noise: Callable[[int, float], FlatNoise]  # from evaluations and the standard error of one to flat curves
    noise_sd: float  # standard error of a published evaluation
    arms: Mapping[str, str] = field(default_factory=dict)  # of ours, by the published run that each stands beside
    seeds: tuple[int, ...] = ()  # of ours, those that both arms have
    mode: str = ""  # which validation curve of ours is judged
    settings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # of ours by run

    def label(self, run: str) -> Cell:
        """Return what a reader calls a run."""
        return Code(self.arms[run]) if self.arms else say(f"claims.run.{'no_kl' if run == NO_KL else 'bundle'}")

    def labels(self, of: Mapping[str, Number]) -> dict[Cell, Number]:
        """Return values by what a reader calls their runs."""
        return {self.label(run): value for run, value in of.items()}

    def missing(self, why: str, /, **args: object) -> NotTestable:
        """Return why a claim cannot be judged; what is not printed is not stated of ours."""
        return NotTestable("none_of_ours") if self.arms else NotTestable(why, **args)

    @cached_property
    def noise(self) -> FlatNoise:
        """Return flat curves of as many evaluations."""
        return self.make_noise(max(2, len(self._common)), self.noise_sd)

    @cached_property
    def steps(self) -> NDArray[np.float64]:
        """Return [N] the steps at which every run was measured; fewer than `FEWEST` are no curve."""
        if len(self._common) < FEWEST:
            raise NotTestable("few_rewards", least=FEWEST)
        return np.array(self._common, dtype=np.float64)

    def rewards(self, run: str) -> NDArray[np.float64]:
        """Return [N] the measured rewards of a run."""
        return np.array([self.measured[run][int(step)].value for step in self.steps], dtype=np.float64)

    def reward(self, run: str, step: int) -> Number:
        """Return a measured reward."""
        found = self.measured[run].get(step)
        if found is None:
            raise NotTestable("no_reward", run=self.label(run), step=step)
        return found

    @cached_property
    def curves(self) -> Mapping[str, CurveStatistics]:
        """Return the statistics of each run's measured rewards."""
        return {run: curve_statistics(self.steps, self.rewards(run)) for run in RUNS}

    def of(self, value: float, digits: int, how: str, *runs: str, sign: bool = False) -> Number:
        """Return what the rewards of runs, of both if none is named, give by a statistic."""
        keys = keys_of(*(each for run in runs or RUNS for each in self.measured[run].values()))
        return Number(value, digits, of=keys, how=how, sign=sign)

    @cached_property
    def comparison(self) -> CurveComparison:
        """Return the comparison of the KL bundle minus no KL."""
        return compare_curves(self.rewards(KL), self.rewards(NO_KL))

    def series(self, run: str, metric: str) -> dict[int, Number]:
        """Return the values of a metric by step in order, as this document prints them.

        Training metrics of ours stand at the first step and at the evaluated ones, as the documents print theirs.
        """
        if self.arms:
            steps = {1, *self.measured[run]}
            return {step: value for step, value in self._ours(run, metric).items() if step in steps}
        rows = [row for row in self._of(run, metric) if row.quoted == self.document and row.at and row.printed]
        return dict(sorted((int(row.at), self._printed(row)) for row in rows))

    def differs(self, *, beside: Collection[str]) -> tuple[Cell, ...]:
        """Return the settings that differ between the runs, those in `beside` left out."""
        stated = [
            self.settings.get(run)
            or {name: next((row.printed for row in self._of(run, name) if row.printed), "") for name in SETTINGS}
            for run in RUNS
        ]
        return tuple(Code(name) for name in SETTINGS if name not in beside and len({of[name] for of in stated}) > 1)

    @cached_property
    def measured(self) -> Mapping[str, dict[int, Number]]:
        """Return the measured rewards after the start, by run and step."""
        if self.arms:
            return {run: self._ours(run, "val_reward") for run in RUNS}
        return {run: {int(row.at): self._printed(row) for row in self._of(run, "val_reward")} for run in RUNS}

    @cached_property
    def _common(self) -> list[int]:
        return sorted(set.intersection(*(set(self.measured[run]) for run in RUNS)))

    def _ours(self, run: str, metric: str) -> dict[int, Number]:
        """Return a metric by step after the start at the steps of all seeds, mean over these."""
        name = {"metric": TRAINING.get(metric, metric), "subset": "train", "mode": ""}
        if metric == "val_reward":
            name = {"metric": "reward", "subset": "val", "mode": self.mode}
        by_seed: list[dict[int, Number]] = []
        for seed in self.seeds:
            rows = self.evidence.where(f"arm~{self.arms[run]}/seed~{seed}", study="intention", against="", **name)
            later = [row for row in rows if row.at.isdigit() and int(row.at)]
            by_seed.append(
                {int(row.at): Number(row.value, DIGITS if abs(row.value) < 100 else 0, row.key) for row in later}
            )
        common = sorted(set.intersection(*map(set, by_seed))) if by_seed else []
        return {step: average([values[step] for values in by_seed], by_seed[0][step].digits) for step in common}

    def _of(self, run: str, metric: str) -> Sequence[EvidenceRow]:
        return self.evidence.where(f"published/{run}", metric, study="intention")

    def _printed(self, row: EvidenceRow) -> Number:
        return printed(row, self._decimals[row.metric])

    @cached_property
    def _decimals(self) -> Mapping[str, int]:
        rows = (row for row in self.evidence if row.study == "intention" and row.quoted and row.value == row.value)
        return decimals(rows, lambda row: row.metric)


@dataclass(frozen=True)
class OurAgents:
    """Our runs of study `intention`: the arms with their seeds, and the published runs that they stand beside.

    The documents had one run each. Ours are judged over the seeds that both arms have, whatever the rule, and adjusted
    for all sentences that are; with one seed nothing is. A sentence about a cause is judged by the arm that differs
    from the reference arm in just this cause, where one does.
    """

    template: RewardRuns
    arms: Sequence[ClaimArm]
    reference_arm: str
    document_arm: str

    def pair(self, cause: Collection[str] | None) -> RewardRuns:
        """Return the runs of the arm for a cause, None for none, beside the reference arm; all common seeds."""
        names = {NO_KL: self.reference_arm, KL: self.document_arm if cause is None else self.arm_for(cause)}
        prefixes = [f"arm~{name}/seed~" for name in names.values()]
        subjects = self.template.evidence.subjects("executed_steps", study="intention")
        seeds = [{int(of.removeprefix(start)) for of in subjects if of.startswith(start)} for start in prefixes]
        settings = {run: self._settings[name] for run, name in names.items()}
        return replace(self.template, arms=names, seeds=tuple(sorted(set.intersection(*seeds))), settings=settings)

    def arm_for(self, cause: Collection[str]) -> str:
        """Return the arm that differs from the reference arm in just these settings, of several the mildest.

        Without one it is the arm of the documents.
        """
        reference, document = self._settings[self.reference_arm], self._settings[self.document_arm]
        fitting = {
            name: of
            for name, of in self._settings.items()
            if {key for key, value in of.items() if value != reference[key]} == {*cause}
        }
        alike = [name for name, of in fitting.items() if all(of[key] == document[key] for key in cause)]
        return next(iter((*alike, *fitting)), self.document_arm)

    @cached_property
    def _settings(self) -> Mapping[str, dict[str, str]]:
        """Return by arm what two arms may differ in."""
        return {
            arm.name: {
                "kl_loss_coef": f"{arm.kl:g}",
                "entropy_coeff": f"{arm.entropy:g}",
                "lr_schedule": f"{arm.schedule} after {arm.warmup_steps} steps" if arm.warmup_steps else arm.schedule,
                "learning_rate": f"{arm.learning_rate:g}",
                "trajectory_score": arm.trajectory_score,
                **{key: arm.further.get(key, "") for key in FURTHER},
            }
            for arm in self.arms
        }


def is_ahead_at(runs: RewardRuns, *, ahead: str, behind: str, steps: Sequence[int]) -> Parts:
    """Tell whether a run lies above the other at each of the steps."""
    for step in steps:
        pair = runs.reward(ahead, step), runs.reward(behind, step)
        terms, gap = Series((pair[0], Name("-"), pair[1]), "spaced"), difference(*pair)
        yield Part(
            Check(gap.value), labelled(say("claims.step", step=step), say("claims.result", terms=terms, value=gap))
        )


def is_ahead_on_average(runs: RewardRuns, *, ahead: str, behind: str, steps: Sequence[int]) -> Parts:
    """Hold the mean difference over some steps against the noise of such a mean.

    The noise is half a 95 % t interval with the standard deviation of all paired differences.
    """
    gaps = [difference(runs.reward(ahead, step), runs.reward(behind, step)) for step in steps]
    mean = replace(average(gaps), how="mean difference", sign=True)
    needed = half_width(runs.comparison.sd, len(steps), len(runs.steps) - 1)
    yield Part(Check(mean.value, needed), labelled(_minus(runs, ahead, behind), mean))
    yield Part(None, listed({say("claims.name.noise"): runs.of(needed, 3, "half of the t interval")}))


def best_is_higher(runs: RewardRuns, *, higher: str, lower: str) -> Parts:
    """Hold the difference of best values against what two flat runs of as many noisy values show."""
    gap = runs.curves[higher].most - runs.curves[lower].most
    p = runs.noise.chance_of_best_gap(abs(gap))
    what = say("claims.best_of", which=_minus(runs, higher, lower))
    yield Part(Check(gap, p=p), labelled(what, runs.of(gap, 3, "best minus best", sign=True)))
    yield Part(None, p_value("flat", p))


def difference_is_insignificant(runs: RewardRuns) -> Parts:
    """Tell whether a paired t test leaves the two curves unseparated; of ours the test over training seeds."""
    if not runs.arms:
        yield from (Part(Check(p - ALPHA)) for p in (runs.comparison.p_t, runs.comparison.p_wilcoxon))
        yield from _paired(runs)
        return
    if len(runs.seeds) < 2:
        raise NotTestable("one_seed")
    pairs = [replace(runs, seeds=(seed,)) for seed in runs.seeds]
    gaps = [float(np.mean(pair.rewards(KL) - pair.rewards(NO_KL))) for pair in pairs]
    p, mean = t_p(gaps), runs.of(float(np.mean(gaps)), 3, "mean difference", sign=True)
    yield Part(Check(p - ALPHA), labelled(_minus(runs, KL, NO_KL), mean))
    yield Part(None, p_value("over_seeds", p, f"paired t over seeds: mean reward of {' '.join(runs.arms.values())}"))


def rewards_are_close(runs: RewardRuns, *, margin: float) -> Parts:
    """Hold the mean paired difference and its 95 % interval against a margin."""
    found = runs.comparison
    yield Part(Check(found.mean, (found.high - found.low) / 2, margin=margin))
    yield from _paired(runs)
    yield Part(None, listed({say("claims.name.margin"): Name(f"{margin:g}")}))


def curves_differ(runs: RewardRuns) -> Parts:
    """Tell whether a paired t test separates the two curves."""
    yield Part(Check(runs.comparison.mean, p=runs.comparison.p_t, either_way=True))
    yield from _paired(runs)


def best_comes_earlier(runs: RewardRuns, *, earlier: str, later: str) -> Parts:
    """Hold the difference of the best steps against the spacing of the evaluations."""
    steps = {
        run: runs.of(int(runs.curves[run].best_step), 0, "step of the best reward", run) for run in (earlier, later)
    }
    return less("best_step", runs.labels(steps), needed=float(np.diff(runs.steps).max()))


def reaches_thresholds_sooner(runs: RewardRuns, *, sooner: str, than: str, thresholds: Sequence[float]) -> Parts:
    """Compare the first steps at which two runs reach each threshold that either reaches, on average.

    A run that does not reach one does so at the earliest one evaluation after its last.
    """
    end = float(runs.steps[-1] + np.diff(runs.steps)[-1])
    gaps, by_threshold = [], {}
    for threshold in thresholds:
        reached = [first_reaching(runs.steps, runs.rewards(run), threshold) for run in (sooner, than)]
        if any(step is not None for step in reached):
            first, second = (end if step is None else step for step in reached)
            gaps.append(second - first)
            cells = [
                say("claims.never") if step is None else runs.of(step, 0, "first step", run)
                for run, step in zip((sooner, than), reached, strict=True)
            ]
            by_threshold[threshold] = say("claims.against", first=cells[0], second=cells[1])
    if not gaps:
        raise NotTestable("no_threshold")
    what = say("claims.thresholds", first=runs.label(sooner), second=runs.label(than))
    yield Part(Check(float(np.mean(gaps))), labelled(what, listed(by_threshold)))


def changes_less(runs: RewardRuns, *, steadier: str, than: str) -> Parts:
    """Compare the spread of the changes from evaluation to evaluation."""
    spread = {run: runs.of(runs.curves[run].sd_of_changes, 4, "sd of changes", run) for run in (steadier, than)}
    return less("sd_of_changes", runs.labels(spread), test="f", p=runs.comparison.p_f_of_changes)


def window_varies_less(runs: RewardRuns, *, steadier: str, than: str, first: int, last: int) -> Parts:
    """Compare the spread of the rewards within a window of steps, which was chosen afterwards."""
    inside = (runs.steps >= first) & (runs.steps <= last)
    rewards = {run: runs.rewards(run)[inside] for run in (steadier, than)}
    if not all(np.unique(values).size > 1 for values in rewards.values()):
        raise NotTestable("window_flat", first=first, last=last)
    ranges = {run: runs.of(float(np.ptp(values)), 3, "range", run) for run, values in rewards.items()}
    return less("range", runs.labels(ranges), test="f", p=f_test(*rewards.values()))


def falls_less(runs: RewardRuns, *, steadier: str, than: str) -> Parts:
    """Compare drawdowns; p is how often a flat run of as many noisy values falls as far as the larger one."""
    falls = {run: runs.of(runs.curves[run].drawdown, 3, "largest fall", run) for run in (steadier, than)}
    p = min(runs.noise.chance_of_drawdown(fall.value) for fall in falls.values())
    return less("drawdown", runs.labels(falls), test="flat", p=p)


def falls_more_sharply(runs: RewardRuns, *, run: str, step: int, than: str) -> Parts:
    """Hold a fall from the evaluation before, made in either run, against the largest fall of the other run."""
    before = max((at for name in RUNS for at in runs.measured[name] if at < step), default=None)
    if before is None:
        raise NotTestable("none_before", step=step)
    own = difference(runs.reward(run, step), runs.reward(run, before))
    changes = dict(zip(map(int, runs.steps[1:]), runs.curves[than].changes, strict=True))
    at = min(changes, key=lambda key: changes[key])
    other = runs.of(changes[at], 3, "largest fall", than, sign=True)
    falls = {(run, step): own, (than, at): other}
    where = {say("claims.run_at", run=runs.label(of), step=at): fall for (of, at), fall in falls.items()}
    yield Part(Check(other.value - own.value), listed(where))


def declines_less(runs: RewardRuns, *, steadier: str, than: str) -> Parts:
    """Compare how far two runs end below their best reward.

    The difference of two declines is one of four evaluations, so its noise is 1.96 sqrt(4) standard errors of one.
    """
    _ = runs.steps
    declines = {}
    for run in (steadier, than):
        rewards = runs.measured[run]
        best, last = max(rewards, key=lambda step, of=rewards: (of[step].value, -step)), max(rewards)  # type: ignore[misc]
        if best == last:
            raise NotTestable("best_is_last", run=runs.label(run), step=best)
        declines[run] = difference(rewards[last], rewards[best])
    needed = 1.96 * 2 * runs.noise.sd
    gap = declines[steadier].value - declines[than].value
    yield Part(Check(gap, needed), labelled(say("claims.name.decline"), listed(runs.labels(declines))))
    yield Part(None, listed({say("claims.name.noise"): runs.of(needed, 3, "1.96 errors of four evaluations")}))


def metric_rises(runs: RewardRuns, *, run: str, metric: str) -> Parts:
    """Tell whether the values of a metric rise from step to step."""
    series = runs.series(run, metric)
    if len(series) < 2:
        raise runs.missing("nothing_printed")
    for before, after in pairwise(series.values()):
        yield Part(Check(after.value - before.value))
    yield Part(None, listed({say("claims.step", step=step): series[step] for step in (min(series), max(series))}))


def growth_slows(runs: RewardRuns, *, run: str, metric: str) -> Parts:
    """Compare the growth a step from the middle value to the last with that from the first to the middle one."""
    series = sorted(runs.series(run, metric).items())
    if len(series) < 3:
        raise runs.missing("nothing_printed")
    rates = {}
    for (a, first), (b, second) in pairwise((series[0], series[len(series) // 2], series[-1])):
        rate = Number((second.value - first.value) / (b - a), 4, of=keys_of(first, second), how="difference a step")
        rates[say("claims.from_to", first=a, last=b)] = rate
    early, late = (rate.value for rate in rates.values())
    yield Part(Check(early - late), listed({where: say("claims.a_step", value=rate) for where, rate in rates.items()}))


def varies_less(runs: RewardRuns, *, metric: str, steadier: str, than: str) -> Parts:
    """Compare the spread of a metric in two runs over the same steps (F test); the end points of a few printed ones."""
    series = {run: runs.series(run, metric) for run in (steadier, than)}
    fewest, what = min(map(len, series.values())), say(f"claims.metric.{metric}")
    if fewest >= 2 and list(series[steadier]) != list(series[than]):
        raise runs.missing("other_steps", what=what)
    if fewest < FEWEST:
        raise runs.missing("no_spread", what=what)
    values = {run: [each.value for each in of.values()] for run, of in series.items()}
    spread = {
        run: Number(float(np.std(of, ddof=1)), 4, of=keys_of(*series[run].values()), how="sd over steps")
        for run, of in values.items()
    }
    return less("sd_over_steps", runs.labels(spread), test="f", p=f_test(values[steadier], values[than]))


def drifts_less(runs: RewardRuns, *, metric: str, steadier: str, than: str) -> Parts:
    """Compare the divergence from the reference of two runs at the same steps; one printed run cannot be tested.

    Steps of one run resemble their neighbours: at 5 % tests that allow for it reject up to 27 % of true nulls of 9
    steps, and up to 20 % of 18 (correlation .8).
    """
    by_run = {run: runs.series(run, metric) for run in (than, steadier)}
    for run, series in by_run.items():
        if not series:
            raise runs.missing("not_published_of", what=say(f"claims.metric.{metric}"), run=runs.label(run))
    steps = [step for step in by_run[steadier] if step in by_run[than]]
    if len(steps) < FEWEST:
        raise NotTestable("no_common_steps")
    means = {run: average([by_run[run][step] for step in steps], 4) for run in (steadier, than)}
    numbers = labelled(say("claims.mean_of_steps", n=len(steps)), listed(runs.labels(means)))
    if not runs.arms:
        raise NotTestable("steps_alike", means=numbers)
    gaps = [by_run[than][step].value - by_run[steadier][step].value for step in steps]
    yield Part(Check(math.fsum(gaps) / len(gaps)), numbers)


def _paired(runs: RewardRuns) -> Parts:
    found = runs.comparison
    mean = runs.of(found.mean, 3, "mean difference", sign=True)
    low, high = (runs.of(end, 3, "end of the t interval") for end in (found.low, found.high))
    yield Part(None, labelled(_minus(runs, KL, NO_KL), say("claims.interval", value=mean, low=low, high=high)))
    yield Part(None, p_value("paired_t", found.p_t))


def _minus(runs: RewardRuns, left: str, right: str) -> Cell:
    return say("claims.minus", left=runs.label(left), right=runs.label(right))
