"""Training of the language model over train ids and what it chooses, from files to files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from lever_pipe.base import storage
from lever_pipe.base.optimiser import AdamW
from lever_pipe.base.records import EpochMetrics, Pool, Selection
from lever_pipe.base.seeding import ambient_stream, torch_generator
from lever_pipe.experiment.config import Selector, Sft
from lever_pipe.experiment.stage_configs import TrainSftEpochConfig
from lever_pipe.lever.selector.train_ids import (
    IdsArchitecture,
    TrainIds,
    build_train_ids,
    require_width,
    write_greedily,
)
from lever_pipe.lever.training import state
from lever_pipe.lever.training.choice import BATCH
from lever_pipe.lever.training.embeddings import EmbeddingTable
from lever_pipe.lever.training.epoch import EpochFiles, read_training_inputs
from lever_pipe.lever.training.groups import Groups
from lever_pipe.lever.training.loop import Step, run_epoch
from lever_pipe.lever.training.sft import scheduled_batches, targets_of
from lever_pipe.losses.rce import RceTerms, rce_terms

INPUTS = "added"
"""What it sees of an example (`selector.features.INPUTS`)."""


def ids_architecture(selector: Selector, table: EmbeddingTable) -> IdsArchitecture:
    """Return the architecture that fits the train examples.

    Raises:
        ConfigError: the width is not that of the embeddings.
    """
    n_train, embedding = table.vectors.shape
    require_width(selector.width, embedding)
    return IdsArchitecture(n_train, selector.width, selector.layers, selector.heads, selector.dropout)


def load_train_ids(path: Path, architecture: IdsArchitecture) -> TrainIds:
    """Return the model of a checkpoint, in eval mode.

    Raises:
        CheckpointError: missing file, or tensors of another architecture (all listed).
    """
    return state.load_into(build_train_ids(architecture), path)


def train_ids_epoch(files: EpochFiles, config: TrainSftEpochConfig, device: torch.device) -> EpochMetrics:
    """Advance the model by one epoch on beams, write the epoch's three files and return its metrics.

    Raises:
        CheckpointError: `start` has another architecture.
        ConfigError: the width is not that of the embeddings.
        RecordError: malformed groups.
        TrainingError: a loss or a gradient is not finite.
    """
    settings, about = config.sft, {"stage": "sft", "epoch": config.epoch}
    table, *parts = read_training_inputs(files.groups, files.embeddings, device, config.train_share, INPUTS)
    train, validation = (targets_of(part, settings) for part in parts)
    module = load_train_ids(files.start, ids_architecture(config.selector, table)).to(device)
    adam = AdamW(module, learning_rate=settings.learning_rate, weight_decay=settings.weight_decay)
    state.resume_optimiser(files.start_optimiser, adam, stage="sft")
    order = torch_generator(config.seed, "sft", config.epoch)
    with ambient_stream(config.seed, "sft dropout", config.epoch):
        plan = plan_ids_epoch(module.train(), adam, table, train, settings, config.epoch, order)
        values = run_epoch(module, adam, plan, max_gradient_norm=config.max_gradient_norm)
    values |= {"val_loss": ids_validation_loss(module, table, validation, settings)}
    state.save_selector(files.selector, module, **about)  # type: ignore[arg-type]
    state.save_optimiser(files.optimiser, adam, kl_beta=0.0, **about)  # type: ignore[arg-type]
    row = EpochMetrics(policy=config.policy("sft"), values=values)
    storage.write_row(files.metrics, row)
    return row


def plan_ids_epoch(
    module: TrainIds,
    optimiser: AdamW,
    table: EmbeddingTable,
    groups: Groups,
    settings: Sft,
    epoch: int,
    generator: torch.Generator,
) -> Iterator[tuple[Groups, Callable[[Groups], Step]]]:
    """Yield the batches of one epoch with their step."""
    for rows, learning_rate in scheduled_batches(len(groups), optimiser, settings, epoch, generator):
        yield groups.take(rows), partial(_step, module, table, settings=settings, learning_rate=learning_rate)


def _step(module: TrainIds, table: EmbeddingTable, batch: Groups, *, settings: Sft, learning_rate: float) -> Step:
    terms = ids_terms(module, table, batch, settings)
    values = {"weights_entropy": float(terms.weights_entropy), "max_weight": float(terms.max_weight)}
    return Step(terms.total, values | {"learning_rate": learning_rate})


def ids_terms(module: TrainIds, table: EmbeddingTable, batch: Groups, settings: Sft) -> RceTerms:
    """Return the cross-entropy of each beam's words, mean over the S + 2 of a sequence and over queries.

    QUERY behind BOS and EOS at the end count as published.
    """
    n, g = batch.valid.shape
    ids_BGS = batch.pools[:, None].expand(-1, g, -1).gather(2, batch.selections)
    query_BGW = table.vectors[batch.queries][:, None].expand(-1, g, -1)
    log_probs = module.log_probs(query_BGW.flatten(0, 1), ids_BGS.flatten(0, 1), table.vectors)
    return rce_terms(
        log_probs_BG=log_probs.mean(dim=-1).view(n, g),
        rewards_BG=batch.rewards,
        valid_BG=batch.valid,
        temperature=settings.temperature,
    )


@torch.no_grad()
def ids_validation_loss(module: TrainIds, table: EmbeddingTable, groups: Groups, settings: Sft) -> float:
    """Return the loss on held-out queries in nats a word; ln(N + 3) is uniform."""
    module.eval()
    parts = [groups.take(rows) for rows in torch.arange(len(groups)).split(BATCH)]  # type: ignore[no-untyped-call]
    losses = [float(ids_terms(module, table, part, settings).total) * len(part) for part in parts]
    return sum(losses) / len(groups)


@torch.inference_mode()
def choose_ids(
    module: TrainIds,
    train: EmbeddingTable,
    queries: EmbeddingTable,
    pools: Sequence[Pool],
    shots: int,
    *,
    of_pool: bool,
) -> list[Selection]:
    """Return the selection of every pool's query: out of the pool, or of all train examples whatever the pool."""
    rows = list[Selection]()
    for part in torch.arange(len(pools)).split(BATCH):  # type: ignore[no-untyped-call]
        batch = [pools[i] for i in part.tolist()]
        filled = batch + batch[-1:] * (BATCH - len(batch))  # one shape rounds a query alike in any company
        query_BW = queries.vectors[torch.tensor([pool.query_id for pool in filled])]
        pools_BK = _pools_of(filled).to(query_BW.device) if of_pool else None
        chosen = write_greedily(module.eval(), query_BW, train.vectors, shots, pools_BK=pools_BK).tolist()
        rows += [Selection(query_id=p.query_id, demonstrations=c) for p, c in zip(batch, chosen, strict=False)]
    return rows


def _pools_of(pools: Sequence[Pool]) -> Tensor:
    return torch.tensor([pool.candidates for pool in pools])
