"""Inputs of every table and sentence of the report: the evidence, the configuration and the lineages of policies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from lever_pipe.base.policy_names import PolicyName
from lever_pipe.experiment.report import ReportedRun
from lever_pipe.experiment.sweeps import swept
from lever_pipe.report.evidence import MEAN, Evidence, EvidenceRow
from lever_pipe.report.inference.families import Arm, arms_of, near
from lever_pipe.report.lineage import Lineages

if TYPE_CHECKING:
    from lever_pipe.report.claims import EvaluatedClaim

DOCUMENT_SAMPLES = 200
"""Sample count of documents 001 and 002."""


@dataclass(frozen=True)
class ReportContext:
    """The finished run; a study that did not run has no rows."""

    evidence: Evidence
    config: ReportedRun
    lineages: Lineages = field(default_factory=dict)
    claims: Sequence[EvaluatedClaim] = ()
    """The documents' claims with their verdicts."""

    def has(self, study: str) -> bool:
        """Return whether a study is part of this configuration."""
        return any(each.name == study for each in self.config.studies)

    @property
    def is_world(self) -> bool:
        """Return whether every study runs in its embedded world."""
        return all(study.is_world for study in self.config.studies)

    @cached_property
    def presets(self) -> list[Arm]:
        """Return the evaluated groups of each preset that is not a sweep's cell, the main preset first."""
        groups = self.evidence.subjects("accuracy", study="lever", subset="prefix", shots=MEAN)
        cells = swept(self.config.sweeps)
        return [arm for arm in arms_of(groups, self.config.main_preset) if arm.preset not in cells]

    @property
    def main(self) -> Arm:
        """Return the evaluated groups of the main preset."""
        return self.presets[0]

    @cached_property
    def baselines(self) -> list[str]:
        """Return the groups of the baselines."""
        groups = self.evidence.subjects("accuracy", study="lever", subset="prefix", shots=MEAN)
        return [name for name in groups if name.startswith("baseline/")]

    @cached_property
    def samples(self) -> list[int]:
        """Return the evaluated sample counts in ascending order."""
        rows = self.evidence.where(metric="accuracy", study="lever", subset="prefix", shots=MEAN)
        return sorted({int(row.samples) for row in rows})

    @cached_property
    def shots(self) -> list[int]:
        """Return the evaluated shot counts in ascending order."""
        rows = self.evidence.where(metric="accuracy", study="lever", subset="prefix")
        return sorted({int(row.shots) for row in rows if row.shots not in ("", MEAN)})

    @property
    def document_samples(self) -> int:
        """Return the evaluated sample count nearest to `DOCUMENT_SAMPLES`."""
        return near(self.samples or [DOCUMENT_SAMPLES], DOCUMENT_SAMPLES)

    def grpo(self, beta: float, epoch: int) -> str:
        """Return the group of an epoch of offline GRPO of the main preset, from its latest base."""
        base = self.main.base
        return str(PolicyName(kind="grpo", preset=self.main.preset, base=base, beta=beta, epoch=epoch))

    def rl_data(self, metric: str, file: str) -> list[EvidenceRow]:
        """Return the published row about a file of RL data, from any document: a list of at most one row."""
        return self.evidence.where("published/rl_data", metric, at=file)[:1]

    def accuracy(self, group: str, shots: int | str = MEAN, samples: int | None = None) -> EvidenceRow | None:
        """Return a group's accuracy with its interval, by default at the largest sample count."""
        location = {"subset": "prefix", "samples": samples or max(self.samples, default=0), "shots": shots}
        return self.evidence.find(group, "accuracy", **location)

    def compared(self, left: str, right: str, *, shots: int | str = MEAN, **parts: Any) -> EvidenceRow | None:
        """Return the first comparison of two groups; `parts` may name its family."""
        rows = self.evidence.where(left, "accuracy", study="lever", against=right, shots=shots, **parts)
        return rows[0] if rows else None

    def primary(self, left: str, right: str) -> EvidenceRow | None:
        """Return the comparison of two groups at the primary endpoint."""
        return self.compared(left, right, samples=max(self.samples, default=0))
