"""The reference files that print the selector's numbers, and the lookup of published rows."""

from __future__ import annotations

from collections.abc import Sequence

from lever_pipe.base.policy_names import beta_text
from lever_pipe.report.evidence import Evidence, EvidenceRow

ACCURACY_015, ACCURACY_012, BETAS = "2025-12-20正确率.md", "2025-12-20正确率_KL012对比.md", "KL_BETA_0145_0155对比.md"
CURVES = "KL_BETA_012_vs_015_训练曲线分析报告.md"
FILES = {"000": (CURVES,), "001": (ACCURACY_015, BETAS), "002": (ACCURACY_015, ACCURACY_012, BETAS)}
"""Files that contain a document's numbers, in order of precedence."""
CURVE_BETAS = (0.12, 0.15)
"""The betas of the training-curve runs."""


def published_run(beta: float, epoch: int) -> str:
    """Return the subject of the published runs of offline GRPO."""
    return f"published/grpo/beta~{beta_text(beta)}/epoch~{epoch}"


def quoted(
    evidence: Evidence, files: Sequence[str], beta: float, epoch: int, metric: str, **location: int | str
) -> EvidenceRow | None:
    """Return the number of a published run from the first of these files that prints it."""
    rows = (evidence.find(published_run(beta, epoch), metric, quoted=file, **location) for file in files)
    return next((row for row in rows if row is not None), None)
