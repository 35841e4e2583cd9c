"""What a policy thinks of tokens that were written before: log-probabilities and entropies, at chosen places only.

The output layer of a large vocabulary costs more than a layer of the network, and its logits more memory than all
else; so it sees only the places whose next token counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lever_pipe.intention.agent.layers import causal, is_plain, run_layers
from lever_pipe.losses.tokens import token_entropies, token_log_probs


class Scored(NamedTuple):
    """One value a chosen place, all sequences in their order; n places in all."""

    log_probs: Tensor
    """[n] float32, of the tokens that stand there."""
    entropies: Tensor | None
    """[n] float32, of what could have stood there; None unless asked for."""


def score(
    model: Any,
    sequences: Sequence[Tensor],
    places: Sequence[Tensor],
    *,
    pad_id: int,
    temperature: float,
    entropies: bool,
) -> Scored:
    """Return what the model thinks of the tokens at the given places, in one forward pass.

    Args:
        model: a causal language model.
        sequences: int64 [L] token ids each.
        places: int64 [n_i] positions in each sequence, at least 1.
        pad_id: fills the ends of shorter sequences; it changes no number, because nothing looks ahead.
        temperature: divides the logits.
        entropies: whether to give entropies too.
    """
    device = model.device
    ids_BL = torch.nn.utils.rnn.pad_sequence(list(sequences), batch_first=True, padding_value=pad_id)
    rows = torch.repeat_interleave(torch.arange(len(places)), torch.tensor([len(each) for each in places]))
    columns = torch.cat(list(places))
    targets_1n = ids_BL[rows, columns][None].to(device)
    logits_1nV = _logits_before(model, ids_BL.to(device), rows.to(device), columns.to(device))
    log_probs_1n = token_log_probs(logits_1nV, targets_1n, temperature)
    return Scored(log_probs_1n[0], token_entropies(logits_1nV, temperature)[0] if entropies else None)


def _logits_before(model: Any, ids_BL: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Return the logits [1, n, V] before the n places."""
    if is_plain(model) and not torch.is_grad_enabled():
        positions_1L = torch.arange(ids_BL.shape[1], device=ids_BL.device)[None]
        hidden_nH = run_layers(model, ids_BL, positions_1L, causal, (rows, columns - 1))
        return torch.as_tensor(model.lm_head(hidden_nH[None]))
    with _only_before(model, rows, columns):
        return torch.as_tensor(model(input_ids=ids_BL, use_cache=False).logits)


@contextmanager
def _only_before(model: Any, rows: Tensor, columns: Tensor) -> Iterator[None]:
    """Show the output layer the states before these places alone, as one sequence [1, n, D]."""

    def choose(_: Any, inputs: tuple[Tensor, ...]) -> Tensor:
        return inputs[0][rows, columns - 1][None]

    handle = model.get_output_embeddings().register_forward_pre_hook(choose)
    try:
        yield
    finally:
        handle.remove()
