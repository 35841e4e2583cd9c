"""A language model over train ids, which writes a query's demonstrations one after the other (source: Lever-LM).

It stands beside the pointers: it has no pool to rank, so that its training and its choice are its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lever_pipe.base.errors import ConfigError
from lever_pipe.base.records import Pool, Selection
from lever_pipe.base.rowwise import linear, rowwise
from lever_pipe.base.seeding import ambient_stream
from lever_pipe.base.shapes import ShapeError, require_shapes
from lever_pipe.experiment.config import Selector, Sft
from lever_pipe.lever.selector.decoding import BATCH
from lever_pipe.lever.selector.embeddings import EmbeddingTable
from lever_pipe.lever.selector.network import load_into
from lever_pipe.lever.training.epoch import SelectorEpoch
from lever_pipe.lever.training.groups import Groups
from lever_pipe.lever.training.loop import Step
from lever_pipe.losses.rce import RceTerms, rce_terms

INPUTS = "added"
"""What it sees of an example (`selector.embeddings.INPUTS`)."""
SPECIAL = 3
"""Words behind the N train ids: EOS, BOS, QUERY."""
POSITIONS = 1024
STANDARD_DEVIATION = 0.02
"""Of fresh weights."""


@dataclass(frozen=True, slots=True)
class IdsArchitecture:
    """Sizes that fix the tensors."""

    n_train: int  # N
    width: int  # W, that of image and question embeddings, which no projection comes before
    layers: int
    heads: int
    dropout: float


class _Block(nn.Module):
    """A transformer's layer with its norms in front, as GPT-2 has it (source: Radford et al. 2019)."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn_in, self.attn_out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp_in, self.mlp_out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x_BTW: Tensor) -> Tensor:
        """Return the layer's output; a position sees itself and those before it."""
        x = x_BTW + self._drop(self.attn_out(self._attended(self.ln_1(x_BTW))))
        fed: Tensor = self.mlp_out(F.gelu(self.mlp_in(self.ln_2(x)), approximate="tanh"))
        return x + self._drop(fed)

    def _attended(self, x_BTW: Tensor) -> Tensor:
        n, t, width = x_BTW.shape
        q, k, v = self.attn_in(x_BTW).view(n, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        later = torch.ones(t, t, dtype=torch.bool, device=x_BTW.device).triu(1)
        logits = (q @ k.transpose(-1, -2)) / math.sqrt(width // self.heads)
        weights = self._drop(logits.masked_fill(later, -torch.inf).softmax(dim=-1))
        found: Tensor = weights @ v
        return found.transpose(1, 2).reshape(n, t, width)

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, self.training)


class TrainIds(nn.Module):
    """GPT-2 with one word a train example; its words' embeddings are its output layer, too.

    A sequence is BOS, QUERY, the demonstrations as a prompt shows them, EOS. At QUERY the query's embedding is added to
    the word's, at a demonstration its own.
    """

    def __init__(self, architecture: IdsArchitecture) -> None:
        super().__init__()
        a = architecture
        self.architecture = a
        self.wte = nn.Embedding(a.n_train + SPECIAL, a.width)
        self.wpe = nn.Embedding(POSITIONS, a.width)
        self.layers = nn.ModuleList(_Block(a.width, a.heads, a.dropout) for _ in range(a.layers))
        self.ln_f = nn.LayerNorm(a.width)

    @property
    def eos(self) -> int:
        """The word behind the last train id."""
        return self.architecture.n_train

    def prefix(self, ids_BS: Tensor) -> Tensor:
        """Return BOS, QUERY and the demonstrations, `[B, 2 + S]` words."""
        opening = torch.tensor([self.eos + 1, self.eos + 2], device=ids_BS.device).expand(len(ids_BS), -1)
        return torch.cat([opening, ids_BS], dim=1)

    def forward(self, query_BW: Tensor, ids_BS: Tensor, train_NW: Tensor) -> Tensor:
        """Return the logits `[B, 2 + S, N + 3]` of the word behind each word of `prefix(ids_BS)`.

        Args:
            query_BW: embeddings of the queries, image and question added.
            ids_BS: train ids, as a prompt shows them.
            train_NW: embeddings of all train examples.

        Raises:
            ShapeError: the shapes disagree.
        """
        require_shapes(("query", "B W", query_BW), ("ids", "B S", ids_BS), ("train", "N W", train_NW))
        words = self.prefix(ids_BS)
        seen = torch.cat([torch.zeros_like(query_BW)[:, None], query_BW[:, None], train_NW[ids_BS]], dim=1)
        x = self.wte(words) + self.wpe(torch.arange(words.shape[1], device=words.device)) + seen
        x = F.dropout(x, self.architecture.dropout, self.training)
        for layer in self.layers:
            x = layer(x)
        return linear(self.ln_f(x), self.wte.weight)

    def log_probs(self, query_BW: Tensor, ids_BS: Tensor, train_NW: Tensor) -> Tensor:
        """Return the log-probabilities `[B, S + 2]` of QUERY, each demonstration and EOS, given what stands before."""
        words = self.prefix(ids_BS)
        following = torch.cat([words[:, 1:], torch.full_like(words[:, :1], self.eos)], dim=1)
        logits: Tensor = self(query_BW, ids_BS, train_NW)
        return logits.log_softmax(dim=-1).gather(-1, following[..., None]).squeeze(-1)


@torch.no_grad()
def write_greedily(
    module: TrainIds, query_BW: Tensor, train_NW: Tensor, shots: int, *, pools_BK: Tensor | None = None
) -> Tensor:
    """Return the likeliest demonstration at each step, `[B, S]` train ids: no special word and none twice.

    Of equal ones the smaller id; k shots are the first k of more. With `pools_BK` a query's own pool only.

    Raises:
        ShapeError: fewer candidates than shots.
    """
    a = module.architecture
    n_candidates = a.n_train if pools_BK is None else pools_BK.shape[1]
    if not 1 <= shots <= n_candidates:
        raise ShapeError(f"shots must be in 1..K with K={n_candidates} candidates, got {shots}")
    banned_BV = torch.zeros(len(query_BW), a.n_train + SPECIAL, dtype=torch.bool, device=query_BW.device)
    if pools_BK is not None:
        banned_BV = (~banned_BV).scatter(1, pools_BK, value=False)
    banned_BV[:, module.eos :] = True
    chosen_BS = torch.empty(len(query_BW), 0, dtype=torch.long, device=query_BW.device)
    for _ in range(shots):
        logits_BV = module(query_BW, chosen_BS, train_NW)[:, -1].masked_fill(banned_BV, -torch.inf)
        picks_B1 = logits_BV.argmax(dim=-1, keepdim=True)
        banned_BV.scatter_(1, picks_B1, value=True)
        chosen_BS = torch.cat([chosen_BS, picks_B1], dim=1)
    return chosen_BS


def build_train_ids(architecture: IdsArchitecture) -> TrainIds:
    """Return a model whose weights mean nothing yet: `initialise_train_ids` or a checkpoint fills them."""
    with ambient_stream(0, "construction"):  # the library draws weights from the global stream, which nobody may use
        return rowwise(TrainIds(architecture))


@torch.no_grad()
def initialise_train_ids(module: TrainIds, generator: torch.Generator) -> TrainIds:
    """Fill the weights from `generator` as GPT-2's: N(0, 0.02^2), less where a layer adds to its input; biases 0."""
    added = STANDARD_DEVIATION / math.sqrt(2 * module.architecture.layers)
    for name, parameter in module.named_parameters():
        if name.endswith("bias"):
            nn.init.zeros_(parameter)
        elif parameter.dim() == 1:
            nn.init.ones_(parameter)
        else:
            std = added if "_out." in name else STANDARD_DEVIATION
            nn.init.normal_(parameter, std=std, generator=generator)
    return module


def ids_architecture(selector: Selector, table: EmbeddingTable) -> IdsArchitecture:
    """Return the architecture that fits the train examples.

    Raises:
        ConfigError: the width is not that of the embeddings.
    """
    n_train, embedding = table.vectors.shape
    if selector.width != embedding:
        raise ConfigError(
            f"selector.width: expected the width of the encoder's embeddings, {embedding}, with network: train_ids",
            found=str(selector.width),
            do=f"Write width: {embedding}.",
        )
    return IdsArchitecture(n_train, selector.width, selector.layers, selector.heads, selector.dropout)


def load_train_ids(path: Path, architecture: IdsArchitecture) -> TrainIds:
    """Return the model of a checkpoint, in eval mode.

    Raises:
        CheckpointError: missing file, or tensors of another architecture (all listed).
    """
    return load_into(build_train_ids(architecture), path)


class TrainIdsEpoch(SelectorEpoch):
    """An epoch of the model on beams; files, streams and optimiser are those of every selector."""

    INPUTS = INPUTS

    def _load(self, path: Path) -> TrainIds:  # type: ignore[override]
        return load_train_ids(path, ids_architecture(self._config.selector, self.data.table)).to(self._device)

    def _held_out_loss(self, temperature: float) -> float:
        del temperature
        return ids_validation_loss(self.module, self.data.table, self.data.validation, self._config.sft)  # type: ignore[arg-type, attr-defined]


def ids_step(module: TrainIds, table: EmbeddingTable, batch: Groups, settings: Sft) -> Step:
    """Return the loss of a batch and what is logged of it."""
    terms = ids_terms(module, table, batch, settings)
    return Step(terms.total, {name: float(getattr(terms, name)) for name in ("weights_entropy", "max_weight")})


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
        offered = torch.tensor([pool.candidates for pool in filled]).to(query_BW.device) if of_pool else None
        chosen = write_greedily(module.eval(), query_BW, train.vectors, shots, pools_BK=offered)[: len(batch)].tolist()
        rows += [Selection(query_id=p.query_id, demonstrations=c) for p, c in zip(batch, chosen, strict=True)]
    return rows
