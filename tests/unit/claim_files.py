"""Everything from which the claims are evaluated: the published rows, and rows of ours, computable by hand.

Accuracy of ours: 50 + gain(beta) + 0.5 epoch + 2 shots, the same at every sample count.
KL: 0.1 - 0.01 epoch - 0.1 beta + 0.0001 seed, in the training-curve runs with a small wave on it; PPO loss: 0.02 +
0.001 epoch with the same wave.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import agent_runs
from agent_runs import Study

from lever_pipe.experiment.report import BuildReportConfig, ShownStudy
from lever_pipe.report import sources
from lever_pipe.report.catalogue import Translator
from lever_pipe.report.checks import evaluate_claims
from lever_pipe.report.claims import Claim, EvaluatedClaim, Finding, read_claims
from lever_pipe.report.context import ReportContext
from lever_pipe.report.evidence import Evidence, EvidenceRow
from lever_pipe.report.lineage import Lineages, read_published_lineage

RESOURCES = Path(__file__).parents[2] / "resources"
REFERENCE = RESOURCES / "reference" / "lever-plus-published.csv"
REFERENCE_INTENTION = RESOURCES / "reference" / "userrl-published.csv"
STEPS = list(range(5, 50, 5))
NO_KL = [1.818, 2.140, 1.840, 1.830, 1.750, 1.788, 2.040, 2.003, 2.202]
KL = [1.695, 1.992, 1.768, 1.915, 1.970, 1.828, 1.840, 2.123, 2.005]
"""The rewards that documents 003 and 004 print."""


@dataclass(frozen=True)
class Ours:
    """A configuration of the selector with its numbers."""

    betas: tuple[float, ...] = (0.12, 0.145, 0.15, 0.155, 0.18)
    epochs: int = 3
    seeds: tuple[int, ...] = (0, 1, 2)
    shots: tuple[int, ...] = (1, 2, 3, 4)
    long_betas: tuple[float, ...] = (0.12, 0.15)
    long_epochs: int = 50
    gain: Mapping[float, float] = field(default_factory=dict)
    p: float = 0.5
    changes: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """Values of a policy's metric that replace those below."""

    def rows(self) -> Iterator[EvidenceRow]:
        """Yield the accuracies, the comparisons of the documents, and the training metrics."""
        at: dict[str, Any] = {"subset": "prefix", "samples": "200", "runs": len(self.seeds)}
        for beta, epoch, shots in product(self.betas, range(1, self.epochs + 1), (*self.shots, "mean")):
            value = 50 + self.gain.get(beta, 0.0) + 0.5 * epoch + 2 * (2.5 if shots == "mean" else shots)
            yield EvidenceRow("lever", group(beta, epoch), "accuracy", value, shots=str(shots), **at)
        pairs = document_pairs(self.betas, self.epochs)
        for (document, epoch, left, right), shots in product(pairs, (*self.shots, "mean")):
            family = f"document-{document}/epoch~{epoch}{'' if shots == 'mean' else '-by-shots'}"
            of = {**at, "shots": str(shots), "against": group(right, epoch), "family": family, "p_holm": self.p}
            gap = self.gain.get(left, 0.0) - self.gain.get(right, 0.0)
            yield EvidenceRow("lever", group(left, epoch), "accuracy", gap, **of)
        runs = [*product(self.betas, self.seeds, range(1, self.epochs + 1))]
        runs += product(self.long_betas, (0,), range(self.epochs + 1, self.long_epochs + 1))
        for beta, seed, epoch in runs:
            policy = f"preset~main/grpo/base~5/beta~{beta:g}/seed~{seed}/epoch~{epoch}"
            wave = 0.001 * beta * math.sin(epoch) if beta in self.long_betas and seed == 0 else 0.0
            kl = 0.1 - 0.01 * min(epoch, 5) - 0.1 * beta + 0.0001 * seed + wave
            metrics = {"kl": kl, "kl_loss": beta * kl, "ppo_loss": 0.02 + 0.001 * epoch + wave}
            metrics["val_loss"] = 8 + 0.001 * (epoch - 30) ** 2 + beta * (seed - 1)
            for name, value in metrics.items():
                yield EvidenceRow("lever", policy, name, self.changes.get((policy, name), value), runs=1)
                # On-policy runs, about which no claim is.
                yield EvidenceRow("lever", policy.replace("grpo", "on_policy"), name, 77.0, runs=1)

    def lineages(self) -> dict[str, dict[str, str]]:
        """Return the lineage of every group."""
        own = {"method": "grpo", "base_rce_epoch": "5", "base_checkpoint": "abc", "rl_data": "def"}
        return {
            group(beta, epoch): {**own, "kl_beta": f"{beta:g}", "epoch": str(epoch)}
            for beta, epoch in product(self.betas, range(1, self.epochs + 1))
        }


def group(beta: float, epoch: int) -> str:
    return f"preset~main/grpo/base~5/beta~{beta:g}/epoch~{epoch}"


def document_pairs(betas: Sequence[float], epochs: int) -> Iterator[tuple[str, int, float, float]]:
    """Yield what documents 001 and 002 compare: the document, an epoch, and two of the betas."""
    named = {"001": [(beta, 0.15) for beta in betas if beta != 0.15], "002": [(0.18, 0.15), (0.12, 0.15), (0.18, 0.12)]}
    for document, pairs in named.items():
        for epoch, pair in product(range(1, epochs + 1), pairs):
            if {*pair} <= {*betas}:
                yield (document, epoch, *pair)


@cache
def book() -> tuple[Claim, ...]:
    return read_claims(RESOURCES / "claims.yaml")


def sentence(of: Finding) -> str:
    """Return the numbers of a finding in English."""
    return Translator("en").text(of.numbers)


@cache
def references() -> tuple[EvidenceRow, ...]:
    """Return the published rows."""
    return (*sources.published(REFERENCE), *sources.published_agents(REFERENCE_INTENTION))


def changed(text: str, rows: Sequence[EvidenceRow] = (), **wanted: str) -> list[EvidenceRow]:
    """Return rows, or the published ones, with another number or text in those that have these parts."""
    rows, value = rows or references(), float(text) if text[0].isdigit() else math.nan
    found = [all(getattr(row, name) == part for name, part in wanted.items()) for row in rows]
    assert any(found)
    pairs = zip(rows, found, strict=True)
    return [row._replace(value=value, printed=text) if is_wanted else row for row, is_wanted in pairs]


def evaluated(
    rows: Iterable[EvidenceRow],
    lineages: Lineages | None = None,
    study: Study = Study(),
    claims: Sequence[Claim] | None = None,
) -> dict[str, EvaluatedClaim]:
    """Return every claim that compares runs, by id; `lineages` are added to the published ones."""
    studies = (ShownStudy(name=name, is_world=True, model="tiny") for name in ("lever", "intention"))
    agents = agent_runs.displayed_config(study).agents
    config = BuildReportConfig(title="", studies=tuple(studies), main_preset="main", agents=agents)
    published = read_published_lineage(RESOURCES / "reference" / "lineage.yaml")
    context = ReportContext(Evidence(rows), config, {**published, **(lineages or {})})
    return {of.claim.id: of for of in evaluate_claims(claims or book(), context) if of.claim.table == "claims"}


def by_ours(ours: Ours, lineages: Lineages | None = None) -> dict[str, Finding]:
    """Return ours of every claim, for a configuration of the selector."""
    found = evaluated([*references(), *ours.rows()], lineages or ours.lineages())
    return {name: of.ours for name, of in found.items()}
