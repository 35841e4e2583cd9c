"""Linear maps whose results for a row do not depend on the other rows of the batch, to the bit.

With `numerics: portable` this is a property of `base/portable.py`. On other numeric paths, a CPU uses other kernels for
products of few rows, which round differently. Products of fewer than `LEAST_ROWS` rows are therefore padded with rows
of zeros. The first use of each shape tests if this suffices; if not, products are computed in tiles with a fixed number
of rows.
"""

from __future__ import annotations

import logging
from collections import Counter
from functools import cache
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn.functional import linear as product

from lever_pipe.base import portable
from lever_pipe.base.torch_streams import torch_generator

log = logging.getLogger(__name__)

LEAST_ROWS = 4
TILE_ROWS = 32
PROBED = (1, 2, 3, 4, 5, 7, 8, 13, 16, 31, 40, 63)
"""Numbers of rows that the self-test maps separately, out of `PROBED_ROWS`."""
PROBED_ROWS = 96
WORK: Counter[str] = Counter()
"""Counts of this process: `tiles`."""


class RowwiseLinear(nn.Linear):
    """A linear layer that uses `linear`."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - the library's name for it
        """Return the mapped rows."""
        return linear(input, self.weight, self.bias)


Model = TypeVar("Model", bound=nn.Module)


def rowwise(model: Model) -> Model:
    """Return a model after changing its linear layers to `RowwiseLinear`, in place."""
    for module in model.modules():
        # Exact type only: a subclass, such as one of attention, may compute something else.
        if type(module) is nn.Linear:
            module.__class__ = RowwiseLinear
    return model


def linear(rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return `rows @ weight.T + bias`, each row with the same bits as in any other batch.

    Args:
        rows: [..., K].
        weight: [N, K], N > 1: a vector uses other kernels.
        bias: [N].
    """
    if not rows.is_cpu:
        return product(rows, weight, bias)
    if portable.is_installed() and rows.dtype == torch.float32:
        needs_gradient = torch.is_grad_enabled() and (rows.requires_grad or weight.requires_grad)
        return product(rows, weight, bias) if needs_gradient else portable.linear(rows, weight, bias)
    whole = rows.numel() >= LEAST_ROWS * rows.shape[-1]
    if keeps_rows(weight.shape, weight.dtype, bias is not None, torch.get_num_threads()):
        return product(rows, weight, bias) if whole else in_company(rows, weight, bias, LEAST_ROWS)
    return _in_tiles(rows, weight, bias)


def in_company(rows: Tensor, weight: Tensor, bias: Tensor | None, least: int) -> Tensor:
    """Return the product of a small number of rows, padded with rows of zeros."""
    flat = rows.reshape(-1, rows.shape[-1])
    return product(filled(flat, least), weight, bias)[: len(flat)].view(*rows.shape[:-1], len(weight))


def filled(rows: Tensor, least: int = LEAST_ROWS) -> Tensor:
    """Return rows `[B, ...]`, on a CPU padded with rows of zeros if there are fewer than `least`."""
    missing = least - len(rows) if rows.is_cpu else 0
    return torch.cat([rows, rows.new_zeros(missing, *rows.shape[1:])]) if missing > 0 else rows


def _in_tiles(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    tiles = torch.split(rows.reshape(-1, rows.shape[-1]), TILE_ROWS)
    WORK["tiles"] += len(tiles)
    mapped = [
        product(tile, weight, bias) if len(tile) == TILE_ROWS else in_company(tile, weight, bias, TILE_ROWS)
        for tile in tiles
    ]
    return torch.cat(mapped).view(*rows.shape[:-1], len(weight))


@cache
def keeps_rows(shape: torch.Size, dtype: torch.dtype, biased: bool, threads: int) -> bool:
    """Return whether products of this shape give a row the same bits in every batch.

    Args:
        shape: of the weight, [N, K].
        dtype: of rows and weight.
        biased: whether a bias is added.
        threads: of this process; libraries divide a product among threads by its shape.
    """
    assert threads == torch.get_num_threads()
    with torch.no_grad():
        draw = torch_generator(0, "rowwise self-test")
        weight = torch.randn(shape, generator=draw).to(dtype)
        rows = torch.randn(PROBED_ROWS, shape[1], generator=draw).to(dtype)
        bias = torch.randn(shape[0], generator=draw).to(dtype) if biased else None
        together = product(rows, weight, bias)
        # The last rows: their positions in the two products differ most.
        same = all(torch.equal(_alone(rows[-count:], weight, bias), together[-count:]) for count in PROBED)
    if not same:
        _warn_once()
    return same


def _alone(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    if len(rows) >= LEAST_ROWS:
        return product(rows, weight, bias)
    return in_company(rows, weight, bias, LEAST_ROWS)


@cache
def _warn_once() -> None:
    log.warning(
        "This machine's matrix products round a row differently in different batches; they are made in tiles of %d "
        "rows, so that answers depend on nothing but their prompts. That is slower.",
        TILE_ROWS,
    )
