"""The runs of study `intention` and the two published runs, looked up in the evidence."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from lever_pipe.experiment.agent_evaluation import EvaluationMode
from lever_pipe.experiment.agent_training import AgentArm, Schedule
from lever_pipe.experiment.report import ShownAgents
from lever_pipe.report.cells import Cell, Estimate, derived, gap, level, message, verdict
from lever_pipe.report.context import ReportContext
from lever_pipe.report.evidence import Evidence, EvidenceRow
from lever_pipe.report.table import SOURCE, Row

if TYPE_CHECKING:
    from lever_pipe.report.claims import Finding

STUDY = "intention"
NO_KL, KL = "nokl", "kl"
"""Names of the published runs in the reference."""
MODES: tuple[EvaluationMode, ...] = ("greedy", "sampled")
START = "arm~start"
"""The policy before GRPO."""
REWARD_DIGITS = 3
"""Decimals of the documents' rewards."""
Curve = Mapping[int, EvidenceRow]
"""Evaluations by step, in ascending order."""
Measure = Callable[[Mapping[int, float]], float]
T = TypeVar("T")
SCHEDULE_WORDS = {
    "constant": "fixed",
    "linear": "linear decay",
    "cosine": "cosine",
    "rising": "linear rise",
    "adaptive": "adapted to {target} nats a token",
}


@dataclass(frozen=True)
class CurvePair:
    """Evaluations of the documents' two runs after the start, in one decoding; ours have a curve per common seed."""

    is_ours: bool
    mode: EvaluationMode
    no_kl: Sequence[Curve]
    kl: Sequence[Curve]

    def values(self, measure: Callable[[Mapping[int, float]], T]) -> tuple[list[T], list[T]]:
        """Return a measure of every curve: without KL, with KL."""
        left, right = ([measure(values_of(curve)) for curve in curves] for curves in (self.no_kl, self.kl))
        return left, right

    def cells(self, measure: Measure, digits: int, how: str) -> dict[str, Estimate | None]:
        """Return a measure's means over seeds by `PAIR`: without KL, with KL, and the difference of KL minus no KL."""
        means = [mean_of(values) for values in self.values(measure)]
        rows = [[row for curve in curves for row in curve.values()] for curves in (self.no_kl, self.kl)]
        sides = [derived(value, digits, operands, how) for value, operands in zip(means, rows, strict=True)]
        difference = derived(means[1] - means[0], digits, [*rows[0], *rows[1]], f"{how}: KL minus no KL", sign=True)
        return dict(zip(PAIR, (*sides, difference), strict=True))

    def row(self, head: str, name: str, cells: Row) -> Row:
        """Return the row of a table: `name` in column `head`, the origin of the curves, and the cells of both runs."""
        return {head: name, SOURCE: "ours" if self.is_ours else "published", "Decoding": self.mode, **cells}


