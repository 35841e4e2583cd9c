"""Rule `train_sft_epoch`: one epoch of supervised learning of beam data."""

from __future__ import annotations

from lever_pipe.base.members import member
from lever_pipe.base.records import EpochMetrics
from lever_pipe.base.seeding import ambient_stream, torch_generator
from lever_pipe.experiment import execution
from lever_pipe.experiment.config import TRAIN_IDS
from lever_pipe.experiment.stage_configs import Runtime, TrainSftEpochConfig
from lever_pipe.experiment.stage_files import Input, Output
from lever_pipe.lever.training.epoch import EpochFiles, SelectorEpoch, TrainingInputs
from lever_pipe.lever.training.sft import plan_sft_epoch, targets_of


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
    device = execution.prepare(runtime)
    if config.selector.network == TRAIN_IDS:
        row: EpochMetrics = member("lever/networks", TRAIN_IDS).train_ids_epoch(files, config, device)
        return row
    epoch = SelectorEpoch(files, config, config.sft, "sft", device)
    table, train, validation = epoch.data
    train, validation = (targets_of(part, config.sft) for part in (train, validation))
    epoch.data = TrainingInputs(table, train, validation)
    order = torch_generator(config.seed, "sft", config.epoch)
    with ambient_stream(config.seed, "sft dropout", config.epoch):
        plan = plan_sft_epoch(epoch.module, epoch.adam, table, train, config.sft, config.epoch, order)
        values = epoch.run(plan, temperature=config.sft.temperature)
    return epoch.save(values, config.policy("sft"))
