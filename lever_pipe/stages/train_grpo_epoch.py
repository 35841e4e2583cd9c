"""Rule `train_grpo_epoch`: one epoch of offline GRPO from a named RCE epoch."""

from __future__ import annotations

from lever_pipe.base.records import EpochMetrics
from lever_pipe.experiment import execution
from lever_pipe.experiment.stage_configs import Runtime, TrainGrpoEpochConfig
from lever_pipe.experiment.stage_files import Input, Output
from lever_pipe.lever.training.epoch import EpochFiles
from lever_pipe.lever.training.grpo import train_grpo


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
    device = execution.prepare(runtime)
    files = EpochFiles(groups, embeddings, start, start_optimiser, selector, optimiser, metrics)
    policy = config.policy("grpo", base=config.base_rce_epoch, beta=config.kl_beta)
    return train_grpo(files, reference, config, policy, device=device)
