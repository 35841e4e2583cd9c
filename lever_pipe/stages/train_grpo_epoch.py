"""Rule `train_grpo_epoch`: one epoch of offline GRPO from a named RCE epoch."""

from __future__ import annotations

from lever_pipe.base.records import EpochMetrics
from lever_pipe.base.seeding import torch_generator
from lever_pipe.experiment import execution
from lever_pipe.experiment.stage_configs import Runtime, TrainGrpoEpochConfig
from lever_pipe.experiment.stage_files import Input, Output
from lever_pipe.lever.training.epoch import EpochFiles, SelectorEpoch
from lever_pipe.lever.training.grpo import grpo_epoch, kept_in_epoch
from lever_pipe.lever.training.policies import Policies, trained_share


def train_grpo_epoch(
    *,
    groups: Input,
    embeddings: Input,
    start: Input,
    start_optimiser: Input,
    reference: Input,
    selector: Output,
    optimiser: Output,
    metrics: Output,
    config: TrainGrpoEpochConfig,
    runtime: Runtime = Runtime(),
) -> EpochMetrics:
    """Advance the selector by one GRPO epoch and return its mean terms.

    Raises:
        CheckpointError: `start` or `reference` has another architecture.
        RecordError: malformed groups.
        TrainingError: a loss or a gradient is not finite.
    """
    files = EpochFiles(groups, embeddings, start, start_optimiser, selector, optimiser, metrics)
    device, freezes = execution.prepare(runtime), config.grpo.freeze_projections
    epoch = SelectorEpoch(files, config, config.grpo, "grpo", device, freezes=freezes)
    kl_beta = grpo_epoch(
        epoch.updates,
        Policies(epoch.module, epoch.anchor(reference)),
        epoch.data.table,
        kept_in_epoch(epoch.data.train, config.grpo, config.epoch),
        kl_beta=config.kl_beta if epoch.kl_beta is None else epoch.kl_beta,
        settings=config.grpo,
        generator=torch_generator(config.seed, "grpo", config.epoch),
    )
    policy = config.policy("grpo", base=config.base_rce_epoch, beta=config.kl_beta)
    more = {"kl_beta": kl_beta, "trained_share": trained_share(epoch.module)}
    return epoch.finish(policy, kl_beta=kl_beta, more=more)
