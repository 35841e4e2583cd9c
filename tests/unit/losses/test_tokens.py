from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from slow_agent_loss import ADDED, slow_terms
from torch import Tensor

from lever_pipe.base.shapes import ShapeError
from lever_pipe.base.torch_streams import torch_generator
from lever_pipe.losses import tokens
from lever_pipe.losses.kl import k3
from lever_pipe.losses.tokens import AgentTerms

real_terms = tokens.agent_terms
real_losses = tokens._dual_clipped_losses
real_distances = tokens.distances_to_reference
SETTINGS: dict[str, float] = {
    "clip_low": 0.2,
    "clip_high": 0.4,
    "dual_clip": 3.0,
    "kl": 0.3,
    "entropy": 0.1,
}
ATOL = 1e-12  # float64 sums in another order


def tensor(*rows: Sequence[float]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def batch_of(name: str, *, rows: int = 6, positions: int = 9) -> dict[str, Any]:
    """A mini-batch whose tokens meet every branch of the loss; rows of unequal length."""
    random = torch_generator(0, "tokens", name)

    def normal(scale: float) -> Tensor:
        return torch.randn(rows, positions, generator=random, dtype=torch.float64) * scale

    log_probs = -2 + normal(0.3)
    mask = torch.rand(rows, positions, generator=random) < torch.linspace(0.3, 0.9, rows)[:, None]
    mask[:, 0] = True
    return {
        "log_probs_BT": log_probs,
        "behaviour_log_probs_BT": log_probs + normal(0.8),
        "reference_log_probs_BT": log_probs + normal(1.5),
        "entropies_BT": normal(1.0).abs(),
        "advantages_BT": normal(1.0),
        "mask_BT": mask,
        "n_tokens": int(mask.sum()),
        **SETTINGS,
    }


def rows_of(batch: dict[str, Any], rows: Any) -> dict[str, Any]:
    return {name: value[rows] if isinstance(value, Tensor) else value for name, value in batch.items()}


def terms_of(batch: dict[str, Any]) -> AgentTerms:
    return tokens.agent_terms(**batch)


def gradient_of(batch: dict[str, Any]) -> Tensor:
    leaf = batch["log_probs_BT"].clone().requires_grad_()
    terms_of({**batch, "log_probs_BT": leaf}).total.backward()
    assert leaf.grad is not None
    gradient: Tensor = leaf.grad
    return gradient


def hand_batch(ratios: Sequence[float], advantages: Sequence[float], mask: Sequence[bool]) -> dict[str, Any]:
    return {
        "log_probs_BT": tensor(ratios).log(),
        "behaviour_log_probs_BT": tensor([0.0] * len(ratios)),
        "reference_log_probs_BT": None,
        "entropies_BT": None,
        "advantages_BT": tensor(advantages),
        "mask_BT": torch.tensor([mask]),
        "n_tokens": 10,
        **SETTINGS,
        "kl": 0.0,
        "entropy": 0.0,
    }


RATIOS = (1.5, 1.5, 0.5, 0.5, 4.0, 4.0, 2.0, 100.0)
ADVANTAGES = (1.0, -1.0, 1.0, -1.0, -1.0, 2.0, 0.0, 7.0)
IS_SAMPLED = (True,) * 7 + (False,)


def test_every_branch_by_hand() -> None:
    # Clip [.8, 1.4]. -A rho against -A clip: max(-1.5, -1.4) = -1.4 clipped; max(1.5, 1.4) = 1.5;
    # max(-.5, -.8) = -.5; max(.5, .8) = .8 clipped; max(4, 1.4) = 4, bounded to 3; max(-8, -2.8) = -2.8 clipped;
    # 0; the last is no agent token. Sum .6 over the given 10 tokens. Ratios add up to 14.
    terms = terms_of(hand_batch(RATIOS, ADVANTAGES, IS_SAMPLED))
    assert terms.policy.item() == pytest.approx(0.06, abs=ATOL)
    assert terms.total.item() == terms.policy.item()
    assert (terms.clipped.item(), terms.dual_clipped.item()) == (3, 1)
    assert terms.ratio_max.item() == pytest.approx(4.0, abs=ATOL)
    assert terms.ratio_sum.item() == pytest.approx(14.0, abs=ATOL)
    assert terms.penalty.item() == terms.entropy.item() == 0.0


def test_every_gradient_by_hand() -> None:
    # -A rho / 10 where neither the clip nor the bound is active, else 0.
    gradient = gradient_of(hand_batch(RATIOS, ADVANTAGES, IS_SAMPLED))
    wanted = [0.0, 0.15, -0.05, 0.0, 0.0, 0.0, 0.0, 0.0]
    assert gradient[0].tolist() == pytest.approx(wanted, abs=ATOL)


def test_penalty_and_entropy_by_hand() -> None:
    # d = ln 2: 2 - 1 - ln 2. d = -ln 2: 1/2 - 1 + ln 2. d = ln 1000: limited to 10. Sum 10.5 over 5 tokens.
    # Its gradient by log P is 1 - e^d: -1, 1/2 and 0 at the limit. Entropies 2, 1, 3 sum to 6.
    batch = hand_batch([1.0] * 4, [0.0] * 4, [True, True, True, False])
    batch |= {"n_tokens": 5, "kl": 0.3, "entropy": 0.1}
    batch["reference_log_probs_BT"] = tensor([math.log(2), -math.log(2), math.log(1000), 5.0])
    batch["entropies_BT"] = tensor([2.0, 1.0, 3.0, 50.0])
    terms = terms_of(batch)
    assert terms.penalty.item() == pytest.approx(2.1, abs=ATOL)
    assert terms.entropy.item() == pytest.approx(1.2, abs=ATOL)
    assert terms.total.item() == pytest.approx(0.3 * 2.1 - 0.1 * 1.2, abs=ATOL)
    assert gradient_of(batch)[0].tolist() == pytest.approx([-0.06, 0.03, 0.0, 0.0], abs=ATOL)


def test_the_penalty_takes_the_form_that_is_named() -> None:
    # Reference twice and four times as likely: d = ln 2 and 2 ln 2; the third token is no agent's. Weight 0.5, n = 2.
    batch = hand_batch((1.0, 1.0, 1.0), (0.0, 0.0, 0.0), (True, True, False))
    batch |= {"reference_log_probs_BT": tensor((2.0, 4.0, 9.0)).log(), "n_tokens": 2, "kl": 0.5}
    squared = 5 * math.log(2) ** 2 / 4
    found = {form: terms_of({**batch, "kl_form": form}) for form in ("k3_loss", "k2_loss", "k1_reward")}
    assert found["k2_loss"].penalty.item() == pytest.approx(squared, abs=ATOL)
    assert found["k2_loss"].total.item() == pytest.approx(squared / 2, abs=ATOL)
    assert (
        found["k3_loss"].penalty.item()
        == found["k1_reward"].penalty.item()
        == pytest.approx((4 - 3 * math.log(2)) / 2, abs=ATOL)
    )
    assert found["k1_reward"].total.item() == 0.0  # its advantages include the KL


def test_the_ratio_of_a_sequence_is_the_geometric_mean_at_each_of_its_tokens() -> None:
    # Ratios 2 and 8 make 4, of the second row 1/2 alone; masked values are arbitrary.
    ratios, mask = tensor((2.0, 8.0), (0.5, math.inf)), torch.tensor([[True, True], [True, False]])
    leaf = ratios.log().requires_grad_()
    behaviour = tokens.behaviour_of_sequences(leaf, torch.zeros_like(ratios), mask)
    assert behaviour[1, 1].item() == 0.0
    found = torch.where(mask, leaf - behaviour, 0.0).exp()
    assert found.tolist() == [pytest.approx([4, 4]), pytest.approx([0.5, 1])]
    (found * mask).sum().backward()
    assert leaf.grad is not None
    assert leaf.grad.tolist() == [pytest.approx([4, 4]), pytest.approx([0.5, 0])]


def test_sequence_ratios_of_one_advantage_have_the_gradient_of_the_ratio_of_their_sequence() -> None:
    """Of e^s A, s the mean over the row, written out: what GSPO clips, for rows inside the clip."""
    batch = batch_of("sequences")
    mask, near = batch["mask_BT"], batch["log_probs_BT"] + 0.05
    advantages = torch.linspace(-1, 1, 6, dtype=torch.float64)[:, None].expand_as(near)
    leaf, slow = (batch["log_probs_BT"].clone().requires_grad_() for _ in range(2))
    behaviour = tokens.behaviour_of_sequences(leaf, near, mask)
    changed = {"behaviour_log_probs_BT": behaviour, "advantages_BT": advantages, "kl": 0.0, "entropy": 0.0}
    terms_of({**batch, **changed, "log_probs_BT": leaf}).total.backward()
    n_B = mask.sum(dim=1)
    s_B = torch.where(mask, slow - near, 0.0).sum(dim=1) / n_B
    (-(s_B.exp() * advantages[:, 0] * n_B).sum() / batch["n_tokens"]).backward()
    assert leaf.grad is not None
    assert slow.grad is not None
    assert torch.allclose(leaf.grad, slow.grad, atol=ATOL, rtol=0)


def test_slow_oracle() -> None:
    batch = batch_of("oracle", rows=8, positions=40)
    terms, wanted = terms_of(batch), {name: float(value) for name, value in slow_terms(batch).items()}
    assert {name: getattr(terms, name).item() for name in ADDED} == pytest.approx(wanted, abs=ATOL)
    assert min(wanted.values()) > 0  # every branch is met
    assert wanted["clipped"] > 3 < wanted["dual_clipped"]


def with_settings(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Callable[..., AgentTerms]:
    return lambda **batch: real_terms(**{**batch, **change(batch)})


def losses_with(change: Callable[[Tensor, Tensor, float, float, float], Tensor]) -> Callable[..., Any]:
    return lambda *given: real_losses(*given)._replace(loss=change(*given))


def clipped_only(rho: Tensor, a: Tensor, low: float, high: float, dual: float) -> Tensor:
    return -a * rho.clamp(1 - low, 1 + high)


def optimistic(rho: Tensor, a: Tensor, low: float, high: float, dual: float) -> Tensor:
    return torch.minimum(-a * rho, clipped_only(rho, a, low, high, dual))


def distances_with(change: Callable[[Tensor], Tensor]) -> Callable[..., Any]:
    def distances(new: Tensor, reference: Tensor, mask: Tensor, n: int) -> Any:
        d = torch.where(mask, reference.detach() - new, torch.zeros_like(new))
        return real_distances(new, reference, mask, n)._replace(k3=torch.where(mask, change(d), 0.0).sum() / n)

    return distances


MUTANTS: dict[str, tuple[str, Any]] = {
    "advantage negated": ("agent_terms", with_settings(lambda b: {"advantages_BT": -b["advantages_BT"]})),
    "no dual clip": ("agent_terms", with_settings(lambda b: {"dual_clip": math.inf})),
    "no clip": ("agent_terms", with_settings(lambda b: {"clip_low": 1.0, "clip_high": 1e9})),
    "ratio inverted": (
        "agent_terms",
        with_settings(
            lambda b: {
                "log_probs_BT": b["behaviour_log_probs_BT"],
                "behaviour_log_probs_BT": b["log_probs_BT"],
            }
        ),
    ),
    "penalty subtracted": ("agent_terms", with_settings(lambda b: {"kl": -b["kl"]})),
    "entropy punished": ("agent_terms", with_settings(lambda b: {"entropy": -b["entropy"]})),
    "unweighted terms": (
        "agent_terms",
        lambda **b: replace(t := real_terms(**b), total=t.policy + t.penalty - t.entropy),
    ),
    "mean of the micro-batch": ("agent_terms", with_settings(lambda b: {"n_tokens": max(1, int(b["mask_BT"].sum()))})),
    "tool tokens counted": ("agent_terms", with_settings(lambda b: {"mask_BT": torch.ones_like(b["mask_BT"])})),
    "clipped branch alone": ("_dual_clipped_losses", losses_with(clipped_only)),
    "optimistic branch": ("_dual_clipped_losses", losses_with(optimistic)),
    "clip counts exchanged": (
        "_dual_clipped_losses",
        lambda *given: (t := real_losses(*given))._replace(clipped=t.dual_clipped, dual_clipped=t.clipped),
    ),
    "penalty the other way": ("distances_to_reference", distances_with(lambda d: k3(-d).clamp(max=10))),
    "penalty is k1": ("distances_to_reference", distances_with(lambda d: -d)),
    "penalty unlimited": ("distances_to_reference", distances_with(k3)),
    "sum for the mean of a sequence": (
        "behaviour_of_sequences",
        lambda p, b, m: p.detach() - (p.detach() - b).where(m, 0.0).sum(1, keepdim=True),
    ),
    "a ratio a token": ("behaviour_of_sequences", lambda p, b, m: torch.where(m, b, 0.0)),
    "padding multiplied by zero": ("masked", lambda values, valid, fill=0.0: values * valid),
}


WRONG = [(tokens, *change) for change in MUTANTS.values()]


@settings(max_examples=40)
@given(st.permutations(range(6)), st.lists(st.integers(1, 5), max_size=3), st.integers(0, 100))
def test_any_order_and_any_cut_of_the_rows_gives_the_same_loss(order: list[int], cuts: list[int], seed: int) -> None:
    batch = batch_of(f"any {seed}")
    edges = sorted({0, *cuts, 6})
    parts = [order[start:end] for start, end in pairwise(edges)]
    whole, terms = terms_of(batch), [terms_of(rows_of(batch, part)) for part in parts]
    for name in ADDED:
        total = sum(getattr(of, name).item() for of in terms)
        assert total == pytest.approx(getattr(whole, name).item(), abs=ATOL)
    assert max(of.ratio_max.item() for of in terms) == whole.ratio_max.item()
    gradient = torch.cat([gradient_of(rows_of(batch, part)) for part in parts])
    assert torch.allclose(gradient, gradient_of(batch)[order], atol=ATOL, rtol=0)


@settings(max_examples=40)
@given(st.integers(0, 1000))
def test_gradient_is_the_derivative_away_from_the_kinks(seed: int) -> None:
    batch = batch_of(f"kinks {seed}", rows=2, positions=6)
    ratios = (batch["log_probs_BT"] - batch["behaviour_log_probs_BT"]).exp()
    kinks = tensor([0.8, 1.4, 3.0])[0]
    far = ((ratios[..., None] - kinks).abs() > 1e-3).all(dim=-1)
    far &= (k3(batch["reference_log_probs_BT"] - batch["log_probs_BT"]) - 10).abs() > 1e-2
    batch["mask_BT"] &= far
    policy, entropies = (batch[name].requires_grad_() for name in ("log_probs_BT", "entropies_BT"))

    def total(log_probs: Tensor, entropies: Tensor) -> Tensor:
        return terms_of({**batch, "log_probs_BT": log_probs, "entropies_BT": entropies}).total

    assert torch.autograd.gradcheck(total, (policy, entropies))


@pytest.mark.parametrize("advantage", [1.0, -1.0])
@pytest.mark.parametrize("distance", [-500.0, 500.0])
def test_extreme_ratios_stay_finite(distance: float, advantage: float) -> None:
    batch = hand_batch([1.0], [advantage], [True]) | {"kl": 0.3}
    batch["log_probs_BT"] = batch["log_probs_BT"].float() + distance
    batch["reference_log_probs_BT"] = torch.zeros(1, 1)
    terms = terms_of(batch)
    assert all(getattr(terms, f.name).isfinite() for f in fields(terms))
    assert gradient_of(batch).tolist() == [[0.0]]  # every limit cuts it


def test_an_empty_micro_batch_contributes_nothing() -> None:
    batch = batch_of("empty")
    batch["mask_BT"] = torch.zeros_like(batch["mask_BT"])
    terms = terms_of(batch)
    assert [getattr(terms, f.name).item() for f in fields(terms)] == [0.0] * 8
    assert (gradient_of(batch) == 0).all()


def test_impossible_input_is_an_error() -> None:
    batch = batch_of("errors")
    with pytest.raises(ValueError, match="n_tokens"):
        terms_of({**batch, "n_tokens": 0})
    with pytest.raises(ValueError, match="reference_log_probs_BT"):
        terms_of({**batch, "reference_log_probs_BT": None})
    with pytest.raises(ValueError, match="entropies_BT"):
        terms_of({**batch, "entropies_BT": None})
    with pytest.raises(ShapeError, match="mask_BT"):
        tokens.mean_over_tokens(torch.zeros(2, 3), torch.ones(2, 2).bool(), 1)
