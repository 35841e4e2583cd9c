from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from builders import pool, trajectory

from lever_pipe.experiment.reward import Reward
from lever_pipe.lever.rewards import REWARD_MODES, RewardInputs, reward, reward_function

WRONG = RewardInputs(correct=0, accuracy=0.0, gt_prob=0.5, relevance=0.4)
PARTLY = RewardInputs(correct=1, accuracy=0.6, gt_prob=0.5, relevance=0.4)
RIGHT = RewardInputs(correct=1, accuracy=1.0, gt_prob=0.5, relevance=0.4)
DEFAULT: dict[str, Any] = {}


def earned(mode: str, inputs: RewardInputs, weights: dict[str, Any]) -> float:
    return reward(inputs, Reward(mode=mode, **weights))


@pytest.mark.parametrize(
    ("mode", "values"),
    [
        # with h = 0, 1, 1; a = 0, .6, 1; p = .5; r = .4; weights 1.5, 2, .5
        ("hard_plus_soft", (0.0, 1.5 + 1.2, 1.5 + 2)),
        ("hard_plus_soft_v2", (0.0, 1.2 + 3, 2 + 3)),
        ("hard_only", (0.0, 1.5, 1.5)),
        ("soft_only", (0.0, 1.2, 2.0)),
        ("separated", (0.0, 3 + 1.2, 3 + 2)),
        ("hard01_plus_gtprob", (1.0, 2.5, 2.5)),
        ("hard01_plus_gtprob_separated", (1.0, 3 + 1, 3 + 1)),
        ("hard_plus_gtprob_plus_rel", (1 + 0.2, 2.5, 2.5)),
        ("expected_only", (1.0, 1.0, 1.0)),
        ("accuracy_plus_expected", (1.0, 0.9 + 1, 1.5 + 1)),
        ("legacy", (0.0, 0.0, 0.0)),
        ("hybrid", (0.225, 1.2, 2.0)),  # .5 * (.5 + .4) / 2
    ],
)
def test_every_weight_reaches_its_part(mode: str, values: tuple[float, ...]) -> None:
    weights = dict[str, Any](hard=1.5, soft=2, relevance=0.5)
    got = [earned(mode, inputs, weights) for inputs in (WRONG, PARTLY, RIGHT)]
    assert got == pytest.approx(values, abs=1e-12)


def test_legacy_reads_quality_and_the_sign_of_failure() -> None:
    weights = dict[str, Any](alpha=0.5, beta=2.0)
    signed = weights | {"correctness": "-11"}
    wrong, right = replace(WRONG, quality=0.2), replace(RIGHT, quality=0.2)
    assert earned("legacy", wrong, weights) == pytest.approx(0.1, abs=1e-12)
    assert earned("legacy", right, weights) == pytest.approx(2.1, abs=1e-12)
    assert earned("legacy", wrong, signed) == pytest.approx(-1.9, abs=1e-12)
    assert earned("legacy", right, signed) == pytest.approx(2.1, abs=1e-12)


@pytest.mark.parametrize(
    ("scores", "quality"),
    [({"beam_score": 0.3, "logprob_score": -2.0}, 0.3), ({"logprob_score": -2.0}, 2.0), ({}, 0.0)],
)
def test_the_quality_of_a_proposal_is_its_beam_score_or_its_negated_log_probability(
    scores: dict[str, float], quality: float
) -> None:
    row = trajectory(pool(0, [4, 9]), [1], 0.0, **scores)
    assert reward_function(Reward(mode="legacy", alpha=0.5, beta=0.0))(row) == 0.5 * quality


@pytest.mark.parametrize("mode", sorted(REWARD_MODES))
def test_a_better_answer_never_earns_less(mode: str) -> None:
    weights = dict[str, Any](beta=1.0)
    best_failure = replace(WRONG, gt_prob=1.0, relevance=1.0)
    likely = [replace(inputs, gt_prob=1.0) for inputs in (PARTLY, RIGHT)]
    rewards = [earned(mode, inputs, weights) for inputs in (best_failure, *likely)]
    assert rewards == sorted(rewards)


def test_rewards_are_limited_and_numbers() -> None:
    assert earned("soft_only", RIGHT, dict[str, Any](soft=99)) == 5.0
    assert earned("legacy", WRONG, dict[str, Any](beta=99, correctness="-11")) == -5.0
    with pytest.raises(ValueError):
        earned("soft_only", replace(WRONG, accuracy=math.nan), DEFAULT)
