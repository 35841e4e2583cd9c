"""What a policy thinks of tokens that stand there: log-probabilities and entropies, in as few passes as need be."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lever_pipe.experiment.agent_config import AgentGrpo
from lever_pipe.intention.agent.layers import branching, causal, run_layers
from lever_pipe.intention.agent.policy import recomputes
from lever_pipe.losses.vocabulary import token_entropies, token_log_probs

LEAST_SHARED = 128
"""Tokens that the texts of one pass begin with alike, from which on these are read once for all of them."""


class Scored(NamedTuple):
    """One value a chosen place, all sequences in their order; n places in all."""

    log_probs: Tensor
    """[n] float32, of the tokens that stand there."""
    entropies: Tensor | None
    """[n] float32, of what could have stood there; None unless asked for."""


def score(
    model: Any,
    sequences: Sequence[Tensor],
    positions: Sequence[Tensor],
    *,
    pad_id: int,
    temperature: float,
    entropies: bool,
    shared: bool = False,
) -> Scored:
    """Return what the model thinks of the tokens at the given places, in one forward pass.

    Sequences are int64 [L] each, places int64 [n_i] positions in each, at least 1. What `pad_id` fills changes no
    number, because nothing looks ahead. If `shared`, what the texts begin with alike may be read once for all of them:
    a text's numbers then depend on its company beyond rounding in bfloat16, so that old and new log-probabilities must
    not be compared.
    """
    device = model.device
    ids_BL = torch.nn.utils.rnn.pad_sequence(list(sequences), batch_first=True, padding_value=pad_id)
    rows = torch.repeat_interleave(torch.arange(len(positions)), torch.tensor([len(columns) for columns in positions]))
    columns = torch.cat(list(positions))
    targets_1n = ids_BL[rows, columns][None].to(device)
    logits_1nV = _logits_before(model, ids_BL.to(device), rows.to(device), columns.to(device), shared=shared)
    log_probs_1n = token_log_probs(logits_1nV, targets_1n, temperature)
    return Scored(log_probs_1n[0], token_entropies(logits_1nV, temperature)[0] if entropies else None)


def _logits_before(model: Any, ids_BL: Tensor, rows: Tensor, columns: Tensor, *, shared: bool) -> Tensor:
    """Return the logits [1, n, V] before the n places."""
    n_rows, length = ids_BL.shape
    is_stock = recomputes(model)  # the stock pass alone can compute activations again
    n_shared = _shared(ids_BL, columns) if shared and not is_stock else 0
    if n_shared >= LEAST_SHARED:
        first, rest = ids_BL[:1, :n_shared], ids_BL[:, n_shared:]
        positions_L = torch.arange(length, device=ids_BL.device)
        positions_1T = torch.cat([positions_L[:n_shared], positions_L[n_shared:].repeat(n_rows)])[None]
        ids_1T = torch.cat([first, rest.reshape(1, -1)], dim=1)
        before = torch.zeros_like(rows), columns - 1 + rows * (length - n_shared)
        hidden_nH = run_layers(model, ids_1T, positions_1T, branching(n_shared, n_rows), before)
        return torch.as_tensor(model.lm_head(hidden_nH[None]))
    if is_stock:
        hidden_nH = model.model(input_ids=ids_BL, use_cache=False).last_hidden_state[rows, columns - 1]
    else:
        positions_1L = torch.arange(length, device=ids_BL.device)[None]
        hidden_nH = run_layers(model, ids_BL, positions_1L, causal, (rows, columns - 1))
    return torch.as_tensor(model.lm_head(hidden_nH[None]))


def _shared(ids_BL: Tensor, columns: Tensor) -> int:
    """Return how many tokens several rows begin with alike, all of them before the first state that is wanted."""
    if len(ids_BL) == 1 or not len(columns):
        return 0
    alike = int((ids_BL == ids_BL[:1]).all(dim=0).long().cumprod(dim=0).sum())
    return min(alike, int(columns.min()) - 1)


def cut(lengths: Sequence[int], size: int) -> Iterator[list[int]]:
    """Yield the indices of micro-batches: `size` sequences of similar length each, so that little is padded."""
    order = sorted(range(len(lengths)), key=lambda index: (lengths[index], index))
    for start in range(0, len(order), size):
        yield order[start : start + size]


@torch.no_grad()
def score_all(
    model: Any,
    sequences: Sequence[Tensor],
    positions: Sequence[Tensor],
    grpo: AgentGrpo,
    *,
    pad_id: int,
    entropies: bool,
) -> list[Scored]:
    """Return what a model thinks of the chosen places of each sequence, without gradients."""
    scored_by_index: dict[int, Scored] = {}
    for indices in cut([len(sequence) for sequence in sequences], grpo.micro_batch):
        tokens, columns = [sequences[i] for i in indices], [positions[i] for i in indices]
        scored = score(model, tokens, columns, pad_id=pad_id, temperature=grpo.temperature, entropies=entropies)
        sizes = [len(positions) for positions in columns]
        log_probs = torch.split(scored.log_probs, sizes)
        others = [None] * len(sizes) if scored.entropies is None else torch.split(scored.entropies, sizes)
        scored_by_index.update(zip(indices, map(Scored, log_probs, others), strict=True))
    return [scored_by_index[index] for index in range(len(sequences))]
