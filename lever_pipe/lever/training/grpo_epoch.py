"""One GRPO epoch from files to files: the body of every stage that trains with this objective."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from lever_pipe.base import storage
from lever_pipe.base.optimiser import AdamW
from lever_pipe.base.records import EpochMetrics, PolicyRef
from lever_pipe.base.seeding import torch_generator
from lever_pipe.experiment.config import Grpo
from lever_pipe.experiment.stage_configs import TrainGrpoEpochConfig
from lever_pipe.lever.selector.network import PointerSelector
from lever_pipe.lever.training import state
from lever_pipe.lever.training.embeddings import FrozenSelector, architecture_of
from lever_pipe.lever.training.groups import Groups, keep_best
from lever_pipe.lever.training.grpo import BetaController, plan_grpo_epoch
from lever_pipe.lever.training.inputs import read_training_inputs
from lever_pipe.lever.training.loop import run_epoch, validation_loss
from lever_pipe.lever.training.policies import PolicyPair, trained_share

Pairing = Callable[[PointerSelector, FrozenSelector], PolicyPair]


class EpochFiles(NamedTuple):
    """What an epoch reads, and the three files that it writes."""

    groups: Path
    embeddings: Path
    start: Path
    start_optimiser: Path
    reference: Path
    selector: Path
    optimiser: Path
    metrics: Path


def advance(
    files: EpochFiles,
    config: TrainGrpoEpochConfig,
    policy: PolicyRef,
    *,
    pairing: Pairing,
    device: torch.device,
) -> EpochMetrics:
    """Advance the selector by one epoch, write it, and return the epoch's mean terms under the name of `policy`.

    `pairing` says how the trained policy and its reference are compared.

    Raises:
        CheckpointError: `start` or `reference` has another architecture.
        RecordError: malformed groups.
        TrainingError: a loss or a gradient is not finite.
    """
    grpo = config.grpo
    data = read_training_inputs(files.groups, files.embeddings, device, config.train_share, config.selector.inputs)
    architecture = architecture_of(config.selector, data.table)
    module = state.load_selector(files.start, architecture).to(device)
    anchor = state.load_selector(files.reference, architecture).to(device)
    if grpo.freeze_projections:
        module.freeze_projections()
    adam = AdamW(module, learning_rate=grpo.learning_rate, weight_decay=grpo.weight_decay)
    resumed = state.resume_optimiser(files.start_optimiser, adam, stage="grpo")
    limits = grpo.adaptive_kl.model_dump() if grpo.adaptive_kl else None
    beta = BetaController(config.kl_beta if resumed is None else resumed, limits)
    plan = plan_grpo_epoch(
        pairing(module, FrozenSelector(anchor, data.table)),
        data.table,
        kept_in_epoch(data.train, grpo, config.epoch),
        beta,
        batch_queries=grpo.batch_queries,
        clip_epsilon=grpo.clip_epsilon,
        generator=torch_generator(config.seed, "grpo", config.epoch),
    )
    values = run_epoch(module, adam, plan, max_gradient_norm=config.max_gradient_norm)
    values |= {
        "val_loss": validation_loss(module, data.table, data.validation),
        "kl_beta": beta.value,
        "trained_share": trained_share(module),
    }
    state.save_selector(files.selector, module, stage="grpo", epoch=config.epoch)
    state.save_optimiser(files.optimiser, adam, stage="grpo", epoch=config.epoch, kl_beta=beta.value)
    row = EpochMetrics(policy=policy, values=values)
    storage.write_row(files.metrics, row)
    return row


def kept_in_epoch(groups: Groups, grpo: Grpo, epoch: int) -> tuple[Groups, Tensor]:
    """Return the selections that an epoch trains on and their advantages: fewer in the first one."""
    limits = grpo.model_dump(include={"z_clamp", "advantage_std_floor", "advantage_clamp"})
    return keep_best(groups, grpo.top_k_first_epoch if epoch == 1 else grpo.top_k, **limits)
