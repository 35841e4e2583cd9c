"""Results that a wrong model or prompt leaves behind more often than a finding: told below the title of the page."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from lever_pipe.report.evidence import Evidence, EvidenceRow
from lever_pipe.report.lineage import EXCHANGED, Lineages


def doubts(evidence: Evidence, lineages: Lineages) -> dict[str, Any]:
    """Return what speaks against a run: exchanged files, nothing right, equal policies, or no agent with a reward."""
    exchanged = {file for fields in lineages.values() if EXCHANGED in fields for file in fields[EXCHANGED].split(", ")}
    accuracies = _measured(evidence, "accuracy", study="lever", subset="prefix")
    rewards = [row for row in _measured(evidence, "reward", study="intention") if row.mode]
    is_wrong = bool(accuracies) and not any(row.value for row in accuracies)
    return {
        "exchanged": sorted(exchanged),
        "accuracies": "wrong" if is_wrong else "equal" if _are_equal(accuracies) else "",
        "no_reward": bool(rewards) and not any(row.value for row in rewards),
    }


def _measured(evidence: Evidence, metric: str, **parts: str) -> list[EvidenceRow]:
    rows = evidence.where(metric=metric, against="", quoted="", **parts)
    return [row for row in rows if not row.printed and not row.subject.startswith("published")]


def _are_equal(rows: list[EvidenceRow]) -> bool:
    """Return whether several subjects have one value wherever they are measured alike."""
    cells: defaultdict[tuple[str, str], set[float]] = defaultdict(set)
    for row in rows:
        cells[row.samples, row.shots].add(row.value)
    return len({row.subject for row in rows}) > 1 and all(len(values) == 1 for values in cells.values())
