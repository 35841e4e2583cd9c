"""The residual block after the input projection."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from lever_pipe.base.torch_streams import torch_generator
from lever_pipe.lever.selector.network import Architecture, PointerSelector, build_selector, initialise

PLAIN = Architecture(embedding=12, width=16, layers=1, heads=1, dropout=0.5, attention_dropout=0.1, temperature=0.1)
BLOCK = replace(PLAIN, feed_forward=24)
TENSORS = {"input_up.weight": (24, 16), "input_up.bias": (24,), "input_down.weight": (16, 24), "input_down.bias": (16,)}


def selector(architecture: Architecture = BLOCK, seed: int = 0) -> PointerSelector:
    return initialise(build_selector(architecture), torch_generator(seed, "selector")).eval()


def opened(module: PointerSelector) -> PointerSelector:
    """Return a selector whose block does something."""
    assert module.input_up is not None
    assert module.input_down is not None
    for number, parameter in enumerate((module.input_down.weight, module.input_down.bias, module.input_up.bias)):
        nn.init.normal_(parameter, std=0.3, generator=torch_generator(7, number))
    return module


def inputs(batch: int = 3, size: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    query = torch.randn(batch, 12, generator=torch_generator(1))
    pool = torch.randn(batch, size, 12, generator=torch_generator(2))
    return nn.functional.normalize(query, dim=-1), nn.functional.normalize(pool, dim=-1)


@pytest.mark.parametrize("head", ["static", "gru"])
def test_a_block_begins_as_the_identity(head: str) -> None:
    plain, block = selector(replace(PLAIN, head=head)), selector(replace(BLOCK, head=head))
    for name in plain.state_dict().keys() - plain.head.state_dict().keys():  # a head is drawn after the block
        assert torch.equal(plain.state_dict()[name], block.state_dict()[name]), name
    with torch.no_grad():
        assert torch.equal(plain(*inputs()), block(*inputs()))


def test_the_block_is_its_formula() -> None:
    """h + down gelu(up sqrt(width) h + b) + c, value by value, with h the projected example."""
    module = opened(selector())
    w = {name: value.double().numpy() for name, value in module.state_dict().items()}
    query, _ = inputs()
    for row, found in zip(query.double().numpy(), module.project(query).detach(), strict=True):
        h = w["input_proj.weight"] @ row
        hidden = w["input_up.weight"] @ h * math.sqrt(16) + w["input_up.bias"]
        gelu = np.array([value * (1 + math.erf(value / math.sqrt(2))) / 2 for value in hidden])
        expected = h + w["input_down.weight"] @ gelu + w["input_down.bias"]
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_frozen_projections_freeze_their_block() -> None:
    module = selector()
    module.freeze_projections()
    frozen = {name for name, p in module.named_parameters() if not p.requires_grad}
    assert frozen == {"input_proj.weight", "query_proj.weight", "cand_proj.weight", *TENSORS}
