"""Selections of a policy: greedy, or drawn with noise that the caller gives."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from lever_pipe.base.shapes import ShapeError, require_shapes
from lever_pipe.lever.selector.network import Encoded, PointerSelector, rank_pool, rows_at


@torch.no_grad()
def greedy(module: PointerSelector, encoded: Encoded, shots: int) -> Tensor:
    """Return the best candidate at each step, `[B, S]` pool positions; ties keep pool order.

    Raises:
        ShapeError: fewer candidates than shots.
    """
    _require_enough(encoded.candidates.shape[1], shots)
    if module.gate is None:
        return rank_pool(module.first(encoded), shots)
    return _pick(module, encoded, 1, shots, lambda logits_BGK, _: logits_BGK).squeeze(1)


@torch.no_grad()
def draw(module: PointerSelector, encoded: Encoded, noise_BGSK: Tensor) -> Tensor:
    """Return G selections a query, `[B, G, S]` pool positions: at each step the largest logit + noise not yet chosen.

    With standard Gumbel noise (`gumbel`) they are exact draws from the policy (Plackett-Luce, without repeats):
    P(argmax of logit + noise = k) = softmax(logit)_k over the candidates that are left.

    Raises:
        ShapeError: fewer candidates than shots, or noise of another shape.
    """
    sizes = require_shapes(("candidates", "B K H", encoded.candidates), ("noise", "B G S K", noise_BGSK))
    _require_enough(sizes["K"], sizes["S"])
    return _pick(module, encoded, sizes["G"], sizes["S"], lambda logits_BGK, step: logits_BGK + noise_BGSK[:, :, step])


def gumbel(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Return standard Gumbel noise of a shape, float64: minus the logarithm of an exponential variable."""
    exponential = torch.empty(shape, dtype=torch.float64).exponential_(generator=generator)
    return -exponential.clamp(min=torch.finfo(torch.float64).tiny).log()


def _pick(
    module: PointerSelector,
    encoded: Encoded,
    group: int,
    shots: int,
    utilities: Callable[[Tensor, int], Tensor],
) -> Tensor:
    u, v = encoded
    u = u[:, None].expand(-1, group, -1)
    logits_BGK = module.logits(u, v)
    chosen_BGK = torch.zeros_like(logits_BGK, dtype=torch.bool)
    picks: list[Tensor] = []
    for step in range(shots):
        if picks and module.gate is not None:
            u = module.after(u, rows_at(v, picks[-1]))
            logits_BGK = module.logits(u, v)
        picks.append(utilities(logits_BGK, step).masked_fill(chosen_BGK, -torch.inf).argmax(dim=-1))
        chosen_BGK.scatter_(-1, picks[-1][..., None], value=True)
    return torch.stack(picks, dim=-1)


def _require_enough(candidates: int, shots: int) -> None:
    if not 1 <= shots <= candidates:
        raise ShapeError(f"shots must be in 1..K with K={candidates} candidates, got {shots}")
