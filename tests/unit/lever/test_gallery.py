"""Which questions are shown: by hand, on questions whose accuracies are known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
from builders import example, ids

from lever_pipe.base.policy_names import PolicyName
from lever_pipe.lever.flips import flips, selections
from lever_pipe.lever.gallery import ORACLE, SIMILARITY, gallery, shots_of, shown_comparison
from lever_pipe.lever.samples import PolicyAnswers, Said
from lever_pipe.report.inference.families import reference_of

RCE, DRAWN = "preset~p/rce/seed~0/epoch~2", "preset~p/on_policy/base~2/beta~0.15/seed~0/epoch~3"
OFFLINE = "preset~p/grpo/base~2/beta~0.15/seed~0/epoch~3"
TRAIN = [example(i, question_type=f"r{i % 2}:{i % 3}") for i in range(8)]
ACCURACIES = {  # by question: RCE, on-policy GRPO, similarity, oracle
    **dict.fromkeys(range(10), (0.0, 1.0, 0.0, 1.0)),  # gained
    **dict.fromkeys(range(10, 13), (1.0, 0.3, 0.0, 1.0)),  # lost, though similarity fails too
    **dict.fromkeys(range(13, 17), (1.0, 1.0, 0.0, 1.0)),  # similarity fails
    **dict.fromkeys(range(17, 25), (0.0, 0.0, 0.0, 0.6)),  # the oracle alone
    25: (1.0, 1.0, 1.0, 1.0),
}
QUERIES = [example(i, question_type="ab"[i % 2] + ":x") for i in ACCURACIES]


def policies(shots: tuple[int, ...] = (1, 2)) -> dict[str, PolicyAnswers]:
    """Return what the four policies led to; with two shots each shows train examples 0 and 1."""
    found = {}
    for place, name in enumerate((RCE, DRAWN, SIMILARITY, ORACLE)):
        said = {(q, k): Said(ids(range(k)), "x", of[place]) for q, of in ACCURACIES.items() for k in shots}
        found[name] = PolicyAnswers(PolicyName.parse(name), said)
    return found


def comparison_of(*names: str) -> Any:
    return shown_comparison([PolicyName.parse(name) for name in names], "p", reference_of)


def shown(found: Mapping[str, PolicyAnswers]) -> dict[str, Any]:
    return gallery(comparison_of(*found), found, QUERIES, TRAIN, (1, 2))


def test_flips_stand_both_ways_in_equal_number_and_the_rest_fills_up() -> None:
    found = shown(policies())
    assert found["counts"] == {"gained": 10, "lost": 3, "similarity": 7, "oracle": 8, "questions": 26}
    reasons = Counter(entry["reason"] for entry in found["questions"])
    assert reasons == {"gained": 3, "lost": 3, "similarity": 3, "oracle": 3}
    for entry in found["questions"]:
        rce, drawn, similar, oracle = (entry["rows"][r]["accuracy"] for r in ("rce", "grpo", "similarity", "oracle"))
        held = {"gained": drawn > rce, "lost": drawn < rce, "similarity": rce > similar}
        assert held.get(entry["reason"], oracle > 0 and not rce + drawn + similar)


def test_kinds_of_question_alternate_and_ties_go_by_question_id() -> None:
    found = shown(policies())["questions"]
    assert Counter(entry["kind"] for entry in found) == {"a": 6, "b": 6}
    gained = [entry["question_id"] for entry in found if entry["reason"] == "gained"]
    assert gained == sorted(gained)
    assert gained[0] == 100
    assert shown(policies()) == shown(dict(reversed(policies().items())))


def test_what_is_compared_follows_what_was_run() -> None:
    assert [str(name) for name in (comparison_of(OFFLINE, DRAWN, RCE).left, comparison_of(OFFLINE, RCE).left)] == [
        DRAWN,
        OFFLINE,
    ]
    assert str(comparison_of(DRAWN).right) == RCE
    assert comparison_of(RCE).roles == {"rce": RCE, "similarity": SIMILARITY, "oracle": ORACLE}
    assert comparison_of(SIMILARITY) is None
    assert gallery(None, {}, QUERIES, TRAIN, (1,))["questions"] == []


def test_without_grpo_rce_is_held_against_similarity() -> None:
    found = policies()
    del found[DRAWN]
    counts = shown(found)["counts"]
    assert (counts["gained"], counts["lost"], counts["similarity"]) == (7, 0, 0)


@pytest.mark.parametrize(("shots", "expected"), [((1, 2, 3, 4), 2), ((1, 4), 1), ((4, 8), 4)])
def test_a_row_has_room_for_two_demonstrations(shots: tuple[int, ...], expected: int) -> None:
    assert shots_of(shots) == expected


def test_flips_are_counted_at_each_shot_count_and_their_mean() -> None:
    found = policies()
    found[DRAWN].said[25, 2] = found[DRAWN].said[25, 2]._replace(accuracy=0.0)  # type: ignore[index]
    rows = {row.shots: row for row in flips(found, QUERIES, (1, 2), comparison_of(*found))}
    assert {shots: (row.better, row.worse, row.equal) for shots, row in rows.items()} == {
        "1": (10, 3, 13),
        "2": (10, 4, 12),
        "mean": (10, 4, 12),
    }
    assert {(row.left, row.right, row.seed, row.in_gallery) for row in rows.values()} == {
        ("preset~p/on_policy/base~2/beta~0.15/epoch~3", "preset~p/rce/epoch~2", 0, 1)
    }


def test_selections_are_shares_by_rank_and_kind() -> None:
    import numpy as np

    one = {DRAWN: policies()[DRAWN]}
    agrees = np.zeros((len(QUERIES), len(TRAIN)), dtype=bool)
    agrees[:, 0] = True  # the first demonstration always, the second one for kind `a` alone
    agrees[::2, 1] = True
    rows = {(row.kind, row.rank): (row.share, row.n) for row in selections(one, QUERIES, (1, 2), {"fact": agrees})}
    assert rows == {
        ("all", 1): (1.0, 26), ("all", 2): (0.5, 26),
        ("a", 1): (1.0, 13), ("a", 2): (1.0, 13),
        ("b", 1): (1.0, 13), ("b", 2): (0.0, 13),
    }  # fmt: skip
