"""A selector that does not change says the same in less: each example of a table passes its projections once."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from lever_pipe.base.seeding import torch_generator
from lever_pipe.lever.selector.embeddings import EmbeddingTable, FrozenSelector
from lever_pipe.lever.selector.network import Architecture, PointerSelector, build_selector, initialise
from lever_pipe.lever.training.groups import Groups

N = 40


def selector(head: str) -> PointerSelector:
    architecture = Architecture(6, 8, 1, 2, 0.5, 0.5, 0.1, head=head, feed_forward=12)
    return initialise(build_selector(architecture), torch_generator(0))


def table() -> EmbeddingTable:
    return EmbeddingTable(nn.functional.normalize(torch.randn(N, 6, generator=torch_generator(1)), dim=-1))


def groups(n: int) -> Groups:
    generator = torch_generator(n)
    return Groups(
        queries=torch.randint(N, (n,), generator=generator),
        pools=torch.rand(n, N, generator=generator).argsort(dim=-1)[:, :7],
        selections=torch.rand(n, 4, 7, generator=generator).argsort(dim=-1)[..., :3],
        rewards=torch.rand(n, 4, generator=generator),
        valid=torch.ones(n, 4, dtype=torch.bool),
    )


@pytest.mark.parametrize("name", ["input_proj", "input_up", "input_down", "cand_proj"])
def test_each_example_passes_a_projection_once(name: str) -> None:
    rows = 0

    def count(_: nn.Module, inputs: tuple[Tensor]) -> None:
        nonlocal rows
        rows += inputs[0][..., 0].numel()

    module = selector("static")
    getattr(module, name).register_forward_pre_hook(count)
    frozen = FrozenSelector(module, table())
    for n in (5, 16, 16):
        frozen.scores(groups(n))
    assert rows == N

    rows = 0
    batch = groups(5)
    table().encoded(module, batch)
    assert rows == len(torch.cat([batch.queries, batch.pools.flatten()]).unique())
