"""Rule `measure_rewards`: how many groups of the RL data each reward leaves without a gradient."""

from __future__ import annotations

from lever_pipe.base import storage
from lever_pipe.base.records import RewardTies, RlGroup
from lever_pipe.experiment.stage_configs import MeasureRewardsConfig
from lever_pipe.experiment.stage_files import Input, Output
from lever_pipe.lever.rewards import reward_function
from lever_pipe.lever.training.groups import Groups, keep_best, pad_groups
from lever_pipe.losses.rce import reward_ranges
from lever_pipe.losses.reduction import group_has_spread

CLEARLY = 0.1
"""Difference of rewards beyond which two selections are told apart by more than a nuance."""


def measure_rewards(*, rl_data: Input, ties: Output, config: MeasureRewardsConfig) -> list[RewardTies]:
    """Write and return, for each reward, in what share of the queries the selections differ and the best ones move.

    Raises:
        RecordError: malformed RL data, an empty group, or selections or pools of unequal length.
    """
    groups = storage.read_rows(rl_data, RlGroup)
    rows = []
    for reward in config.rewards:
        rewarded = pad_groups(groups, reward_function(reward))
        row = RewardTies(
            mode=reward.mode,
            weights=reward.model_dump(exclude={"mode"}),
            queries=len(rewarded),
            differ=float(group_has_spread(rewarded.rewards, rewarded.valid).double().mean()),
            differ_clearly=float((reward_ranges(rewarded.rewards, rewarded.valid) > CLEARLY).double().mean()),
            best_differ={str(k): _gradient_share(rewarded, k, config) for k in config.kept},
        )
        rows.append(row)
    storage.write_rows(ties, rows)
    return rows


def _gradient_share(groups: Groups, k: int, config: MeasureRewardsConfig) -> float:
    """Return the share of queries of whose k best selections some has an advantage."""
    limits = config.model_dump(include={"z_clamp", "advantage_std_floor", "advantage_clamp"})
    _, advantages = keep_best(groups, k, **limits)
    return float((advantages != 0).any(dim=1).double().mean())
