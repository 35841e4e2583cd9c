"""Rule `reward_groups`: RL data with one reward a trajectory, as the tensors that training reads."""

from __future__ import annotations

from lever_pipe.base import storage
from lever_pipe.base.records import RlGroup
from lever_pipe.experiment.stage_configs import RewardGroupsConfig
from lever_pipe.experiment.stage_files import Input, Output
from lever_pipe.lever.rewards import reward_function
from lever_pipe.lever.training.groups import pad_groups, save_groups


def reward_groups(*, rl_data: Input, groups: Output, config: RewardGroupsConfig) -> int:
    """Write the padded groups and return how many queries there are; epochs need not parse the rows again.

    Raises:
        RecordError: malformed RL data, an empty group, or selections or pools of unequal length.
    """
    padded = pad_groups(storage.read_rows(rl_data, RlGroup), reward_function(config.reward))
    save_groups(groups, padded)
    return len(padded)
