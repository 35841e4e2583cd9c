"""Rule `emulate_untouched`: what GRPO logs of a policy that nothing has moved, without dropout and with it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch

from lever_pipe.base import storage
from lever_pipe.base.policy_names import EMULATION, PolicyName
from lever_pipe.base.records import EpochMetrics, PolicyRef
from lever_pipe.base.seeding import ambient_stream, torch_generator
from lever_pipe.experiment import execution
from lever_pipe.experiment.faults import CONTROL, DROPOUT
from lever_pipe.experiment.stage_configs import EmulateUntouchedConfig, Runtime
from lever_pipe.experiment.stage_files import Input, Output
from lever_pipe.lever.emulation import epoch_without_updates
from lever_pipe.lever.training import state
from lever_pipe.lever.training.embeddings import FrozenSelector, architecture_of
from lever_pipe.lever.training.epoch import TrainingInputs, read_training_inputs
from lever_pipe.lever.training.grpo import kept_in_epoch

EPOCHS = (1, 2)
"""The first epoch keeps fewer selections of a group than every later one."""


def emulate_untouched(
    *,
    groups: Input,
    embeddings: Input,
    reference: Input,
    untouched: Output,
    config: EmulateUntouchedConfig,
    runtime: Runtime = Runtime(),
) -> list[EpochMetrics]:
    """Write and return the metrics of an epoch without updates for each arm and count of kept selections.

    Raises:
        CheckpointError: `reference` has another architecture.
        RecordError: malformed groups.
    """
    device = execution.prepare(runtime)
    data = read_training_inputs(groups, embeddings, device, config.train_share, config.selector.inputs)
    rows = list(_rows(data, reference, config, device))
    storage.write_rows(untouched, rows)
    return rows


def _rows(
    data: TrainingInputs, reference: Path, config: EmulateUntouchedConfig, device: torch.device
) -> Iterator[EpochMetrics]:
    architecture = architecture_of(config.selector, data.table)
    module, anchor = (state.load_selector(reference, architecture).to(device) for _ in range(2))
    frozen = FrozenSelector(anchor, data.table)
    for arm in (CONTROL, DROPOUT):
        for epoch in EPOCHS:
            run = PolicyName(
                kind=EMULATION, member=arm, base=config.base_rce_epoch, seed=config.seed, is_untouched=True
            )
            ref = PolicyRef.of(run.at(epoch), preset=config.preset)
            with ambient_stream(config.seed, ref.name):
                values = epoch_without_updates(
                    module,
                    frozen,
                    data.table,
                    kept_in_epoch(data.train, config.grpo, epoch),
                    has_dropout=arm == DROPOUT,
                    clip_epsilon=config.grpo.clip_epsilon,
                    generator=torch_generator(config.seed, "grpo", epoch),
                )
            yield EpochMetrics(policy=ref, values=values)
