"""Every claim judged twice: by the published numbers and by ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lever_pipe.report.claims.book import Claim
from lever_pipe.report.claims.lever_side import LeverSide
from lever_pipe.report.claims.reward_ours import OurRewards
from lever_pipe.report.claims.reward_runs import COMPARED, DOCUMENTS, RewardRuns
from lever_pipe.report.claims.verdicts import Finding, judge

Side = LeverSide | RewardRuns | OurRewards
CAUSES = ("beside", "cause")
"""Arguments that name the settings which a sentence makes responsible; without one it is the KL coefficient."""


@dataclass(frozen=True, slots=True)
class JudgedClaim:
    """A claim with the verdict of each side."""

    claim: Claim
    published: Finding
    ours: Finding


def judge_claims(claims: Sequence[Claim], published: Mapping[str, Side], ours: Mapping[str, Side]) -> list[JudgedClaim]:
    """Return each claim with its verdicts; the sides are given by document, and ours may lack one."""
    return [JudgedClaim(claim, _judge(claim, published), _judge(claim, ours)) for claim in claims]


def no_run(document: str) -> str:
    """Return why nothing of ours can be judged for a document."""
    return f"This configuration holds no run of study `{'intention' if document in DOCUMENTS else 'lever'}`."


def _judge(claim: Claim, sides: Mapping[str, Side]) -> Finding:
    side = sides.get(claim.document)
    if side is None:
        return Finding("not testable", no_run(claim.document))
    if not isinstance(side, OurRewards):
        return judge(claim.rule, lambda: claim.function(side, **claim.values))
    named = next((claim.values[name] for name in CAUSES if name in claim.values), COMPARED)
    return side.judged(
        lambda pair: judge(claim.rule, lambda: claim.function(pair, **claim.values)),
        cause=named if claim.rule == "cause" else None,
    )
