from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from lever_pipe.base.shapes import ShapeError
from lever_pipe.base.torch_streams import torch_generator
from lever_pipe.lever.selector.decoding import draw, greedy, gumbel
from lever_pipe.lever.selector.network import Architecture, PointerSelector, build_selector, initialise

SMALL = Architecture(embedding=6, width=8, layers=1, heads=1, dropout=0.5, attention_dropout=0.1, temperature=0.5)
HEADS = ("static", "gru")


def selector(head: str, seed: int = 0) -> PointerSelector:
    return initialise(build_selector(replace(SMALL, head=head)), torch_generator(seed)).eval()


def inputs(batch: int, size: int, seed: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch_generator(seed, "inputs")
    return torch.randn(batch, 6, generator=generator), torch.randn(batch, size, 6, generator=generator)


def greedily(module: PointerSelector, query: Tensor, pool: Tensor, shots: int) -> Tensor:
    return greedy(module, module.encode(query, pool), shots)


@pytest.mark.parametrize("head", HEADS)
def test_ties_keep_pool_order(head: str) -> None:
    query, _ = inputs(2, 1)  # candidates without direction have cosine 0 to whatever the query has become
    assert greedily(selector(head), query, torch.zeros(2, 100, 6), 100).tolist() == [list(range(100))] * 2


@pytest.mark.parametrize("head", HEADS)
def test_more_shots_than_candidates_are_refused(head: str) -> None:
    module, (query, pool) = selector(head), inputs(2, 3)
    with pytest.raises(ShapeError):
        greedily(module, query, pool, 4)
    with pytest.raises(ShapeError):
        draw(module, module.encode(query, pool), torch.zeros(2, 1, 4, 3))
    with pytest.raises(ShapeError, match="noise_BGSK"):
        draw(module, module.encode(query, pool), torch.zeros(2, 1, 2, 4))


def test_noise_is_standard_gumbel() -> None:
    noise = gumbel((200_000,), torch_generator(0))
    assert torch.equal(noise, gumbel((200_000,), torch_generator(0)))
    n, deviation = 200_000, math.pi / math.sqrt(6)
    assert abs(float(noise.mean()) - 0.5772156649) < 5 * deviation / math.sqrt(n)  # Euler's constant
    # Kolmogorov: sup |empirical - exp(-exp(-x))| exceeds 2.7 / sqrt(n) with probability 2 exp(-2 * 2.7^2) < 1e-6
    heights = (-(-noise.sort().values).exp()).exp()
    assert float((heights - torch.arange(n) / n).abs().max()) < 2.7 / math.sqrt(n)
