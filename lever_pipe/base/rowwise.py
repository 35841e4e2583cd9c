"""Linear maps of rows whose bits do not depend on how many other rows are mapped beside them.

A product of few rows takes other kernels on a CPU and rounds differently. With MKL's `STRICT` mode on Intel CPUs it
does not, and elsewhere products of at least `LEAST_ROWS` rows are alike (AMD: measured for inner dimensions of 16 to
1,024); so fewer rows are mapped with rows of zeros beside them. That this suffices is tested for each shape when it is
first met; where it does not, products are made in tiles of one fixed number of rows.
"""

from __future__ import annotations

import logging
from collections import Counter
from functools import cache
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn.functional import linear as product

from lever_pipe.base.seeding import torch_generator

log = logging.getLogger(__name__)

LEAST_ROWS = 4
TILE_ROWS = 32
PROBED = (1, 2, 3, 4, 5, 7, 8, 13, 16, 31, 40, 63)
"""How many rows the self-test maps alone, out of `PROBED_ROWS`."""
PROBED_ROWS = 96
WORK: Counter[str] = Counter()
"""What this process did: `tiles`."""


class RowwiseLinear(nn.Linear):
    """A linear layer that goes through `linear`."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - the library's name for it
        """Return the mapped rows."""
        return linear(input, self.weight, self.bias)


Model = TypeVar("Model", bound=nn.Module)


def rowwise(model: Model) -> Model:
    """Return a model whose linear layers have become `RowwiseLinear`."""
    for module in model.modules():
        if type(module) is nn.Linear:
            module.__class__ = RowwiseLinear
    return model


def linear(rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return `rows @ weight.T + bias`, each row as if it were the only one.

    Args:
        rows: [..., K].
        weight: [N, K], N > 1: a vector takes kernels of its own.
        bias: [N].
    """
    if not rows.is_cpu:
        return product(rows, weight, bias)
    whole = rows.numel() >= LEAST_ROWS * rows.shape[-1]
    if keeps_rows(weight.shape, weight.dtype, bias is not None, torch.get_num_threads()):
        return product(rows, weight, bias) if whole else in_company(rows, weight, bias, LEAST_ROWS)
    return _in_tiles(rows, weight, bias)


def in_company(rows: Tensor, weight: Tensor, bias: Tensor | None, least: int) -> Tensor:
    """Return the product of too few rows, made with rows of zeros beside them."""
    flat = rows.reshape(-1, rows.shape[-1])
    return product(filled(flat, least), weight, bias)[: len(flat)].view(*rows.shape[:-1], len(weight))


def filled(rows: Tensor, least: int = LEAST_ROWS) -> Tensor:
    """Return rows `[B, ...]`, on a CPU with rows of zeros behind them if there are fewer than `least`."""
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
    """Return whether products of this shape keep the bits of a row, whatever is computed beside it.

    Args:
        shape: of the weight, [N, K].
        dtype: of rows and weight.
        biased: whether a bias is added.
        threads: of this process; several share a product by its shape.
    """
    assert threads == torch.get_num_threads()
    with torch.no_grad():
        draw = torch_generator(0, "rowwise self-test")
        weight = torch.randn(shape, generator=draw).to(dtype)
        rows = torch.randn(PROBED_ROWS, shape[1], generator=draw).to(dtype)
        bias = torch.randn(shape[0], generator=draw).to(dtype) if biased else None
        together = product(rows, weight, bias)
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
        "This machine's matrix products round a row differently beside others; they are made in tiles of %d rows, so "
        "that answers depend on nothing but their prompts. That is slower.",
        TILE_ROWS,
    )
