"""Every claim judged twice: by the published numbers and by ours."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean
from typing import Any

from lever_pipe.experiment.stage_configs import ClaimArm
from lever_pipe.report.cells import Cell, Name, PValue, Series, from_json, say, to_json
from lever_pipe.report.claims.book import Claim
from lever_pipe.report.claims.lever_sides import OurLever, PublishedLever
from lever_pipe.report.claims.quantities import t_p
from lever_pipe.report.claims.reward_runs import FURTHER, KL, NO_KL, RewardRuns
from lever_pipe.report.claims.verdicts import VERDICTS, Finding, Measured, NotTestable, VerdictName, judge

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

    The documents had one run each. Ours are judged in the same way, one pair of runs a seed, and a verdict stands where
    all seeds agree; a sentence under rule `order` is judged over the seeds. A sentence about a cause is judged by the
    arm that differs from the reference arm in just this cause, where one does.
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
    return [JudgedClaim(claim, _judged(claim, published), _judged(claim, ours)) for claim in claims]


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


def _judged(claim: Claim, sides: Mapping[str, Side]) -> Finding:
    side = sides.get(claim.document)
    if side is None:
        study = "intention" if claim.is_of_agents else "lever"
        return Finding("not testable", say("claims.why.no_run", study=study))
    if isinstance(side, OurAgents | OurLever) and claim.load:
        return Finding("not testable", say("claims.why.load"))
    runs: Any = side.pair(claim.about if claim.rule == "cause" else None) if isinstance(side, OurAgents) else side
    if isinstance(side, OurAgents) and not runs.seeds:
        return Finding("not testable", say("claims.why.no_common_seed"))
    if claim.rule == "order" and not runs.is_print:
        return judge("order", lambda: _over_seeds(claim, runs))
    if isinstance(side, OurAgents) and claim.rule in ("noise", "sameness", "cause"):
        found = {seed: judge(claim.rule, partial(_measured, claim, runs.of_seed(seed))) for seed in runs.seeds}
        return together(found)
    return judge(claim.rule, lambda: _measured(claim, runs))


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


def together(found: Mapping[int, Finding]) -> Finding:
    """Return the verdict that all seeds agree on, how many have each, and the numbers of the first that has any."""
    verdicts = {seed: finding.verdict for seed, finding in found.items()}
    if set(verdicts.values()) == {"not testable"} and len({finding.numbers for finding in found.values()}) == 1:
        return next(iter(found.values()))
    first = next((seed for seed, verdict in verdicts.items() if verdict != "not testable"), next(iter(found)))
    agreed: VerdictName = found[first].verdict if len(set(verdicts.values())) == 1 else "not supported"
    if len(found) == 1:
        return Finding(agreed, _parts(say("claims.one_run"), found[first].numbers))
    told = [
        say("claims.seeds", seeds=[Name(str(seed)) for seed, of in verdicts.items() if of == name], verdict=word)
        for name in VERDICTS
        if name in verdicts.values()
        for word in (Finding(name, None).word,)
    ]
    lead = Series(tuple(told)) if len(told) > 1 else None
    return Finding(agreed, _parts(lead, say("claims.of_seed", seed=Name(str(first)), numbers=found[first].numbers)))


def _parts(*cells: Cell) -> Cell:
    return Series(tuple(cell for cell in cells if cell is not None), "parts")
