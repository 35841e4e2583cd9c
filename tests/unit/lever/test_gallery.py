"""The displayed questions: by hand, on questions with known accuracies."""

from __future__ import annotations

from typing import Any

import numpy as np
from builders import example, ids

from lever_pipe.base.policy_names import PolicyName
from lever_pipe.lever.samples import (
    ORACLE,
    SIMILARITY,
    PolicyAnswers,
    ScoredAnswer,
    gallery_of,
    roles_of,
    shares_by_rank,
)
from lever_pipe.report.inference.families import reference_of

RCE, ON_POLICY = "preset~p/rce/seed~0/epoch~2", "preset~p/on_policy/base~2/beta~0.15/seed~0/epoch~3"
OFFLINE = "preset~p/grpo/base~2/beta~0.15/seed~0/epoch~3"
TRAIN = [example(i, question_type=f"r{i % 2}:{i % 3}") for i in range(8)]
ACCURACIES = {  # by question: RCE, on-policy GRPO, similarity, oracle
    **dict.fromkeys(range(10), (0.3, 0.3, 0.3, 0.3)),
    **dict.fromkeys(range(10, 25), (0.0, 0.0, 0.0, 0.6)),
    25: (1.0, 1.0, 1.0, 1.0),
}
QUERIES = [example(i, question_type="ab"[i % 2] + ":x") for i in ACCURACIES]


def policies(shots: tuple[int, ...] = (1, 2)) -> dict[str, PolicyAnswers]:
    """Return what the four policies led to; with two shots each shows train examples 0 and 1."""
    answered = {}
    for i, name in enumerate((RCE, ON_POLICY, SIMILARITY, ORACLE)):
        outcomes = {(q, k): ScoredAnswer(ids(range(k)), "x", of[i]) for q, of in ACCURACIES.items() for k in shots}
        answered[name] = PolicyAnswers(PolicyName.parse(name), outcomes)
    return answered


def roles(*names: str) -> dict[str, str]:
    return roles_of([PolicyName.parse(name) for name in names], "p", reference_of)


def displayed(shots: tuple[int, ...] = (1, 2)) -> dict[str, Any]:
    answered = policies(shots)
    return gallery_of(roles(*answered), answered, QUERIES, TRAIN, shots)


def test_the_first_twelve_that_are_not_answered_alike_are_shown() -> None:
    found = displayed()
    assert found["n_different"] == 15
    assert [entry["question_id"] for entry in found["questions"]] == [QUERIES[i].question_id for i in range(10, 22)]
    rows = found["questions"][0]["rows"]
    assert {role: row["accuracy"] for role, row in rows.items()} == {
        "rce": 0.0, "grpo": 0.0, "similarity": 0.0, "oracle": 0.6
    }  # fmt: skip
    assert [one["id"] for one in rows["rce"]["demonstrations"]] == [0, 1]


def test_who_is_shown_follows_what_was_run() -> None:
    others = {"similarity": SIMILARITY, "oracle": ORACLE}
    assert roles(OFFLINE, ON_POLICY, RCE) == {"rce": RCE, "grpo": ON_POLICY} | others
    assert roles(OFFLINE, RCE) == {"rce": RCE, "grpo": OFFLINE} | others
    assert roles(RCE) == {"rce": RCE} | others
    earlier, later_seed = (ON_POLICY.replace("epoch~3", "epoch~2"), ON_POLICY.replace("seed~0", "seed~1"))
    assert roles(earlier, later_seed, ON_POLICY, RCE)["grpo"] == ON_POLICY  # the first seed's last epoch
    assert roles(SIMILARITY) == {}
    assert gallery_of({}, {}, QUERIES, TRAIN, (1,))["questions"] == []


def test_selections_are_shares_by_rank() -> None:
    one = {ON_POLICY: policies()[ON_POLICY]}
    agrees = np.zeros((len(QUERIES), len(TRAIN)), dtype=bool)
    agrees[:, 0] = True  # the first demonstration always, the second one of every other query
    agrees[::2, 1] = True
    rows = {row.rank: (row.share, row.n) for row in shares_by_rank(one, QUERIES, (1, 2), {"fact": agrees})}
    assert rows == {1: (1.0, 26), 2: (0.5, 26)}
