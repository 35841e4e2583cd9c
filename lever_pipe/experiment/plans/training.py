"""Configurations of the stages that reward trajectories and train selectors."""

from __future__ import annotations

from typing import Any

from lever_pipe.base.provenance import canonical_json
from lever_pipe.experiment.arms import Preset
from lever_pipe.experiment.distil import TrainDistilEpochConfig
from lever_pipe.experiment.grpo import TrainGrpoEpochConfig
from lever_pipe.experiment.on_policy import OnPolicy, TrainOnPolicyEpochConfig
from lever_pipe.experiment.plans.grid import Wildcards
from lever_pipe.experiment.plans.models import lvlm_config
from lever_pipe.experiment.rce import ContinuedRce, TrainContinuedEpochConfig, TrainRceEpochConfig
from lever_pipe.experiment.reward import MeasureRewardsConfig, Reward, RewardGroupsConfig
from lever_pipe.experiment.selector import InitialiseSelectorConfig
from lever_pipe.experiment.sft import TrainSftEpochConfig
from lever_pipe.experiment.studies import Experiment

GRPO_IN_CONTINUED = {"learning_rate", "batch_queries", "weight_decay", "freeze_projections", "reward"}
"""Settings that continued RCE copies from the preset's offline GRPO."""


def grpo_groups(experiment: Experiment, preset: str) -> str:
    """Return the name of the rewarded groups for offline GRPO."""
    return "groups" if experiment.presets[preset].grpo.reward is None else "grpo_groups"


def reward_groups(experiment: Experiment, wildcards: Wildcards) -> RewardGroupsConfig:
    preset = experiment.presets[wildcards["preset"]]
    reward = preset.grpo.reward if wildcards["rewarded"] == "grpo_groups" else None
    return RewardGroupsConfig(reward=reward or preset.reward)


def measure_rewards(experiment: Experiment, _: Wildcards) -> MeasureRewardsConfig:
    """Apply the rewards in use and the dense ones, each once."""
    presets = [experiment.presets[arm.preset] for arm in experiment.written_arms]
    dense = [Reward(mode=mode) for mode in ("soft_only", "expected_only", "accuracy_plus_expected")]
    of_presets = [(preset.reward, preset.grpo.reward, preset.on_policy.reward) for preset in presets]
    rewards = [reward for used in of_presets for reward in used if reward] + dense
    distinct = {canonical_json(reward.model_dump(mode="json")): reward for reward in rewards}
    grpo = experiment.presets[experiment.arms[0].preset].grpo
    selected = sorted({grpo.top_k_first_epoch, grpo.top_k})
    return MeasureRewardsConfig.of(grpo, rewards=list(distinct.values()), selected=selected)


def initialise_selector(experiment: Experiment, wildcards: Wildcards) -> InitialiseSelectorConfig:
    name = wildcards["preset"]
    return InitialiseSelectorConfig(preset=name, selector=experiment.presets[name].selector, seed=wildcards["seed"])


def train_sft_epoch(experiment: Experiment, wildcards: Wildcards) -> TrainSftEpochConfig:
    preset, epoch = _epoch(experiment, wildcards)
    return TrainSftEpochConfig(**epoch, sft=preset.sft)


def train_rce_epoch(experiment: Experiment, wildcards: Wildcards) -> TrainRceEpochConfig:
    preset, epoch = _epoch(experiment, wildcards)
    return TrainRceEpochConfig(**epoch, rce=preset.rce, rce_from_sft_epoch=preset.rce_from_sft_epoch)


def train_grpo_epoch(experiment: Experiment, wildcards: Wildcards) -> TrainGrpoEpochConfig:
    preset, epoch = _epoch_from_base(experiment, wildcards)
    return TrainGrpoEpochConfig(**epoch, grpo=preset.grpo, kl_beta=wildcards["beta"])


def train_on_policy_epoch(experiment: Experiment, wildcards: Wildcards) -> TrainOnPolicyEpochConfig:
    preset, epoch = _epoch_from_base(experiment, wildcards)
    return TrainOnPolicyEpochConfig(
        **epoch,
        normalise_references=experiment.evaluation.normalise_references,
        objective=wildcards["objective"],
        lvlm=lvlm_config(experiment.lvlm),
        on_policy=_on_policy(preset.on_policy, wildcards["objective"]),
        kl_beta=wildcards["beta"],
    )


def train_distil_epoch(experiment: Experiment, wildcards: Wildcards) -> TrainDistilEpochConfig:
    preset, epoch = _epoch_from_base(experiment, wildcards)
    references = experiment.evaluation.normalise_references
    return TrainDistilEpochConfig(**epoch, normalise_references=references, distil=preset.distil)


def train_continued_epoch(experiment: Experiment, wildcards: Wildcards) -> TrainContinuedEpochConfig:
    """Continue at the end of RCE's schedule, with data, batch, steps and learning rate of offline GRPO."""
    preset, epoch = _epoch_from_base(experiment, wildcards)
    shared = preset.grpo.model_dump(include=GRPO_IN_CONTINUED)
    constant = {"final_learning_rate_share": 1.0, "temperature_start": preset.rce.temperature_end, "passes": 1}
    continued = ContinuedRce(**preset.rce.model_dump() | shared | constant | {"horizon_epochs": 1})
    return TrainContinuedEpochConfig(**epoch, continued=continued)


def _epoch(experiment: Experiment, wildcards: Wildcards) -> tuple[Preset, dict[str, Any]]:
    """Return a run's preset, and the values of `TrainingConfig`."""
    name, preset = wildcards["preset"], experiment.presets[wildcards["preset"]]
    values = {"preset": name, "selector": preset.selector, "seed": wildcards["seed"], "epoch": wildcards["epoch"]}
    return preset, values | {"train_share": preset.train_share, "max_gradient_norm": preset.max_gradient_norm}


def _epoch_from_base(experiment: Experiment, wildcards: Wildcards) -> tuple[Preset, dict[str, Any]]:
    """Return a run's preset, and the values of `TrainingFromBaseConfig`."""
    preset, epoch = _epoch(experiment, wildcards)
    return preset, epoch | {"base_rce_epoch": wildcards["base"]}


def _on_policy(settings: OnPolicy, objective: str) -> OnPolicy:
    """Return a run's on-policy settings, with those that it does not read at their defaults."""
    if objective == "reinforce":
        # REINFORCE takes one step per batch of samples, so smaller batches give it as many steps as GRPO. Its baseline
        # comes from the batch and contains no sample of the same query.
        smaller = max(1, settings.batch_queries // settings.updates)
        update = {"updates": 1, "batch_queries": smaller, "advantages": "batch"}
        settings = settings.at_defaults("clip_epsilon").model_copy(update=update)
    if settings.advantages != "standardised":
        settings = settings.at_defaults("advantage_std_floor", "advantage_clamp")
    return settings
