"""The selected trajectories of a group and their advantages."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from lever_pipe.lever.training.groups import Groups
from lever_pipe.losses.advantages import group_advantages, published_z_scores, top_k_by_reward


def keep_best(
    groups: Groups, k: int, *, z_clamp: float, advantage_std_floor: float, advantage_clamp: float
) -> tuple[Groups, Tensor]:
    """Return the k best-rewarded selections of every query and their advantages `[B, k]`."""
    # As published, rewards are standardised twice: over all selections, then over the k best.
    z = published_z_scores(groups.rewards, groups.valid, clamp=z_clamp)
    best, valid = top_k_by_reward(z, groups.valid, k)
    shots = groups.selections.shape[-1]
    selections = groups.selections.gather(1, best[..., None].expand(-1, -1, shots))
    advantages = group_advantages(z.gather(1, best), valid, std_floor=advantage_std_floor, clamp=advantage_clamp)
    rewards = groups.rewards.gather(1, best)
    return replace(groups, selections=selections, rewards=rewards, valid=valid), advantages