@dataclass(frozen=True)
class AgentView:
    """Lookups for the tables of the agent."""

    context: ReportContext
    config: ShownAgents

    @property
    def evidence(self) -> Evidence:
        """Return the evidence."""
        return self.context.evidence

    @cached_property
    def seeds(self) -> dict[str, list[int]]:
        """Return the seeds of every arm that ran, in the configuration's order."""
        ran = set(self.evidence.subjects("executed_steps", study=STUDY, at="run"))
        by_arm = {arm.name: [seed for seed in arm.seeds if run_of(arm.name, seed) in ran] for arm in self.config.arms}
        return {arm: seeds for arm, seeds in by_arm.items() if seeds}

    @property
    def arms(self) -> list[AgentArm]:
        """Return the arms that ran."""
        return [arm for arm in self.config.arms if arm.name in self.seeds]

    @property
    def reference(self) -> str:
        """Return the arm that all other arms are compared with."""
        return self.config.reference_arm

    @property
    def pair(self) -> dict[str, str]:
        """Return the arms that correspond to the documents' runs."""
        return {NO_KL: self.config.reference_arm, KL: self.config.document_arm}

    def arm(self, name: str) -> AgentArm:
        """Return an arm's settings."""
        return next(arm for arm in self.config.arms if arm.name == name)

    def common(self, arm: str, other: str) -> list[int]:
        """Return the seeds that two arms share."""
        return [seed for seed in self.seeds.get(arm, ()) if seed in self.seeds.get(other, ())]

    def find(self, subject: str, metric: str, **parts: Any) -> EvidenceRow | None:
        """Return a row of this study."""
        return self.evidence.find(subject, metric, study=STUDY, **parts)

    def ended(self, arm: str) -> Cell:
        """Return the last steps of an arm's runs: one number if they agree, else one for each seed."""
        rows = [self.find(run_of(arm, seed), "executed_steps", at="run") for seed in self.seeds[arm]]
        ends = [level(row, 0) for row in rows]
        return ends[0] if len({row.value for row in rows if row is not None}) < 2 else ends

    def held_out(self, subject: str, mode: str) -> EvidenceRow | None:
        """Return the primary endpoint of an arm or run in a decoding."""
        primary = self.config.evaluation.primary
        return self.find(subject, primary.metric, at=primary.checkpoint, subset=primary.split, mode=mode)

    @property
    def scale(self) -> float:
        """Return the factor of the printed primary endpoint: a share of the ceiling is printed in percent."""
        return 100.0 if self.config.evaluation.primary.metric == "normalised_reward" else 1.0

    @property
    def digits(self) -> int:
        """Return the decimals of the primary endpoint."""
        return 1 if self.scale > 1 else 3

    def score(self, row: EvidenceRow | None) -> Estimate | None:
        """Return a primary endpoint as a cell."""
        return level(row, self.digits, scale=self.scale)

    def at_seeds(self, seeds: Sequence[int], mode: str) -> Estimate | None:
        """Return the reference arm's primary endpoint over some of its seeds, with its interval if it has one."""
        if list(seeds) == self.seeds.get(self.reference):
            return self.score(self.held_out(f"arm~{self.reference}", mode))
        rows = [row for seed in seeds if (row := self.held_out(run_of(self.reference, seed), mode)) is not None]
        if len(rows) < len(seeds):
            return None
        value = self.scale * mean_of(row.value for row in rows)
        return self.score(rows[0]) if len(rows) == 1 else derived(value, self.digits, rows, "mean over these seeds")

    def compared(self, arm: str, mode: str) -> EvidenceRow | None:
        """Return the comparison of an arm with the reference arm at the primary endpoint in a decoding."""
        primary = self.config.evaluation.primary
        location = {"at": primary.checkpoint, "subset": primary.split, "mode": mode}
        rows = self.evidence.where(f"arm~{arm}", primary.metric, against=f"arm~{self.reference}", **location)
        return rows[0] if rows else None

    @cached_property
    def evaluated_claims(self) -> dict[str, Finding]:
        """Return our finding on every claim by the claim's id."""
        return {evaluated.claim.id: evaluated.ours for evaluated in self.context.claims}

    def difference(self, arm: str, mode: str) -> Estimate | None:
        """Return the tested difference from the reference arm, else the one over common seeds, without an interval."""
        row, seeds = self.compared(arm, mode), self.common(arm, self.reference)
        if row is not None or arm == self.reference:
            return gap(row, self.digits, scale=self.scale)
        sides = [[self.held_out(run_of(name, seed), mode) for seed in seeds] for name in (arm, self.reference)]
        rows = [row for side in sides for row in side if row is not None]
        if not seeds or len(rows) < 2 * len(seeds):
            return None
        values = [mean_of(row.value for row in side if row is not None) for side in sides]
        how = "mean over common seeds, arm minus reference"
        return derived(self.scale * (values[0] - values[1]), self.digits, rows, how, sign=True)

    def difference_cell(self, arm: str, mode: str) -> Estimate | None:
        """Return this difference; with one run a side without its interval, which does not cover other seeds."""
        row, difference = self.compared(arm, mode), self.difference(arm, mode)
        return difference.plain if difference is not None and row is not None and row.runs == 1 else difference

    def curve(self, subject: str, mode: str, metric: str = "reward") -> Curve:
        """Return the validation curve of a run, or of an arm at the steps that all of its seeds have."""
        rows = self.evidence.where(subject, metric, study=STUDY, subset="val", mode=mode, against="")
        return self._by_step(subject, rows)

    def training(self, subject: str, metric: str) -> Curve:
        """Return a training metric of an arm by step."""
        return self._by_step(subject, self.evidence.where(subject, metric, study=STUDY, subset="train"))

    def curves(self, mode: str) -> list[Curve]:
        """Return the validation curves of the documents' two arms: without KL, with KL."""
        return [self.curve(f"arm~{arm}", mode) for arm in self.pair.values()]

    def trained(self, metric: str) -> list[Curve]:
        """Return a training metric of the same two."""
        return [self.training(f"arm~{arm}", metric) for arm in self.pair.values()]

    def _by_step(self, subject: str, rows: Iterable[EvidenceRow]) -> Curve:
        # A mean over some of the seeds is not part of the arm's curve.
        n = 1 if "/seed~" in subject else len(self.seeds[subject.removeprefix("arm~")])
        return dict(sorted((int(row.at), row) for row in rows if row.at.isdigit() and row.runs == n))

    def published(self, run: str, metric: str, quoted: str = "") -> Curve:
        """Return a published metric by step, from one document or from both."""
        rows = self.evidence.where(f"published/{run}", metric, study=STUDY)
        selected = [row for row in rows if row.at and (not quoted or row.quoted == quoted)]
        return dict(sorted((int(row.at), row) for row in selected))

    def stated(self, run: str, metric: str) -> EvidenceRow | None:
        """Return the published row about a run, or a pair of runs, as a whole."""
        rows = self.evidence.where(f"published/{run}", metric, study=STUDY)
        return next((row for row in rows if row.printed and not row.at), None)

    @cached_property
    def pairs(self) -> list[CurvePair]:
        """Return the published pair, then our pair in each decoding that both arms have with a common seed."""
        published = [self.published(run, "val_reward") for run in (NO_KL, KL)]
        pairs = [CurvePair(False, "greedy", published[:1], published[1:])] if all(published) else []
        common = self.common(*self.pair.values())
        for mode in MODES:
            curves = [
                [after_start(self.curve(run_of(arm, seed), mode)) for seed in common] for arm in self.pair.values()
            ]
            if common and all(map(all, curves)):
                pairs.append(CurvePair(True, mode, *curves))
        return pairs


