"""One preset with on-policy runs: its policies from one RCE base, and what was measured of them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pandas as pd

from lever_pipe.base.errors import RecordError
from lever_pipe.base.policy_names import PolicyName, group_of
from lever_pipe.report.tables.comparisons.estimates import ComparisonRow
from lever_pipe.report.tables.comparisons.families import AGAINST_RCE, DRAWN_AGAINST_RCE
from lever_pipe.report.tables.evidence import MEAN, Evidence, Interval, Pair
from lever_pipe.report.tables.on_policy.files import Agreement, Tests
from lever_pipe.report.tables.results import split_by
from lever_pipe.report.tables.text import beta_text, listing

SECTION = "on_policy"
RCE, OFFLINE, ON_POLICY, REINFORCE, DISTIL = "rce", "offline", "on_policy", "reinforce", "distil"
NAMES = {RCE: "RCE base", OFFLINE: "offline", ON_POLICY: "on-policy", REINFORCE: "REINFORCE", DISTIL: "distillation"}
"""Kinds of runs as the column `Mode` names them."""
AGAINST_BASE = {ON_POLICY: DRAWN_AGAINST_RCE, OFFLINE: AGAINST_RCE}
"""Families of comparisons with the RCE base, by kind."""
TOGETHER = (ON_POLICY, REINFORCE, DISTIL)
"""Kinds that are compared at one epoch, the last that every run of all of them has."""
LAST_SHARE = 0.25
"""Share of a run's steps, counted from its end, that stands for its end."""


class Run(NamedTuple):
    """Policies that differ in their seed only."""

    kind: str
    beta: float | None
    epoch: int
    group: str
    seeds: tuple[int, ...]

    @property
    def beta_text(self) -> str:
        """Return KL_BETA as the tables print it, empty where the objective has none."""
        return "" if self.beta is None or self.kind == REINFORCE else beta_text(self.beta)


@dataclass(frozen=True)
class CollectedRuns:
    """What the collected files hold, for every preset.

    `scores`, `steps` and `costs` have the columns of the files of these names.
    """

    scores: pd.DataFrame
    evidence: Evidence
    tests: Tests
    agreement: Agreement
    steps: pd.DataFrame
    costs: pd.DataFrame = field(default_factory=pd.DataFrame)


