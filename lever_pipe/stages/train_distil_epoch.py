"""Rule `train_distil_epoch`: one epoch of learning what the pool oracle would choose."""

from __future__ import annotations

from lever_pipe.base import storage
from lever_pipe.base.records import EpochMetrics
from lever_pipe.experiment import execution
from lever_pipe.experiment.stage_configs import Runtime, TrainDistilEpochConfig
from lever_pipe.experiment.stage_files import Input, Output
from lever_pipe.lever.training.distil import distil_epoch, oracle_targets
from lever_pipe.lever.training.epoch import EpochFiles, SelectorEpoch


def train_distil_epoch(
    *,
    groups: Input,
    embeddings: Input,
    train_examples: Input,
    start: Input,
    start_optimiser: Input,
    selector: Output,
    optimiser: Output,
    metrics: Output,
    config: TrainDistilEpochConfig,
    runtime: Runtime = Runtime(),
) -> EpochMetrics:
    """Advance the selector by one epoch of oracle distillation and return its mean terms.

    Raises:
        CheckpointError: `start` has another architecture.
        RecordError: malformed groups.
        TrainingError: a loss or a gradient is not finite.
    """
    files = EpochFiles(groups, embeddings, start, start_optimiser, selector, optimiser, metrics)
    epoch = SelectorEpoch(files, config, config.distil, "distil", execution.prepare(runtime))
    table, train, _ = epoch.data
    targets_BK = oracle_targets(storage.read_examples(train_examples), train)
    with epoch.streams() as order:
        distil_epoch(epoch.updates, table, train, targets_BK, config.distil, order)
    return epoch.finish(config.policy("distil", base=config.base_rce_epoch))
