"""Rule `train_continued_epoch`: one epoch of RCE beside GRPO, from the same base and with as many updates."""

from __future__ import annotations

from lever_pipe.base.records import EpochMetrics
from lever_pipe.experiment import execution
from lever_pipe.experiment.stage_configs import Runtime, TrainContinuedEpochConfig
from lever_pipe.experiment.stage_files import Input, Output
from lever_pipe.lever.training.epoch import EpochFiles, SelectorEpoch
from lever_pipe.lever.training.rce import rce_epoch


def train_continued_epoch(
    *,
    groups: Input,
    embeddings: Input,
    start: Input,
    start_optimiser: Input,
    selector: Output,
    optimiser: Output,
    metrics: Output,
    config: TrainContinuedEpochConfig,
    runtime: Runtime = Runtime(),
) -> EpochMetrics:
    """Advance the selector by one pass of RCE over the train queries and return its mean terms.

    What GRPO adds to its base shows against this: the same data and number of updates, without GRPO's objective.

    Raises:
        CheckpointError: `start` has another architecture.
        RecordError: malformed groups.
        TrainingError: a loss or a gradient is not finite.
    """
    files = EpochFiles(groups, embeddings, start, start_optimiser, selector, optimiser, metrics)
    device, freezes = execution.prepare(runtime), config.continued.freeze_projections
    epoch = SelectorEpoch(files, config, config.continued, "continued", device, freezes=freezes)
    table, train, _ = epoch.data
    with epoch.streams() as order:
        rce_epoch(epoch.updates, table, train, config.continued, config.epoch, order)
    return epoch.finish(config.policy("continued", base=config.base_rce_epoch))
