"""The two sides of the tables of documents 000 to 002: our runs, and the published ones; a row of each is a pair."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from lever_pipe.base.policy_names import beta_text
from lever_pipe.report.cells import Cell, Estimate, average, gap, level, message, minus
from lever_pipe.report.context import ReportContext
from lever_pipe.report.evidence import MEAN, EvidenceRow
from lever_pipe.report.table import Row, paired_rows

ACCURACY_015, ACCURACY_012, BETAS = "2025-12-20正确率.md", "2025-12-20正确率_KL012对比.md", "KL_BETA_0145_0155对比.md"
CURVES = "KL_BETA_012_vs_015_训练曲线分析报告.md"
FILES = {
    "000": (CURVES,),
    "001": (ACCURACY_015, BETAS),
    "002": (ACCURACY_015, ACCURACY_012, BETAS),
    "selector": (BETAS, ACCURACY_012, ACCURACY_015),
}
"""Files of the reference that contain a section's published numbers, in order of precedence."""
EPOCHS = (1, 2, 3)
"""Epochs of documents 001 and 002."""
DIGITS = 2
"""Decimals of an accuracy."""


@dataclass(frozen=True)
class Side:
    """One side of a section's tables."""

    context: ReportContext
    section: str
    is_ours: bool

    def policy(self, beta: float, epoch: int) -> str:
        """Return the evidence's subject of an epoch of offline GRPO."""
        published = f"published/grpo/beta~{beta_text(beta)}/epoch~{epoch}"
        return self.context.grpo(beta, epoch) if self.is_ours else published

    def number(self, beta: float, epoch: int, metric: str, digits: int = DIGITS, **location: Any) -> Estimate | None:
        """Return a number of a policy; a published one from the first of the section's files that prints it."""
        find, files = self.context.evidence.find, ("",) if self.is_ours else FILES[self.section]
        rows = (find(self.policy(beta, epoch), metric, quoted=file, **location) for file in files)
        return level(next((row for row in rows if row is not None), None), digits)

    def accuracy(self, beta: float, epoch: int, shots: int | str = MEAN, samples: int = 0) -> Estimate | None:
        """Return an accuracy, by default at the documents' samples; a published mean over shots is recomputed."""
        samples = samples or self.context.document_samples
        if self.is_ours:
            return level(self.context.accuracy(self.policy(beta, epoch), shots, samples), DIGITS)
        if shots == MEAN:
            return average([self.accuracy(beta, epoch, k, samples) for k in self.context.shots], DIGITS)
        return self.number(beta, epoch, "accuracy", samples=samples, shots=shots)

    def by_shots(self, beta: float, epoch: int, samples: int = 0) -> dict[Any, Cell]:
        """Return the accuracies by shots."""
        heads = {message("Shot {shots}", shots=k): k for k in self.context.shots}
        return {head: self.accuracy(beta, epoch, k, samples) for head, k in heads.items()}

    def compared(self, left: float, right: float, epoch: int, shots: int | str = MEAN) -> EvidenceRow | None:
        """Return our comparison of two betas in the section's family of the epoch; None for the published side."""
        sides, family = (self.policy(beta, epoch) for beta in (left, right)), f"document-{self.section}/epoch~{epoch}"
        where: dict[str, Any] = {"samples": self.context.document_samples, "shots": shots, "family": family}
        return self.context.compared(*sides, **where) if self.is_ours else None

    def gap(self, left: float, right: float, epoch: int, shots: int | str = MEAN) -> Estimate | None:
        """Return a difference of accuracies, ours with its interval; None of a beta and itself."""
        if self.is_ours or left == right:
            return gap(self.compared(left, right, epoch, shots))
        return minus(self.accuracy(left, epoch, shots), self.accuracy(right, epoch, shots))


class Point(NamedTuple):
    """What a row is about."""

    names: Row
    """Its first cells."""
    epoch: int
    betas: tuple[float, ...]
    samples: int = 0
    shots: int | str = MEAN

    @property
    def policy(self) -> tuple[float, int]:
        """Return KL_BETA and epoch of a row about one policy."""
        return self.betas[0], self.epoch


def paired(
    context: ReportContext, section: str, points: Iterable[Point], cells: Callable[[Side, Point], Row]
) -> list[Row]:
    """Return our row of every point and below it the published one; `cells` returns the further cells of a side."""
    sides, rows = [Side(context, section, is_ours) for is_ours in (True, False)], list[Row]()
    for point in points:
        policies = [[side.policy(beta, point.epoch) for beta in point.betas] for side in sides]
        ours, published = (cells(side, point) for side in sides)
        rows += paired_rows(point.names, ours, published, policies)
    return rows
