"""Rule `train_rce_epoch`: one epoch of reward-weighted cross-entropy."""

from __future__ import annotations

from lever_pipe.base.records import EpochMetrics
from lever_pipe.experiment import execution
from lever_pipe.experiment.stage_configs import Runtime, TrainRceEpochConfig
from lever_pipe.experiment.stage_files import Input, Output
from lever_pipe.lever.training.epoch import EpochFiles, SelectorEpoch
from lever_pipe.lever.training.rce import rce_epoch


def train_rce_epoch(
    *,
    groups: Input,
    embeddings: Input,
    start: Input,
    start_optimiser: Input,
    selector: Output,
    optimiser: Output,
    metrics: Output,
    config: TrainRceEpochConfig,
    runtime: Runtime = Runtime(),
) -> EpochMetrics:
    """Advance the selector by one RCE epoch and return its mean terms.

    Raises:
        CheckpointError: `start` has another architecture.
        RecordError: malformed groups.
        TrainingError: a loss or a gradient is not finite.
    """
    files = EpochFiles(groups, embeddings, start, start_optimiser, selector, optimiser, metrics)
    epoch = SelectorEpoch(files, config, config.rce, "rce", execution.prepare(runtime))
    table, train, _ = epoch.data
    with epoch.streams() as order:
        rce_epoch(epoch.updates, table, train, config.rce, config.epoch, order)
    return epoch.finish(config.policy("rce"))
