"""Every claim judged twice: by the published numbers and by ours."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from lever_pipe.experiment.stage_configs import ClaimArm
from lever_pipe.report.cells import (
    Cell,
    Code,
    Name,
    Number,
    PValue,
    Series,
    from_json,
    keys_behind,
    numbers_in,
    say,
    to_json,
)
from lever_pipe.report.claims.book import Claim
from lever_pipe.report.claims.lever_sides import OurLever, PublishedLever
from lever_pipe.report.claims.quantities import named, t_p
from lever_pipe.report.claims.reward_runs import DIGITS, FURTHER, KL, NO_KL, RewardRuns
from lever_pipe.report.claims.verdicts import Finding, Measured, NotTestable, judge
from lever_pipe.statistics.comparison import holm
from lever_pipe.statistics.curve_tests import paired_t

PRINTED_ONLY = "claims.why.printed_only"


@dataclass(frozen=True, slots=True)
class JudgedClaim:
    """A claim with the verdict of each side."""

    claim: Claim
    published: Finding
    ours: Finding

    @property
    def is_about_print(self) -> bool:
        """Return whether the sentence is about printed numbers, so that ours say nothing."""
        return getattr(self.ours.numbers, "id", "") == PRINTED_ONLY


@dataclass(frozen=True)
class OurAgents:
    """Our runs of study `intention`: the arms with their seeds, and the published runs that they stand beside.

    The documents had one run each. Ours are judged over the seeds that both arms have, whatever the rule, and adjusted
    for all sentences that are; with one seed nothing is. A sentence about a cause is judged by the arm that differs
    from the reference arm in just this cause, where one does.
    """

    template: RewardRuns
    arms: Sequence[ClaimArm]
    seeds: Mapping[str, Sequence[int]]
    reference_arm: str
    document_arm: str

    def pair(self, cause: Collection[str] | None) -> RewardRuns:
        """Return the runs of the arm for a cause, None for none, beside the reference arm; all common seeds."""
        names = {NO_KL: self.reference_arm, KL: self.document_arm if cause is None else self.arm_for(cause)}
        common = [seed for seed in self.seeds.get(names[KL], ()) if seed in self.seeds.get(names[NO_KL], ())]
        settings = {run: settings_of(self._arm(name)) for run, name in names.items()}
        return replace(self.template, arms=names, seeds=tuple(common), settings=settings)

    def arm_for(self, cause: Collection[str]) -> str:
        """Return the arm that differs from the reference arm in just these settings, of several the mildest.

        Without one it is the arm of the documents.
        """
        reference, document = (settings_of(self._arm(name)) for name in (self.reference_arm, self.document_arm))
        own = {arm.name: settings_of(arm) for arm in self.arms}
        fitting = [
            name
            for name, of in own.items()
            if {key for key, value in of.items() if value != reference[key]} == {*cause}
        ]
        alike = [name for name in fitting if all(own[name][key] == document[key] for key in cause)]
        return next(iter((*alike, *fitting)), self.document_arm)

    def _arm(self, name: str) -> ClaimArm:
        return next(arm for arm in self.arms if arm.name == name)


Side = PublishedLever | OurLever | RewardRuns | OurAgents


def judge_claims(claims: Sequence[Claim], published: Mapping[str, Side], ours: Mapping[str, Side]) -> list[JudgedClaim]:
    """Return each claim with its verdicts; the sides are given by document, and ours may lack one."""
    own = {claim.id: _judged(claim, ours) for claim in claims}
    tested = {name: of for name, of in own.items() if isinstance(of, OverSeeds)}
    family = {of.comparison: of.p for of in tested.values() if of.is_tested}
    adjusted = dict(zip(family, holm(list(family.values())), strict=True))
    found = {name: of.finding(float(adjusted.get(of.comparison, math.nan))) for name, of in tested.items()}
    kept = {name: of for name, of in own.items() if isinstance(of, Finding)} | found
    return [JudgedClaim(claim, _published(claim, published), kept[claim.id]) for claim in claims]


def as_json(of: JudgedClaim) -> dict[str, Any]:
    """Return a judged claim as JSON values, which `read_json` reads back."""
    sides = {"published": of.published, "ours": of.ours}
    findings = {name: {"verdict": side.verdict, "numbers": to_json(side.numbers)} for name, side in sides.items()}
    return {"claim": of.claim.model_dump(mode="json"), **findings}


def read_json(value: Mapping[str, Any]) -> JudgedClaim:
    """Return the judged claim that `as_json` wrote."""
    sides = [Finding(value[name]["verdict"], from_json(value[name]["numbers"])) for name in ("published", "ours")]
    return JudgedClaim(Claim.model_validate(value["claim"]), *sides)


def settings_of(arm: ClaimArm) -> dict[str, str]:
    """Return what two arms may differ in."""
    schedule = f"{arm.schedule} after {arm.warmup_steps} steps" if arm.warmup_steps else arm.schedule
    return {
        "kl_loss_coef": f"{arm.kl:g}",
        "entropy_coeff": f"{arm.entropy:g}",
        "lr_schedule": schedule,
        "learning_rate": f"{arm.learning_rate:g}",
        "trajectory_score": arm.trajectory_score,
        **{key: arm.further.get(key, "") for key in FURTHER},
    }


@dataclass(frozen=True, slots=True)
class OverSeeds:
    """What every common seed of two arms shows of a claim.

    Attributes:
        claim: the sentence.
        runs: the two arms.
        by_seed: what each seed shows.
    """

    claim: Claim
    runs: RewardRuns
    by_seed: tuple[Measured, ...]

    @property
    def comparison(self) -> tuple[str, ...]:
        """Return what is compared: sentences that ask the same share a test."""
        return (self.claim.computation, json.dumps(self.claim.arguments, sort_keys=True), *self.runs.arms.values())

    @property
    def differs(self) -> tuple[Cell, ...]:
        """Return what else differs between the arms."""
        return self.by_seed[0].differs

    @property
    def is_tested(self) -> bool:
        """Return whether the claim counts in the family of tests."""
        return self.claim.rule != "sameness" and not (self.claim.rule == "cause" and self.differs)

    @property
    def values(self) -> list[list[float]]:
        """Return for each comparison of the claim the value of every seed, positive in the claim's favour."""
        checks = zip(*(found.checks for found in self.by_seed), strict=True)
        return [[check.value for check in of] for of in checks]

    @property
    def p(self) -> float:
        """Return the largest p of a paired t test of its comparisons: all of them have to hold."""
        return max(paired_t(of)[1] for of in self.values)

    def finding(self, p: float) -> Finding:
        """Return the verdict by an adjusted p; by the interval over the seeds where a margin decides."""
        means, is_margin = [fmean(of) for of in self.values], self.claim.rule == "sameness"
        margins = [check.margin for check in self.by_seed[0].checks]
        halves = [paired_t(of)[2] for of in self.values]
        checks = tuple(
            replace(check, value=mean, needed=half, p=None if is_margin else p)
            for check, mean, half in zip(self.by_seed[0].checks, means, halves, strict=True)
        )
        told = _parts(
            self._told(means, halves), self._tested(p), named(margin=Name(f"{margins[0]:g}")) if is_margin else None
        )
        return judge(self.claim.rule, lambda: Measured(told, checks, self.differs))

    def _told(self, means: Sequence[float], halves: Sequence[float]) -> Cell:
        """Return the mean with its interval over the seeds, of several comparisons the least and the most."""
        keys = [key for found in self.by_seed for number in numbers_in(found.numbers) for key in keys_behind(number)]
        of, how = tuple(dict.fromkeys(keys)), "mean over seeds, in the claim's favour"
        digits = DIGITS + 1 if max(map(abs, means)) < 1 else 1
        cells = [
            Number(mean, digits, sign=True, low=mean - half, high=mean + half, interval_digits=digits, of=of, how=how)
            for mean, half in zip(means, halves, strict=True)
        ]
        ends = cells if len(cells) == 1 else [pick(cells, key=lambda cell: cell.value) for pick in (min, max)]
        is_of_one = "run" in self.claim.arguments and "than" not in self.claim.arguments
        shown = (self.claim.arguments["run"],) if is_of_one else (KL, NO_KL)
        arms = dict(zip((KL, NO_KL), (Code(self.runs.arms[run]) for run in shown), strict=False))
        where = say(f"claims.measured.{self.claim.measured_in or self.runs.mode}")
        told = "mean_gap" if self.claim.rule == "sameness" else "of_one" if is_of_one else "in_favour"
        return say(f"claims.{told}", where=where, n=len(self.runs.seeds), found=Series(tuple(ends), "parts"), **arms)

    def _tested(self, p: float) -> Cell:
        how = f"paired t over seeds, adjusted: {' '.join(self.comparison)}"
        return say("claims.test.adjusted", p=PValue(p, how=how)) if self.is_tested else None