RUN_NAMES = {NO_KL: "no KL", KL: "KL bundle"}
RUNS = (NO_KL, KL)
PAIR = ("no KL", "KL bundle", "Difference")
"""Column heads of the documents' two runs."""
BY_MODE = {"greedy": PAIR, "sampled": ("no KL, sampled", "KL bundle, sampled", "Difference, sampled")}
"""The same heads by decoding, for rows with both decodings."""


def view_of(context: ReportContext) -> AgentView | None:
    """Return the agent's runs, or None if the configuration or the evidence has none."""
    if context.config.agents is None:
        return None
    view = AgentView(context, context.config.agents)
    return view if view.seeds else None


def run_of(arm: str, seed: int) -> str:
    """Return the name of a run."""
    return f"arm~{arm}/seed~{seed}"


def after_start(curve: Curve) -> Curve:
    """Return a curve without step 0, which the documents did not evaluate."""
    return {step: row for step, row in curve.items() if step}


def values_of(curve: Curve) -> dict[int, float]:
    """Return a curve's values by step."""
    return {step: row.value for step, row in curve.items()}


def mean_of(values: Iterable[float]) -> float:
    """Return the mean; NaN without values."""
    numbers = list(values)
    return math.fsum(numbers) / len(numbers) if numbers else math.nan


def best_value(curve: Mapping[int, float]) -> float:
    """Return the largest value."""
    return max(curve.values())


def best_step(curve: Mapping[int, float]) -> float:
    """Return the step of the largest value, or the first of equal ones."""
    return float(max(curve, key=lambda step: (curve[step], -step)))


def as_printed(row: EvidenceRow | None) -> Cell:
    """Return a published row as printed: a number, or a text."""
    if row is None:
        return None
    return row.printed if math.isnan(row.value) else level(row, 0)


def tested(p: Estimate | None) -> Cell:
    """Return the verdict of a p value on two runs, with the p; None without a test."""
    if p is None:
        return None
    return message("{verdict} (p {p})", verdict=verdict(p.value), p=p)


def seeds_cell(seeds: Sequence[int]) -> Cell:
    """Return seeds as a list."""
    return [str(seed) for seed in seeds]


def schedule_cell(schedule: Schedule) -> Cell:
    """Return a schedule in words."""
    then = message(SCHEDULE_WORDS[schedule.kind], **({"target": schedule.target} if schedule.target else {}))
    return (
        message("{n:step|steps} of warm-up, then {then}", n=schedule.warmup_steps, then=then)
        if schedule.warmup_steps
        else then
    )


def weight_cell(weight: float, schedule: Schedule) -> Cell:
    """Return the weight of a loss term, with its schedule unless it is constant."""
    plain = f"{weight:g}"
    return (
        plain if schedule == Schedule() else message("{peak}, {schedule}", peak=plain, schedule=schedule_cell(schedule))
    )
