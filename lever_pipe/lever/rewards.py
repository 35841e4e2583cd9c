"""The rewards of a scored selection, one named function a mode.

h = correct (0 or 1), a = accuracy, p = gt_prob, r = relevance; w_h, w_s, w_r = the weights.
Since h = [a > 0], the modes made of h and a alone recode the accuracy monotonically.

Source: Lever-Plus published code, except `expected_only`, `accuracy_plus_expected` and `hybrid` (this project).

A mode may also be a plugin outside the package (`base.plugins`): `lever/rewards/NAME.py` with a function `reward` of
the same arguments.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from torch import Tensor

from lever_pipe.base.plugins import plugin
from lever_pipe.base.records import Trajectory
from lever_pipe.experiment.reward import Reward

LOWEST_REWARD, HIGHEST_REWARD = -5.0, 5.0
BIN_WIDTHS = {"reward": 0.1, "advantage": 0.25}
"""Width of a histogram bin, which includes its low end and excludes its high end."""
ROUNDING = 1e-5  # of a bin: without it, 0.6 as a float32 would fall below the bin that begins there


@dataclass(frozen=True, slots=True)
class RewardInputs:
    """Scores of one selection that a reward may use."""

    correct: int
    """1 if the accuracy is above 0, else 0."""
    accuracy: float
    """VQA accuracy in [0, 1]."""
    gt_prob: float
    """Probability of the reference answers under the answering model, each weighted by its accuracy, in [0, 1]."""
    relevance: float
    """Similarity of the answer to the nearest reference, in [0, 1]."""
    quality: float = 0.0
    """The generator's own score of the selection, in the generator's unit."""


RewardMode = Callable[[RewardInputs, Reward], float]


def hard_plus_soft(inputs: RewardInputs, weights: Reward) -> float:
    """Return w_h h + w_s a: 0, 1.6 or 2 on OK-VQA with the default weights."""
    return weights.hard * inputs.correct + weights.soft * inputs.accuracy


def hard_plus_soft_v2(inputs: RewardInputs, weights: Reward) -> float:
    """Return w_s a + 2 w_h h: 0, 2.6 or 3 on OK-VQA with the default weights."""
    return weights.soft * inputs.accuracy + 2 * weights.hard * inputs.correct


def hard_only(inputs: RewardInputs, weights: Reward) -> float:
    """Return w_h h."""
    return weights.hard * inputs.correct


def soft_only(inputs: RewardInputs, weights: Reward) -> float:
    """Return w_s a."""
    return weights.soft * inputs.accuracy


def separated(inputs: RewardInputs, weights: Reward) -> float:
    """Return 2 w_h + w_s a if correct, else w_s a."""
    bonus = 2 * weights.hard if inputs.correct else 0.0
    return bonus + weights.soft * inputs.accuracy


def hard01_plus_gtprob(inputs: RewardInputs, weights: Reward) -> float:
    """Return w_h h + w_s p."""
    return weights.hard * inputs.correct + weights.soft * inputs.gt_prob


def hard01_plus_gtprob_separated(inputs: RewardInputs, weights: Reward) -> float:
    """Return 2 w_h + w_s p if correct, else w_s p."""
    bonus = 2 * weights.hard if inputs.correct else 0.0
    return bonus + weights.soft * inputs.gt_prob


def hard_plus_gtprob_plus_rel(inputs: RewardInputs, weights: Reward) -> float:
    """Return w_h h + w_s p + w_r (1 - h) r: relevance ranks the failures."""
    failure_bonus = weights.relevance * (1 - inputs.correct) * inputs.relevance
    return hard01_plus_gtprob(inputs, weights) + failure_bonus


def expected_only(inputs: RewardInputs, weights: Reward) -> float:
    """Return w_s p: a dense reward, because p differs between selections whose answers earn the same.

    With p = sum over distinct references of weight times probability, it is the expected accuracy of a sampled answer,
    not the accuracy of the likeliest one.
    """
    return weights.soft * inputs.gt_prob


def accuracy_plus_expected(inputs: RewardInputs, weights: Reward) -> float:
    """Return w_h a + w_s p: the accuracy of the likeliest answer, with ties broken by the expected accuracy."""
    return weights.hard * inputs.accuracy + weights.soft * inputs.gt_prob


def legacy(inputs: RewardInputs, weights: Reward) -> float:
    """Return alpha quality + beta c, c = h or 2 h - 1 by `weights.correctness`.

    0 with the default weights.
    """
    correctness = inputs.correct if weights.correctness == "01" else 2 * inputs.correct - 1
    return weights.alpha * inputs.quality + weights.beta * correctness


def hybrid(inputs: RewardInputs, weights: Reward) -> float:
    """Return h w_s a + (1 - h) w_r (p + r) / 2: accuracy, and for failures a smaller graded reward.

    The published code accepts the name and then raises; this definition is this project's own.
    With the default weights a failure earns at most 0.1, less than the smallest success (0.3).
    """
    success = weights.soft * inputs.accuracy
    failure = weights.relevance * (inputs.gt_prob + inputs.relevance) / 2
    return inputs.correct * success + (1 - inputs.correct) * failure


REWARD_MODES: dict[str, RewardMode] = {
    mode.__name__: mode
    for mode in (
        hard_plus_soft,
        hard_plus_soft_v2,
        hard_only,
        soft_only,
        separated,
        hard01_plus_gtprob,
        hard01_plus_gtprob_separated,
        hard_plus_gtprob_plus_rel,
        expected_only,
        accuracy_plus_expected,
        legacy,
        hybrid,
    )
}


def reward_function(settings: Reward) -> Callable[[Trajectory], float]:
    """Return the function that computes the configured reward of a scored trajectory."""

    def of(trajectory: Trajectory) -> float:
        # As published: without a beam score, the quality is the negative log-probability.
        quality = trajectory.beam_score if trajectory.beam_score is not None else -(trajectory.logprob_score or 0.0)
        inputs = RewardInputs(
            correct=trajectory.vqa_correct,
            accuracy=trajectory.vqa_acc_score,
            gt_prob=trajectory.vqa_gt_prob,
            relevance=trajectory.vqa_rel_score,
            quality=quality,
        )
        return reward(inputs, settings)

    return of


def reward(inputs: RewardInputs, settings: Reward) -> float:
    """Return the reward of one scored selection, limited to [-5, 5]."""
    mode: RewardMode = REWARD_MODES.get(settings.mode) or plugin("lever/rewards", settings.mode).reward
    value = mode(inputs, settings)
    if not math.isfinite(value):
        raise ValueError(f"the {settings.mode} reward must be finite, got {value} from {inputs}")
    return min(max(float(value), LOWEST_REWARD), HIGHEST_REWARD)


class BinRow(NamedTuple):
    """A line of `rewards.csv`; empty bins have none, and exact zeros have a separate bin from 0 to 0."""

    mode: str  # of the reward, with its weights as in `ties.csv`
    hard: float
    soft: float
    relevance: float
    what: str  # `reward` or `advantage`
    selected: str  # number of best-rewarded selections of a query that count, or `all`
    low: float
    high: float
    n: int  # selections
    share: float  # of all that count, in [0, 1]


def bins(reward: Reward, what: str, selected: str, values: Tensor, valid: Tensor) -> Iterator[BinRow]:
    """Yield the bins of the valid values `[B, G]`, rising; `what` is a key of `BIN_WIDTHS`."""
    width = BIN_WIDTHS[what]
    usable = values[valid].double().numpy()
    zeros = int((usable == 0).sum())
    counts = Counter(np.floor(usable[usable != 0] / width + ROUNDING).astype(int).tolist())
    ends = [(0.0, 0.0, zeros)] if zeros else []
    ends += [(round(number * width, 9), round((number + 1) * width, 9), n) for number, n in counts.items()]
    for low, high, n in sorted(ends):
        yield BinRow(
            reward.mode, reward.hard, reward.soft, reward.relevance, what, selected, low, high, n, n / len(usable)
        )
