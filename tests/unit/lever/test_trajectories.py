from __future__ import annotations

import math

import pytest
from builders import example, ids, pool, trajectory

from lever_pipe.base.errors import RecordError
from lever_pipe.base.records import ExampleId, PoolPosition, Proposal
from lever_pipe.lever.trajectories import make_group, references_of, score_trajectory

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
    # six of ten say cat: 1; two of ten say dog or cow: .6 (tool with leave-one-out)
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


def test_every_reference_needs_a_probability() -> None:
    with pytest.raises(ValueError, match="zip"):
        score_trajectory(PROPOSAL, QUERY, "cat", [0.0])


def test_a_group_repeats_the_query_and_its_pool() -> None:
    of = pool(0, [4, 9, 2])
    group = make_group(example(0, answers=("A cat.", "cat")), of, [trajectory(of, [1, 0], 1.0)])
    assert group.candidate_pool_ids == ids([4, 9, 2])
    assert group.query.gt_answers_raw == ("A cat.", "cat")
    assert group.query.gt_answers_norm == ("cat", "cat")
    assert group.pointer_candidates[0].pointer_global == (9, 4)


def test_a_selection_from_another_pool_is_refused() -> None:
    rows = [trajectory(pool(0, [4, 9, 2]), [1, 0], 1.0)]
    with pytest.raises(RecordError, match=r"trajectories of query 0: .*pool\[pointer\] differs from pointer_global"):
        make_group(example(0), pool(0, [9, 4, 2]), rows)
    with pytest.raises(RecordError, match=r"pointer must lie in 0\.\.0, is \[1, 0\]"):
        make_group(example(0), pool(0, [4]), rows)
