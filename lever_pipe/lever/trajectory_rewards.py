"""From a scored trajectory to its configured reward."""

from __future__ import annotations

from collections.abc import Callable

from lever_pipe.base.records import Trajectory
from lever_pipe.experiment.config import Reward
from lever_pipe.lever.rewards import RewardInputs, RewardWeights, reward


def reward_function(settings: Reward) -> Callable[[Trajectory], float]:
    """Return the function that gives a scored trajectory its configured reward."""
    weights = RewardWeights(**settings.model_dump(exclude={"mode"}))

    def of(trajectory: Trajectory) -> float:
        quality = trajectory.beam_score if trajectory.beam_score is not None else -(trajectory.logprob_score or 0.0)
        inputs = RewardInputs(
            correct=trajectory.vqa_correct,
            accuracy=trajectory.vqa_acc_score,
            gt_prob=trajectory.vqa_gt_prob,
            relevance=trajectory.vqa_rel_score,
            quality=quality,
        )
        return reward(settings.mode, inputs, weights)

    return of