@dataclass(frozen=True)
class PresetRuns:
    """The runs of one preset from the RCE epoch `base`, over the first `samples` questions unless another is named."""

    preset: str
    is_main: bool
    base: int
    measured: CollectedRuns

    @cached_property
    def rows(self) -> pd.DataFrame:
        """Return the prefix rows of this preset's epochs from the base, and of the base itself."""
        scores = self.measured.scores
        of_preset = scores[(scores["subset"] == "prefix") & (scores["preset"] == self.preset)]
        is_base = (of_preset["stage"] == RCE) & (of_preset["epoch"] == self.base)
        rows = of_preset[is_base.fillna(False) | (of_preset["base_rce_epoch"] == self.base).fillna(False)]
        return rows.assign(kind=rows["mode"].where(rows["stage"] == "grpo", rows["stage"]))

    @property
    def samples(self) -> int:
        """Return the largest sample count."""
        return int(self.rows["samples"].max())

    @property
    def shots(self) -> list[int]:
        """Return the evaluated shot counts."""
        return sorted({int(k) for k in self.rows["shots"]})

    @property
    def columns(self) -> list[str]:
        """Return the shot counts as the files name them, and their mean."""
        return [*map(str, self.shots), MEAN]

    @cached_property
    def _runs(self) -> dict[str, list[Run]]:
        found: dict[str, list[Run]] = {}
        rows = self.rows.assign(group=self.rows["policy"].map(group_of), beta=self.rows["kl_beta"].fillna(-1.0))
        for (kind, beta, epoch), of_run in split_by(rows, ["kind", "beta", "epoch"]):
            seeds = tuple(sorted({int(seed) for seed in of_run["seed"]}))
            run = Run(kind, None if beta < 0 else float(beta), int(epoch), of_run["group"].iloc[0], seeds)
            found.setdefault(kind, []).append(run)
        return found

    def runs(self, kind: str) -> list[Run]:
        """Return the runs of a kind by KL_BETA and epoch."""
        return self._runs.get(kind, [])

    def last(self, kind: str) -> int:
        """Return the last epoch that every run of a kind, and of the kinds compared with it, has; 0 without a run."""
        latest: dict[tuple[str, float | None], int] = {}
        for run in (run for one in (TOGETHER if kind in TOGETHER else (kind,)) for run in self.runs(one)):
            latest[run.kind, run.beta] = max(run.epoch, latest.get((run.kind, run.beta), 0))
        return min(latest.values(), default=0)

    def at_last(self, kind: str) -> list[Run]:
        """Return the runs of a kind at its last common epoch, by KL_BETA."""
        return [run for run in self.runs(kind) if run.epoch == self.last(kind)]

    @property
    def start(self) -> Run | None:
        """Return the RCE base, or None where it was not evaluated."""
        return next(iter(self.runs(RCE)), None)

    def interval(self, run: Run, shots: str, samples: int | None = None) -> Interval:
        """Return an accuracy with its interval.

        Raises:
            RecordError: there is none.
        """
        return self.measured.evidence.interval(run.group, samples or self.samples, shots)

    def test(self, family: str, left: str, right: str, shots: str = MEAN) -> ComparisonRow | None:
        """Return a comparison of two groups at the largest sample count, or None where its family lacks it."""
        return self.measured.tests.get(Pair(self.family(family), left, right, self.samples, shots))

    def family(self, name: str) -> str:
        """Return a family's name as `comparisons.csv` has it for this preset."""
        return name if self.is_main else f"preset~{self.preset}/{name}"

    def against_base(self, run: Run, shots: str = MEAN) -> ComparisonRow | None:
        """Return the comparison of a run of the last common epoch with the RCE base."""
        if self.start is None or run.kind not in AGAINST_BASE:
            return None
        return self.test(AGAINST_BASE[run.kind], run.group, self.start.group, shots)

    def gain(self, run: Run) -> float | None:
        """Return points over the RCE base, mean over shots and the seeds that both have; None without such a seed."""
        if self.start is None:
            return None
        ours, base = self._by_seed(run), self._by_seed(self.start)
        shared = sorted(ours.keys() & base.keys())
        return float(np.mean([ours[seed] - base[seed] for seed in shared])) if shared else None

    def accuracy_over(self, run: Run, seeds: Collection[int]) -> float | None:
        """Return a run's accuracy, mean over shots and those of its seeds that are named; None where it has none."""
        found = [value for seed, value in self._by_seed(run).items() if seed in seeds]
        return float(np.mean(found)) if found else None

    def _by_seed(self, run: Run) -> dict[int, float]:
        is_run = (self.rows["kind"] == run.kind) & (self.rows["epoch"] == run.epoch)
        if run.beta is not None:
            is_run &= self.rows["kl_beta"] == run.beta
        rows = self.rows[is_run & (self.rows["samples"] == self.samples)]
        return {int(seed): float(of_seed["accuracy"].mean()) for seed, of_seed in split_by(rows, ["seed"])}

    def steps(self, kind: str) -> pd.DataFrame:
        """Return the step metrics of a kind from the base, up to its last common epoch."""
        steps = self.measured.steps
        kinds = steps["mode"].where(steps["stage"] == "grpo", steps["stage"])
        chosen = (kinds == kind) & (steps["preset"] == self.preset) & (steps["base_rce_epoch"] == self.base)
        return steps[chosen & (steps["epoch"] <= self.last(kind))]

    def prompts(self, run: Run) -> float | None:
        """Return the prompts that a run asked up to its epoch, mean over seeds; None where no step was logged."""
        steps = self.steps(run.kind)
        asked = steps[(steps["kl_beta"] == run.beta) & (steps["epoch"] <= run.epoch)]
        return float(asked.groupby("seed")["prompts"].max().mean()) if len(asked) else None

    def cost(self, run: Run) -> float:
        """Return the prompts that a run has learned from up to its epoch, its base included, mean over seeds.

        Raises:
            RecordError: they were not counted.
        """
        costs = self.measured.costs
        kinds = costs["mode"].where(costs["stage"] == "grpo", costs["stage"])
        is_run = (kinds == run.kind) & (costs["preset"] == self.preset) & (costs["epoch"] == run.epoch)
        if run.kind != RCE:
            is_run &= (costs["base_rce_epoch"] == self.base).fillna(False)
        if run.beta is not None:
            is_run &= costs["kl_beta"] == run.beta
        if not is_run.any():
            raise RecordError(
                f"costs.csv: expected the prompts of {run.group}", found="none", do="Run collect_results again."
            )
        return float(costs[is_run]["prompts"].mean())

    def logged(self, run: Run, metric: str, *, share: float = 1.0) -> float | None:
        """Return a step metric of a run, mean over the last `share` of its steps and then over seeds."""
        steps = self.steps(run.kind)
        rows = steps[(steps["kl_beta"] == run.beta) & (steps["metric"] == metric)]
        if rows.empty:
            return None
        means = [last_share(of_seed.sort_values("step")["value"], share) for _, of_seed in split_by(rows, ["seed"])]
        return float(np.mean(means))

    def agreement(self, run: Run, shots: int) -> float | None:
        """Return the share of queries for which a run chooses what its RCE base does, mean over seeds."""
        names = [replace(PolicyName.parse(run.group), seed=seed) for seed in run.seeds]
        pairs = [(str(name), str(name.start), shots) for name in names]
        shares = [self.measured.agreement[pair] for pair in pairs if pair in self.measured.agreement]
        return float(np.mean(shares)) if shares else None

    def seeds_sentence(self) -> str:
        """Return how many seeds stand behind each of the two modes, and which."""
        names = {ON_POLICY: "On-policy", OFFLINE: "Offline"}
        return " ".join(f"{name}: {_seeds(self.runs(kind))}." for kind, name in names.items() if self.runs(kind))


