"""Rule `train_sft_epoch`: one epoch of supervised learning of beam data."""

from __future__ import annotations

from lever_pipe.base.members import member
from lever_pipe.base.records import EpochMetrics
from lever_pipe.experiment import execution
from lever_pipe.experiment.config import TRAIN_IDS
from lever_pipe.experiment.stage_configs import Runtime, TrainSftEpochConfig
from lever_pipe.experiment.stage_files import Input, Output
from lever_pipe.lever.training.epoch import EpochFiles, SelectorEpoch, TrainingInputs
from lever_pipe.lever.training.sft import sft_epoch, sft_step, targets_of


def train_sft_epoch(
    *,
    groups: Input,
    embeddings: Input,
    start: Input,
    start_optimiser: Input,
    selector: Output,
    optimiser: Output,
    metrics: Output,
    config: TrainSftEpochConfig,
    runtime: Runtime = Runtime(),
) -> EpochMetrics:
    """Advance the selector by one epoch on the beams of `groups` and return its mean terms.

    Raises:
        CheckpointError: `start` has another architecture.
        ConfigError: a language model over train ids has another width than the embeddings.
        RecordError: malformed groups.
        TrainingError: a loss or a gradient is not finite.
    """
    files = EpochFiles(groups, embeddings, start, start_optimiser, selector, optimiser, metrics)
    ids = member("lever/networks", TRAIN_IDS) if config.selector.network == TRAIN_IDS else None
    kind, step = (SelectorEpoch, sft_step) if ids is None else (ids.TrainIdsEpoch, ids.ids_step)
    epoch: SelectorEpoch = kind(files, config, config.sft, "sft", execution.prepare(runtime))
    table, *parts = epoch.data
    train, validation = (targets_of(part, config.sft) for part in parts)
    epoch.data = TrainingInputs(table, train, validation)
    with epoch.streams() as order:
        sft_epoch(epoch.updates, table, train, config.sft, config.epoch, order, step=step)
    return epoch.finish(config.policy("sft"), temperature=config.sft.temperature)
