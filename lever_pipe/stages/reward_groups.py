"""Rule `reward_groups`: RL data with one reward a trajectory, as the tensors that training reads."""

from __future__ import annotations

import time
from pathlib import Path

from lever_pipe import storage
from lever_pipe.records import RlGroup, Trajectory
from lever_pipe.rewards import RewardInputs, RewardWeights, reward
from lever_pipe.run_card import write_card
from lever_pipe.stage_configs import RewardGroupsConfig, Runtime
from lever_pipe.training.groups import pad_groups, save_groups


def reward_groups(
    *, rl_data: Path, groups: Path, card: Path, config: RewardGroupsConfig, runtime: Runtime = Runtime()
) -> int:
    """Write the padded groups and return how many queries there are; epochs need not parse the rows again.

    Raises:
        RecordError: malformed RL data, an empty group, or selections or pools of unequal length.
    """
    started = time.perf_counter()
    weights = RewardWeights(**config.reward.model_dump(exclude={"mode"}))

    def reward_of(trajectory: Trajectory) -> float:
        return reward(config.reward.mode, _reward_inputs(trajectory), weights)

    padded = pad_groups(storage.read_rows(rl_data, RlGroup), reward_of)
    save_groups(groups, padded)
    inputs = {"rl_data": rl_data}
    write_card(card, stage="reward_groups", config=config, inputs=inputs, started=started, runtime=runtime)
    return len(padded)


def _reward_inputs(trajectory: Trajectory) -> RewardInputs:
    quality = trajectory.beam_score if trajectory.beam_score is not None else -(trajectory.logprob_score or 0.0)
    return RewardInputs(
        correct=trajectory.vqa_correct,
        accuracy=trajectory.vqa_acc_score,
        gt_prob=trajectory.vqa_gt_prob,
        relevance=trajectory.vqa_rel_score,
        quality=quality,
    )
