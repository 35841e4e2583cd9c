from __future__ import annotations

import itertools
import math

import pytest
from builders import example, ids, pool, trajectory

from lever_pipe.base.errors import RecordError
from lever_pipe.base.records import ExampleId, PoolPosition, Proposal, RlGroup
from lever_pipe.experiment.rl_data import Balance
from lever_pipe.lever.trajectories import keep_balanced, make_group, score_trajectory, summarise
from lever_pipe.lvlms.protocol import references_of

QUERY = example(0, answer="cat", answers=("dog",) * 2 + ("cat",) * 6 + ("cow",) * 2)
PROPOSAL = Proposal(
    query_id=ExampleId(0), pointer=(PoolPosition(1),), pointer_global=(ExampleId(9),), gen_method="beam", beam_rank=2
)


def test_references_are_distinct_with_the_shown_answer_first() -> None:
    assert references_of(QUERY) == ("cat", "dog", "cow")
    assert references_of(example(0, answer="emu", answers=("cat", "cat"))) == ("emu", "cat")


def test_the_expected_accuracy_weighs_every_reference_by_its_probability() -> None:
    log_probs = [math.log(0.5), math.log(0.2), math.log(0.1)]
    scored = score_trajectory(PROPOSAL, QUERY, "cat", log_probs)
    # six of ten answers are cat: 1; two of ten are dog or cow: .6 (tool with leave-one-out)
    assert scored.vqa_gt_prob == pytest.approx(0.5 + 0.6 * 0.2 + 0.6 * 0.1, abs=1e-6)
    assert scored.vqa_gt_logprob == pytest.approx(math.log(0.5), abs=1e-5)
    assert (scored.beam_rank, scored.gen_method, scored.pointer_global) == (2, "beam", (9,))


@pytest.mark.parametrize(
    ("text", "answer", "accuracy"),
    [
        ("cat", "cat", 1.0),
        ("dog, a big one", "dog", 0.6),
        ("the cat Question: what?", "the cat", 1.0),
        ("bird", "bird", 0.0),
    ],
)
def test_answers_are_cut_and_scored(text: str, answer: str, accuracy: float) -> None:
    scored = score_trajectory(PROPOSAL, QUERY, text, [0.0, 0.0, 0.0])
    assert scored.vqa_raw_generation == text
    assert scored.vqa_pred_answer == answer
    assert scored.vqa_acc_score == pytest.approx(accuracy)
    assert scored.vqa_correct == (accuracy > 0)
    assert (scored.vqa_rel_score == 1.0) == (accuracy > 0)


def test_a_selection_from_another_pool_is_refused() -> None:
    rows = [trajectory(pool(0, [4, 9, 2]), [1, 0], 1.0)]
    with pytest.raises(RecordError, match=r"query 0: .*pointer_global"):
        make_group(example(0), pool(0, [9, 4, 2]), rows)
    with pytest.raises(RecordError, match="pointer"):
        make_group(example(0), pool(0, [4]), rows)


def test_summary_by_hand() -> None:
    def group(query_id: int, *rows: tuple[tuple[int, int], float]) -> RlGroup:
        of = pool(query_id, ids(range(10, 14)))
        return make_group(example(query_id), of, [trajectory(of, pointer, accuracy) for pointer, accuracy in rows])

    groups = [
        group(0, ((0, 1), 0.0), ((1, 0), 0.0)),  # all negative; two orders are two selections
        group(1, ((0, 1), 1.0), ((0, 1), 1.0), ((0, 2), 0.6)),  # all positive; one repeat
        group(2, ((0, 1), 0.6), ((1, 2), 0.0), ((2, 3), 1.0)),  # mixed
    ]
    # Rewards, correctness plus accuracy: 0 0 | 2 2 1.6 | 1.6 0 2, mean 9.2 / 8 = 1.15; squares sum to 17.12, so the
    # variance is 2.14 - 1.3225 = 0.8175.
    assert summarise(groups) == {
        "queries": 3,
        "trajectories": 8,
        "traj_per_query": 2.666667,
        "traj_min": 2,
        "traj_max": 3,
        "positive_trajectories": 5,
        "positive_pct": 62.5,
        "queries_with_positive": 2,
        "queries_with_positive_pct": 66.666667,
        "all_negative_queries": 1,
        "all_positive_queries": 1,
        "mixed_queries": 1,
        "one_accuracy_queries": 1,
        "duplicate_selections": 1,
        "mean_accuracy": 0.525,
        "mean_reward": 1.15,
        "reward_std": pytest.approx(0.8175**0.5, abs=1e-6),  # the summary rounds to six digits
        "accuracy_0": 3,
        "accuracy_0.6": 2,
        "accuracy_1": 3,
    }


def test_a_query_without_trajectories_counts_as_all_negative() -> None:
    assert set(summarise([]).values()) == {0}
    facts = summarise([make_group(example(0), pool(0, range(10, 14)), [])])
    assert (facts["all_negative_queries"], facts["all_positive_queries"], facts["traj_min"]) == (1, 0, 0)


def of_positives(query: int, n_positive: int, n: int = 20) -> RlGroup:
    """Return a group of `n` selections of which `n_positive` earn something, the least at that."""
    of = pool(query, range(100, 108))
    pairs = list(itertools.permutations(range(8), 2))[:n]
    rows = [trajectory(of, pair, 0.3 if i < n_positive else 0.0) for i, pair in enumerate(pairs)]
    return make_group(example(query), of, rows)


@pytest.mark.parametrize(
    ("n_positive", "fate"),
    [
        (0, "low"),
        (7, "low"),
        (8, "kept"),
        (9, "kept"),
        (11, "kept"),
        (12, "kept"),
        (13, "high"),
        (20, "high"),
    ],
)
def test_a_query_is_kept_by_its_share_of_positive_trajectories_bounds_included(n_positive: int, fate: str) -> None:
    anchors = [of_positives(1, 10), of_positives(2, 10)]  # kept, so that there are enough
    groups = [anchors[0], of_positives(3, n_positive), anchors[1]]
    kept, counts = keep_balanced(groups, Balance(), source="RL data")
    assert kept == (groups if fate == "kept" else anchors)
    assert counts == {
        "balance_kept": len(kept),
        "balance_rejected_low": int(fate == "low"),
        "balance_rejected_high": int(fate == "high"),
    }
