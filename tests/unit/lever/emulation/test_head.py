from __future__ import annotations

import copy

import pytest
import small_selectors
import torch
from small_selectors import NOISY

from lever_pipe.base.seeding import torch_generator
from lever_pipe.lever.emulation import drop_head, head_names
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


def test_checkpoints_that_differ_in_trained_tensors_become_one() -> None:
    base = selector()
    tuned = moved(base, head_names(base))
    assert not torch.equal(scores(base), scores(tuned))
    one, other = drop_head(copy.deepcopy(base), 42), drop_head(tuned, 42)
    assert all(torch.equal(value, other.state_dict()[name]) for name, value in one.state_dict().items())
    assert torch.equal(scores(one), scores(other))


def test_the_projections_stay_and_everything_else_is_fresh() -> None:
    base = moved(selector(), head_names(selector()))
    dropped = drop_head(copy.deepcopy(base), 42)
    kept = {name for name, value in base.state_dict().items() if torch.equal(value, dropped.state_dict()[name])}
    assert kept == {f"{name}.weight" for name in ("input_proj", "query_proj", "cand_proj")}


def test_another_base_stays_another_model() -> None:
    base = selector()
    other = moved(base, {"query_proj.weight"})
    assert not torch.equal(scores(drop_head(base, 42)), scores(drop_head(other, 42)))


def test_the_fresh_head_follows_its_seed_and_no_global_stream() -> None:
    first = scores(drop_head(selector(), 42))
    with torch.random.fork_rng():
        torch.manual_seed(99)
        assert torch.equal(scores(drop_head(selector(), 42)), first)
    assert not torch.equal(scores(drop_head(selector(), 43)), first)
