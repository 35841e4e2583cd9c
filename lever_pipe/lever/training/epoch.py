"""One epoch of the selector from files to files: the common start and end of every training stage."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch

from lever_pipe.base import storage
from lever_pipe.base.checkpoints import load_tensors, require_same_tensors, save_tensors
from lever_pipe.base.errors import CheckpointError
from lever_pipe.base.optimiser import AdamW
from lever_pipe.base.policy_names import PolicyName
from lever_pipe.base.records import EpochMetrics
from lever_pipe.base.torch_streams import ambient_stream, torch_generator
from lever_pipe.lever.selector.embeddings import EmbeddingTable, FrozenSelector, read_table
from lever_pipe.lever.selector.network import architecture_of, load_selector, save_selector
from lever_pipe.lever.training.groups import Groups, load_groups, split_groups
from lever_pipe.lever.training.loop import Updates, validation_loss

if TYPE_CHECKING:
    from lever_pipe.experiment.distil import Distil
    from lever_pipe.experiment.grpo import Grpo
    from lever_pipe.experiment.on_policy import OnPolicy
    from lever_pipe.experiment.rce import Rce
    from lever_pipe.experiment.selector import TrainingConfig
    from lever_pipe.experiment.sft import Sft


class TrainingInputs(NamedTuple):
    """The selector's inputs of all train examples, and the two parts of the RL data."""

    table: EmbeddingTable
    train: Groups
    validation: Groups


def read_training_inputs(
    groups: Path, embeddings: Path, device: torch.device, train_share: float, inputs: str = "fused"
) -> TrainingInputs:
    """Return embeddings and rewarded groups on one device."""
    train, validation = split_groups(load_groups(groups).to(device), train_share)
    return TrainingInputs(read_table(embeddings, device, inputs=inputs), train, validation)


class EpochFiles(NamedTuple):
    """Input files of an epoch, and its three output files."""

    groups: Path
    embeddings: Path
    start: Path
    start_optimiser: Path
    selector: Path
    optimiser: Path
    metrics: Path


class SelectorEpoch:
    """A selector as the previous epoch saved it, with its data and its optimiser.

    The optimiser of another objective's epoch is not resumed. With `settings.freeze_projections`, projections are not
    trained.

    Attributes:
        objective: of the epoch; names its random streams and the state of its optimiser.
        number: of the epoch.
        updates: takes the epoch's steps.
        kl_beta: the weight of the penalty after the previous epoch; None at the first epoch of an objective.
    """

    def __init__(
        self,
        files: EpochFiles,
        config: TrainingConfig,
        settings: Rce | Sft | Distil | Grpo | OnPolicy,
        objective: str,
        device: torch.device,
    ) -> None:
        self.files = files
        self.objective = objective
        self.seed = config.seed
        self.number = config.epoch
        inputs = config.selector.inputs
        self.data = read_training_inputs(files.groups, files.embeddings, device, config.train_share, inputs)
        architecture = architecture_of(config.selector, self.data.table.width)
        self.module = load_selector(files.start, architecture).to(device)
        # Frozen before the optimiser is built, which stores moments of trainable parameters only.
        if getattr(settings, "freeze_projections", False):
            self.module.freeze_projections()
        adam = AdamW(self.module, learning_rate=settings.learning_rate, weight_decay=settings.weight_decay)
        self.kl_beta = resume_optimiser(files.start_optimiser, adam, stage=objective)
        self.updates = Updates(self.module, adam, max_gradient_norm=config.max_gradient_norm)


def anchor(epoch: SelectorEpoch, reference: Path) -> FrozenSelector:
    """Return the reference policy of the KL penalty."""
    table = epoch.data.table
    return FrozenSelector(load_selector(reference, epoch.module.architecture).to(table.vectors.device), table)


@contextmanager
def streams(epoch: SelectorEpoch) -> Iterator[torch.Generator]:
    """Set the epoch's stream for dropout and yield the stream of its order; both depend on the objective's name."""
    with ambient_stream(epoch.seed, f"{epoch.objective} dropout", epoch.number):
        yield torch_generator(epoch.seed, epoch.objective, epoch.number)


def save_epoch(
    epoch: SelectorEpoch,
    policy: PolicyName,
    *,
    temperature: float = 1.0,
    kl_beta: float = 0.0,
    more: Mapping[str, float] = {},
) -> EpochMetrics:
    """Write the epoch's three files and return the metrics of its steps, followed by `more`.

    `temperature` is the one of `validation_loss`; `kl_beta` is the weight of the penalty for the next epoch.
    """
    files, objective, number = epoch.files, epoch.objective, epoch.number
    held_out = validation_loss(epoch.module, epoch.data.table, epoch.data.validation, temperature=temperature)
    values = epoch.updates.means() | {"val_loss": held_out, **more}
    save_selector(files.selector, epoch.module, stage=objective, epoch=number)
    save_optimiser(files.optimiser, epoch.updates.optimiser, stage=objective, epoch=number, kl_beta=kl_beta)
    row = EpochMetrics(policy=policy, values=values)
    storage.write_row(files.metrics, row)
    return row


def save_optimiser(path: Path, optimiser: AdamW, *, stage: str, epoch: int, kl_beta: float) -> None:
    """Write the optimiser's moments by parameter name, with the beta for the next epoch."""
    # float64, so that an adaptive beta is restored exactly.
    beta = torch.tensor(kl_beta, dtype=torch.float64)
    save_tensors(path, {"kl_beta": beta, **optimiser.state()}, about={"stage": stage, "epoch": epoch})


def resume_optimiser(path: Path, optimiser: AdamW, *, stage: str) -> float | None:
    """Load the moments of the same stage's previous epoch and return its beta.

    A phase starts with a fresh optimiser, as published: a state of another stage is ignored and None returned.
    """
    tensors, about = load_tensors(path)
    if "stage" not in about:
        found = "a state without a stage"
        raise CheckpointError(f"{path}: expected the optimiser state of a stage", found=found, do="Rerun its rule.")
    if about["stage"] != stage:
        return None
    require_same_tensors(path, tensors, {"kl_beta": torch.tensor(0.0, dtype=torch.float64), **optimiser.state()})
    if (beta := float(tensors["kl_beta"])) < 0:
        raise CheckpointError(f"{path}: expected a kl_beta of at least 0", found=str(beta), do="Rerun its rule.")
    optimiser.load(tensors)
    return beta