def studies_of(measured: CollectedRuns, main_preset: str, base: int | None) -> list[PresetRuns]:
    """Return a study for each preset with on-policy runs, the main one first.

    Args:
        measured: of all presets.
        main_preset: other presets stand in the names of their tables.
        base: the RCE epoch to start from; None takes the latest one that on-policy runs have.
    """
    rows = measured.scores[(measured.scores["mode"] == ON_POLICY) & (measured.scores["stage"] == "grpo")]
    presets = sorted(set(rows["preset"]), key=lambda preset: (preset != main_preset, preset))
    found = []
    for preset in presets:
        bases = {int(epoch) for epoch in rows[rows["preset"] == preset]["base_rce_epoch"]}
        found.append(PresetRuns(preset, preset == main_preset, base if base in bases else max(bases), measured))
    return found


def last_share(values: pd.Series, share: float) -> float:
    """Return the mean of the last `share` of ordered values, of one at least."""
    return float(values.iloc[-max(1, round(share * len(values))) :].mean())


def names_with(study: PresetRuns, title: str) -> str:
    """Return a title that names the preset where it is not the main one."""
    return title if study.is_main else f"{title}, preset {study.preset}"


def id_of(study: PresetRuns, name: str) -> str:
    """Return the id of a table, with the preset where it is not the main one."""
    return f"on-policy-{name}" if study.is_main else f"on-policy-{name}-{study.preset}"


def _seeds(runs: Sequence[Run]) -> str:
    seeds = sorted({seed for run in runs for seed in run.seeds})
    return f"one seed ({seeds[0]})" if len(seeds) == 1 else f"{len(seeds)} seeds ({listing(seeds)})"
