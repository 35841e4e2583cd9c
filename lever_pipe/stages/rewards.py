"""Compute one reward per trajectory, and measure the spread of each reward."""

from __future__ import annotations

from lever_pipe.base import storage
from lever_pipe.base.records import RewardTies, RlGroup
from lever_pipe.experiment.reward import MeasureRewardsConfig, RewardGroupsConfig
from lever_pipe.experiment.stage_files import Input, Output
from lever_pipe.lever.rewards import BinRow, bins, reward_function
from lever_pipe.lever.training.best import keep_best
from lever_pipe.lever.training.groups import pad_groups, save_groups
from lever_pipe.losses.rce import reward_ranges
from lever_pipe.losses.reduction import group_has_spread
from lever_pipe.report.long_format import write_csv

ALL = "all"
CLEARLY = 0.1
"""Smallest difference of rewards that counts as clear."""


def reward_groups(*, rl_data: Input, groups: Output, config: RewardGroupsConfig) -> int:
    """Write the padded groups, so that epochs need not parse the rows again; return the number of queries."""
    padded = pad_groups(storage.read_rows(rl_data, RlGroup), reward_function(config.reward))
    save_groups(groups, padded)
    return len(padded)


def measure_rewards(
    *, rl_data: Input, ties: Output, histogram: Output, config: MeasureRewardsConfig
) -> list[RewardTies]:
    """Write and return, for each reward, the shares of queries with different rewards and with nonzero advantages.

    `histogram` contains a `BinRow` for each bin of rewards, and of the offline objective's advantages over the best
    selections and over all.
    """
    groups = storage.read_rows(rl_data, RlGroup)
    limits = config.model_dump(include={"z_clamp", "advantage_std_floor", "advantage_clamp"})
    rows: list[RewardTies] = []
    bin_rows: list[BinRow] = []
    for reward in config.rewards:
        rewarded = pad_groups(groups, reward_function(reward))
        bin_rows += bins(reward, "reward", ALL, rewarded.rewards, rewarded.valid)
        moved: dict[str, float] = {}
        # As k, the width of the padded groups selects all trajectories.
        for name, k in {**{str(k): k for k in config.selected}, ALL: rewarded.valid.shape[1]}.items():
            selected, advantages = keep_best(rewarded, k, **limits)
            bin_rows += bins(reward, "advantage", name, advantages, selected.valid)
            moved[name] = float((advantages != 0).any(dim=1).double().mean())
        row = RewardTies(
            mode=reward.mode,
            weights=reward.model_dump(exclude={"mode"}),
            queries=len(rewarded),
            differ=float(group_has_spread(rewarded.rewards, rewarded.valid).double().mean()),
            differ_clearly=float((reward_ranges(rewarded.rewards, rewarded.valid) > CLEARLY).double().mean()),
            best_differ={str(k): moved[str(k)] for k in config.selected},
        )
        rows.append(row)
    storage.write_rows(ties, rows)
    write_csv(histogram, BinRow._fields, bin_rows)
    return rows
