"""The page warns of a run with only wrong answers or with equal policies."""

from __future__ import annotations

from typing import Any

import pytest
from sentences import sentence

from lever_pipe.report.evidence import Evidence, EvidenceRow
from lever_pipe.report.setting import doubts

POLICIES = ("baseline/random", "baseline/zero_shot", "preset~main/rce/epoch~1")


def accuracies(*values: float, **parts: Any) -> list[EvidenceRow]:
    """A row a policy; at two shots each is 1 lower than at one, but never below 0."""
    at: dict[str, Any] = {"subset": "prefix", "samples": "200", **parts}
    return [
        EvidenceRow("lever", policy, "accuracy", max(0.0, value - shots + 1), shots=str(shots), **at)
        for policy, value in zip(POLICIES, values, strict=False)
        for shots in (1, 2)
    ]


def rewards(*values: float) -> list[EvidenceRow]:
    return [
        EvidenceRow("intention", f"arm~a/seed~{seed}", "reward", value, subset="test", mode="greedy", at="last")
        for seed, value in enumerate(values)
    ]


PUBLISHED = [EvidenceRow("lever", "published/rce", "accuracy", 41.0, subset="prefix", shots="1", printed="41.0")]
DIFFERENCE = accuracies(3.0, against="baseline/similar_both")


@pytest.mark.parametrize(
    ("rows", "starts"),
    [
        ([], []),
        (accuracies(0, 0, 0), ["No answer"]),
        (accuracies(0, 0, 0) + PUBLISHED + DIFFERENCE, ["No answer"]),
        (accuracies(5, 5, 5), ["All policies"]),
        (accuracies(5, 5, 5) + PUBLISHED + DIFFERENCE, ["All policies"]),
        (accuracies(5, 5, 6), []),
        (accuracies(5), []),
        (accuracies(0, 0, 2), []),
        (rewards(0, 0), ["No agent"]),
        (rewards(0, 0.1), []),
        (accuracies(0, 0) + rewards(0, 0), ["No answer", "No agent"]),
    ],
)
def test_what_speaks_against_a_run_is_told(rows: list[EvidenceRow], starts: list[str]) -> None:
    text = sentence("subtitle", {"world": "all", "studies": [], "data": [], **doubts(Evidence(rows), {})})
    assert [start for start in ("No answer", "All policies", "No agent") if start in text] == starts
