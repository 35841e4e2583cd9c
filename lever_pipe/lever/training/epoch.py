"""One epoch of the selector from files to files: how every stage that trains it begins and ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import torch

from lever_pipe.base import storage
from lever_pipe.base.optimiser import AdamW
from lever_pipe.base.records import EpochMetrics, PolicyRef
from lever_pipe.base.seeding import ambient_stream, torch_generator
from lever_pipe.experiment.config import Distil, Grpo, OnPolicy, Rce, Sft
from lever_pipe.experiment.stage_configs import ContinuedRce, TrainingConfig
from lever_pipe.lever.selector.network import PointerSelector
from lever_pipe.lever.training import state
from lever_pipe.lever.training.embeddings import EmbeddingTable, FrozenSelector, architecture_of, read_table
from lever_pipe.lever.training.groups import Groups, load_groups, split_groups
from lever_pipe.lever.training.loop import Plan, run_epoch, validation_loss

Settings = Sft | Rce | Distil | Grpo | OnPolicy


class TrainingInputs(NamedTuple):
    """What the selector sees of all train examples, and the two parts of the RL data."""

    table: EmbeddingTable
    train: Groups
    validation: Groups


def read_training_inputs(
    groups: Path, embeddings: Path, device: torch.device, train_share: float, inputs: str = "fused"
) -> TrainingInputs:
    """Return embeddings and rewarded groups on one device.

    Raises:
        RecordError: a missing or damaged file, or no query for one of the two parts.
    """
    train, validation = split_groups(load_groups(groups).to(device), train_share)
    return TrainingInputs(read_table(embeddings, device, inputs=inputs), train, validation)


class EpochFiles(NamedTuple):
    """What an epoch reads, and the three files that it writes."""

    groups: Path
    embeddings: Path
    start: Path
    start_optimiser: Path
    selector: Path
    optimiser: Path
    metrics: Path


class SelectorEpoch:
    """A selector as the epoch before left it, with its data and its optimiser.

    Args:
        files: of this epoch.
        config: identity of its stage.
        settings: of its objective, as the identity has them.
        objective: its name; the optimiser of another objective's epoch is not resumed.
        device: where it computes.

    Attributes:
        kl_beta: the weight of the penalty that the epoch before left; None at the first epoch of an objective.

    Raises:
        CheckpointError: `start` has another architecture.
        RecordError: malformed groups.
    """

    INPUTS = ""
    """What it sees of an example, where `selector.inputs` does not say it."""

    def __init__(
        self, files: EpochFiles, config: TrainingConfig, settings: Settings, objective: str, device: torch.device
    ) -> None:
        self._files, self._config, self._objective, self._device = files, config, objective, device
        inputs = self.INPUTS or config.selector.inputs
        self.data = read_training_inputs(files.groups, files.embeddings, device, config.train_share, inputs)
        self.module = self._load(files.start)
        if isinstance(settings, Grpo | OnPolicy | ContinuedRce) and settings.freeze_projections:
            self.module.freeze_projections()
        self.adam = AdamW(self.module, learning_rate=settings.learning_rate, weight_decay=settings.weight_decay)
        self.kl_beta = state.resume_optimiser(files.start_optimiser, self.adam, stage=objective)

    def anchor(self, reference: Path) -> FrozenSelector:
        """Return the policy that the trained one is held against.

        Raises:
            CheckpointError: another architecture.
        """
        return FrozenSelector(self._load(reference), self.data.table)

    def run(self, plan: Plan, *, temperature: float = 1.0) -> dict[str, float]:
        """Take the planned steps and return the means of what they log, with the loss on held-out queries.

        `temperature` is that of `validation_loss`.

        Raises:
            TrainingError: a loss or a gradient is not finite.
        """
        values = run_epoch(self.module, self.adam, plan, max_gradient_norm=self._config.max_gradient_norm)
        return values | {"val_loss": self._held_out_loss(temperature)}

    def learn(
        self, plan: Callable[[torch.Generator], Plan], policy: PolicyRef, *, temperature: float = 1.0
    ) -> EpochMetrics:
        """Take the steps that `plan` makes of a stream for their order, write the epoch, and return its mean terms.

        The objective's name and the epoch are those of its streams, of order and of dropout.

        Raises:
            TrainingError: a loss or a gradient is not finite.
        """
        objective, of = self._objective, self._config
        order = torch_generator(of.seed, objective, of.epoch)
        with ambient_stream(of.seed, f"{objective} dropout", of.epoch):
            values = self.run(plan(order), temperature=temperature)
        return self.save(values, policy)

    def save(self, values: Mapping[str, float], policy: PolicyRef, *, kl_beta: float = 0.0) -> EpochMetrics:
        """Write the epoch's three files and return its metrics; `kl_beta` is the next epoch's."""
        objective, epoch = self._objective, self._config.epoch
        state.save_selector(self._files.selector, self.module, stage=objective, epoch=epoch)
        state.save_optimiser(self._files.optimiser, self.adam, stage=objective, epoch=epoch, kl_beta=kl_beta)
        row = EpochMetrics(policy=policy, values=dict(values))
        storage.write_row(self._files.metrics, row)
        return row

    def _held_out_loss(self, temperature: float) -> float:
        return validation_loss(self.module, self.data.table, self.data.validation, temperature=temperature)

    def _load(self, path: Path) -> PointerSelector:
        return state.load_selector(path, architecture_of(self._config.selector, self.data.table)).to(self._device)