def _published(claim: Claim, sides: Mapping[str, Side]) -> Finding:
    """Return the verdict of the printed numbers."""
    found = _judged(claim, sides)
    assert isinstance(found, Finding)
    return found


def _judged(claim: Claim, sides: Mapping[str, Side]) -> Finding | OverSeeds:
    side = sides.get(claim.document)
    if side is None:
        study = "intention" if claim.is_of_agents else "lever"
        return Finding("not testable", say("claims.why.no_run", study=study))
    if isinstance(side, OurAgents | OurLever) and claim.load:
        return Finding("not testable", say("claims.why.load"))
    if not isinstance(side, OurAgents):
        is_over_seeds = claim.rule == "order" and not side.is_print
        return judge(claim.rule, lambda: (_over_seeds if is_over_seeds else _measured)(claim, side))
    runs = side.pair(claim.about if claim.rule == "cause" else None)
    if not runs.seeds:
        return Finding("not testable", say("claims.why.no_common_seed"))
    if claim.rule in ("identity", "fact"):
        return judge(claim.rule, lambda: _measured(claim, runs))
    try:
        by_seed = tuple(_measured(claim, runs.of_seed(seed)) for seed in runs.seeds)
    except NotTestable as lack:
        return Finding("not testable", lack.reason)
    if len(by_seed) < 2:
        return Finding("not testable", say("claims.why.one_seed"))
    return OverSeeds(claim, runs, by_seed)


def _measured(claim: Claim, side: Any) -> Measured:
    found = Measured.of(claim.function(side, **claim.values))
    if claim.about is None:
        return found
    return replace(found, differs=(*side.differs(beside=claim.about), *found.differs))


def _over_seeds(claim: Claim, side: Any) -> Measured:
    """Return what the mean over seeds shows, with a paired t test over the seeds for each comparison."""
    whole = _measured(claim, side)
    single = []
    for seed in side.seeds:
        with suppress(NotTestable):
            single.append([check.value for check in _measured(claim, side.of_seed(seed)).checks])
    by_check = [[values[i] for values in single] for i in range(len(whole.checks))]
    checks = tuple(
        replace(check, value=fmean(values) if values else check.value, p=t_p(values))
        for check, values in zip(whole.checks, by_check, strict=True)
    )
    told = say("claims.one_seed")
    if len(single) > 1:
        told = say("claims.over_seeds", n=len(single), p=Series(tuple(PValue(check.p or 0.0) for check in checks)))
    return replace(whole, numbers=_parts(whole.numbers, told), checks=checks)


def _parts(*cells: Cell) -> Cell:
    return Series(tuple(cell for cell in cells if cell is not None), "parts")
