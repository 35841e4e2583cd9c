"""Bugs of the published evaluation, each compared with its effect computed by hand."""

from __future__ import annotations

import copy

import pytest
import small_selectors
import torch
from hypothesis import given
from hypothesis import strategies as st
from small_selectors import NOISY

from lever_pipe.base.torch_streams import torch_generator
from lever_pipe.lever.emulation import (
    drop_head,
    head_names,
    with_repeats,
)
from lever_pipe.lever.selector.decoding import rank_pool
from lever_pipe.lever.selector.network import PointerSelector
from lever_pipe.lever.training.loop import trained_share

TWO_LAYERS = {"layers": 2, "heads": 2, **NOISY}
PUBLISHED = {"embedding": 512, "width": 256, **NOISY}


def selector(**changed: object) -> PointerSelector:
    return small_selectors.selector(**{**TWO_LAYERS, **changed})


def moved(module: PointerSelector, names: set[str]) -> PointerSelector:
    """Return a copy with other values in the named tensors."""
    other = copy.deepcopy(module)
    with torch.no_grad():
        for name, parameter in other.named_parameters():
            if name in names:
                parameter.add_(torch.randn(parameter.shape, generator=torch_generator(3, name)))
    return other


def scores(module: PointerSelector) -> torch.Tensor:
    query, pool = (torch.randn(size, generator=torch_generator(1, *size)) for size in ((20, 6), (20, 9, 6)))
    with torch.inference_mode():
        return module(query, pool)


def test_the_head_is_what_frozen_grpo_trains() -> None:
    module = small_selectors.selector(**PUBLISHED)
    names = head_names(module)
    # the six tensors that the published converter renamed
    assert {name.replace(".0.", ".") for name in names} == {
        "cross_attn_layers.in_proj_weight", "cross_attn_layers.in_proj_bias", "cross_attn_layers.out_proj.weight",
        "cross_attn_layers.out_proj.bias", "attn_norms.weight", "attn_norms.bias",
    }  # fmt: skip
    assert all(parameter.requires_grad for parameter in module.parameters())  # asking freezes nothing
    module.freeze_projections()
    assert {name for name, p in module.named_parameters() if p.requires_grad} == names
    assert trained_share(module) == pytest.approx(0.50146, abs=1e-5)


def test_the_projections_stay_and_everything_else_is_fresh() -> None:
    base = moved(selector(), head_names(selector()))
    dropped = drop_head(copy.deepcopy(base), 42)
    unchanged = {name for name, value in base.state_dict().items() if torch.equal(value, dropped.state_dict()[name])}
    assert unchanged == {f"{name}.weight" for name in ("input_proj", "query_proj", "cand_proj")}


def published_decoding(scores: list[float], shots: int) -> list[int]:
    """Return picks as the published loop makes them: the chosen get a score of -100, and the first maximum wins."""
    left, picks = list(scores), []
    for _ in range(shots):
        best = max(range(len(left)), key=lambda k: (left[k], -k))
        left[best] = -100.0
        picks.append(best)
    return picks


@given(st.lists(st.integers(-99, 99), min_size=1, max_size=6), st.integers(1, 8))
def test_it_is_the_published_loop(scores: list[int], shots: int) -> None:
    tenths = [score / 10 for score in scores]
    n_pool = len(scores)
    picks = rank_pool(torch.tensor([tenths]), min(shots, n_pool))
    assert with_repeats(picks, shots, n_pool).tolist() == [published_decoding(tenths, shots)]


def test_what_has_ended_stays_so() -> None:
    assert with_repeats(torch.tensor([[1, 2], [0, 1]]), 4, 2).tolist() == [[1, 2, 2, 2], [0, 1, 0, 0]]
