"""Log-probabilities and entropies of given tokens under a policy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from lever_pipe.intention.agent.layers import branching, causal, run_layers
from lever_pipe.intention.agent.policy import recomputes
from lever_pipe.losses.vocabulary import token_entropies, token_log_probs

if TYPE_CHECKING:
    from lever_pipe.experiment.agent_training import AgentGrpo

LEAST_SHARED = 128
"""Minimum length of a common prefix from which on the texts of one pass compute it only once."""


class Scored(NamedTuple):
    """One value for each of the n selected positions, in the order of the sequences."""

    log_probs: Tensor
    """[n] float32, of the tokens at these positions."""
    entropies: Tensor | None
    """[n] float32, of the policy's distributions at these positions; None unless requested."""


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
    """Return the log-probabilities, and optionally entropies, of the tokens at selected positions, in one forward pass.

    Each sequence is int64 [L], its positions int64 [n_i], each at least 1. Padding with `pad_id` changes no value,
    because attention is causal. With `shared`, a common prefix of the texts may be computed only once. In bfloat16 the
    values then depend on the other texts by more than rounding, so do not compare old and new log-probabilities.
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
    """Return the logits [1, n, V] that predict the tokens at the n positions."""
    n_rows, length = ids_BL.shape
    is_stock = recomputes(model)  # only the forward pass of transformers can recompute activations
    n_shared = _shared(ids_BL, columns) if shared and not is_stock else 0
    if n_shared >= LEAST_SHARED:
        first, rest = ids_BL[:1, :n_shared], ids_BL[:, n_shared:]
        positions_L = torch.arange(length, device=ids_BL.device)
        positions_1T = torch.cat([positions_L[:n_shared], positions_L[n_shared:].repeat(n_rows)])[None]
        ids_1T = torch.cat([first, rest.reshape(1, -1)], dim=1)
        # All continuations are in one row, one after the other.
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
    """Return the length of the rows' common prefix, at most up to the first selected state; 0 for a single row."""
    if len(ids_BL) == 1 or not len(columns):
        return 0
    alike = int((ids_BL == ids_BL[:1]).all(dim=0).long().cumprod(dim=0).sum())
    # The selected states, one position before their tokens, must be in the continuations.
    return min(alike, int(columns.min()) - 1)


def cut(lengths: Sequence[int], size: int) -> Iterator[list[int]]:
    """Yield the indices of micro-batches, each with `size` sequences of similar length to reduce padding."""
    # Indices break ties, so that equal lengths always give the same micro-batches.
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
    """Return `score` of each sequence, in micro-batches and without gradients."""
    scored_by_index: dict[int, Scored] = {}
    for indices in cut([len(sequence) for sequence in sequences], grpo.micro_batch):
        tokens, columns = [sequences[i] for i in indices], [positions[i] for i in indices]
        scored = score(model, tokens, columns, pad_id=pad_id, temperature=grpo.temperature, entropies=entropies)
        sizes = [len(positions) for positions in columns]
        log_probs = torch.split(scored.log_probs, sizes)
        others = [None] * len(sizes) if scored.entropies is None else torch.split(scored.entropies, sizes)
        scored_by_index.update(zip(indices, map(Scored, log_probs, others), strict=True))
    return [scored_by_index[index] for index in range(len(sequences))]
