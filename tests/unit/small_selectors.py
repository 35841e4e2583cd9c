"""Small selectors, what they see, and groups of selections to train them on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from lever_pipe.base.torch_streams import torch_generator
from lever_pipe.lever.selector.embeddings import EmbeddingTable
from lever_pipe.lever.selector.network import Architecture, PointerSelector, build_selector, initialise
from lever_pipe.lever.training.groups import Groups

SMALL = Architecture(embedding=6, width=8, layers=1, heads=1, dropout=0.0, attention_dropout=0.0, temperature=0.5)
NOISY: dict[str, Any] = {"dropout": 0.5, "attention_dropout": 0.1, "temperature": 0.1}
"""As published."""


def selector(seed: int = 0, **changed: Any) -> PointerSelector:
    """Return a selector in eval mode."""
    return initialise(build_selector(replace(SMALL, **changed)), torch_generator(seed)).eval()


def table(n: int = 40) -> EmbeddingTable:
    return EmbeddingTable(nn.functional.normalize(torch.randn(n, 6, generator=torch_generator(1)), dim=-1))


def groups(n: int = 6, *, shots: int = 3, size: int = 7, n_examples: int = 40, rewards: Tensor | None = None) -> Groups:
    """Return n queries with four selections each, or as many as `rewards` has."""
    generator = torch_generator(2)
    pools = torch.stack([torch.randperm(n_examples, generator=generator)[:size] for _ in range(n)])
    n_selections = 4 if rewards is None else rewards.shape[1]
    selections = torch.rand(n, n_selections, size, generator=generator).argsort(dim=-1)[..., :shots]
    sampled = torch.rand(n, n_selections, generator=generator)
    rewards = sampled if rewards is None else rewards
    return Groups(torch.arange(n), pools, selections, rewards, torch.ones_like(rewards, dtype=torch.bool))


N_KINDS = 4
"""Of `table_of_kinds`: an example is of the kind of its number modulo this."""


def table_of_kinds(n: int) -> EmbeddingTable:
    """Return examples of four kinds, each kind a direction plus noise."""
    noise = torch.randn(n, 6, generator=torch_generator(7)) / 10
    return EmbeddingTable(nn.functional.normalize(torch.eye(6)[torch.arange(n) % N_KINDS] + noise, dim=-1))


def groups_of_kinds(n: int, n_examples: int) -> Groups:
    """Return queries of all kinds, each with two candidates of each kind in any order, without selections."""
    last = torch.arange(n_examples - 2 * N_KINDS, n_examples)
    pools = torch.stack([last[torch.randperm(len(last), generator=torch_generator(2, i))] for i in range(n)])
    empty = torch.zeros(n, 1)
    return Groups(torch.arange(n), pools, torch.zeros(n, 1, 1, dtype=torch.long), empty, empty.bool())
