"""Faults of the published evaluation, each against what it must do by hand."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
import small_selectors
import torch
from chains import Chain
from hypothesis import given
from hypothesis import strategies as st
from small_selectors import NOISY

from lever_pipe.base.seeding import ambient_stream, torch_generator
from lever_pipe.experiment.config import Grpo
from lever_pipe.lever.emulation import (
    drop_head,
    epoch_without_updates,
    head_names,
    identical_prompts,
    prompts_a_query,
    repeated_share,
    with_repeats,
)
from lever_pipe.lever.selector.decoding import rank_pool
from lever_pipe.lever.selector.embeddings import FrozenSelector, architecture_of
from lever_pipe.lever.selector.network import PointerSelector, load_selector
from lever_pipe.lever.training.grpo import kept_in_epoch
from lever_pipe.lever.training.loop import trained_share

ONE = np.array([[1, 0, 0, 0], [0, 1, 0, 0], [7, 8, 9, 7]])
OTHER = np.array([[1, 0, 0, 0], [1, 0, 0, 0], [7, 8, 9, 6]])


def test_repeats_begin_at_the_third_shot_of_a_pool_of_two() -> None:
    assert [repeated_share(ONE, k) for k in (1, 2, 3, 4)] == [0, 0, pytest.approx(2 / 3), 1]


def test_prompts_are_counted_for_each_query_and_by_order() -> None:
    assert prompts_a_query([ONE, OTHER, ONE], 1).tolist() == [1, 2, 1]
    assert prompts_a_query([ONE, OTHER, ONE], 2).tolist() == [1, 2, 1]  # [0, 1] and [1, 0] are two prompts
    assert prompts_a_query([ONE, OTHER], 4).tolist() == [1, 2, 2]
    assert prompts_a_query([ONE], 4).tolist() == [1, 1, 1]


def test_every_two_policies_are_compared_once() -> None:
    found = identical_prompts({"a": ONE, "b": OTHER, "c": ONE}, 2)
    assert found == [("a", "b", pytest.approx(2 / 3)), ("a", "c", 1.0), ("b", "c", pytest.approx(2 / 3))]


@given(st.lists(st.sampled_from([(1, 0, 0, 0), (0, 1, 0, 0)]), min_size=1, max_size=9))
def test_a_pool_of_two_makes_two_prompts_a_shot_count_however_many_policies(rows: list[tuple[int, ...]]) -> None:
    policies = [np.array([row]) for row in rows]
    counts = [int(prompts_a_query(policies, k)[0]) for k in (1, 2, 3, 4)]
    # the first pick decides the rest, so every shot count has as many prompts: 8 at most
    assert len(set(counts)) == 1
    assert counts[0] == len(set(rows))


@pytest.fixture
def chain(tmp_path: Path) -> Chain:
    """Return a chain with its first RCE epoch."""
    made = Chain(tmp_path, grpo=Grpo(batch_queries=3, learning_rate=1e-2))
    made.initialise()
    made.epoch("rce", 1)
    return made


def pair_of(chain: Chain) -> tuple[PointerSelector, FrozenSelector]:
    table = chain.inputs().table
    architecture = architecture_of(chain.selector, table)
    base = chain.outputs("rce1")["selector"]
    policy, reference = (load_selector(base, architecture) for _ in range(2))
    return policy, FrozenSelector(reference.train(), table)


def untouched(
    chain: Chain, pair: tuple[PointerSelector, FrozenSelector], epoch: int, *, has_dropout: bool, stream: int = 0
) -> dict[str, float]:
    data = chain.inputs()
    with ambient_stream(stream, "noise"):
        return epoch_without_updates(
            *pair, data.table, kept_in_epoch(data.train, chain.grpo, epoch), has_dropout=has_dropout, clip_epsilon=0.2,
            generator=torch_generator(0),
        )  # fmt: skip


@pytest.mark.parametrize("epoch", [1, 2])
def test_without_an_update_dropout_alone_makes_a_kl(chain: Chain, epoch: int) -> None:
    right = untouched(chain, pair_of(chain), epoch, has_dropout=False)
    assert (right["kl"], right["kl_exact"], right["mean_ratio"], right["clip_fraction"]) == (0, 0, 1, 0)
    noisy = untouched(chain, pair_of(chain), epoch, has_dropout=True)
    assert noisy["kl"] > 0.01
    assert noisy["kl_exact"] > 0.01
    assert noisy["mean_ratio"] != 1
    # what the data alone decide is the same in both
    for name in ("std_advantage", "max_advantage", "gradient_share"):
        assert noisy[name] == right[name]
    assert "kl_loss" not in right


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
