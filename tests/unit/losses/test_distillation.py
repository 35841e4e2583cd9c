from __future__ import annotations

import math
from dataclasses import fields

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lever_pipe.base.torch_streams import torch_generator
from lever_pipe.losses.distillation import distillation_terms


def random_batch(name: str) -> tuple[Tensor, Tensor]:
    """Scores [6, 5] and weights [6, 5], many of them 0 and one row without any."""
    random = torch_generator(0, "distillation", name)
    scores, weights = torch.randn(2, 6, 5, generator=random, dtype=torch.float64)
    weights = weights.clamp(min=0)
    weights[:, 0] += 0.1
    weights[4] = 0.0
    return scores * 2, weights


def test_by_hand() -> None:
    # Weights e^score = 1, 2, 4: p = 1/7, 2/7, 4/7; target 1/2, 1/2 on the last two.
    # L = -(ln(2/7) + ln(4/7)) / 2 = ln 7 - 3/2 ln 2; the second row has no target.
    scores = torch.tensor([[0.0, math.log(2), math.log(4)], [5.0, 0.0, 0.0]], dtype=torch.float64)
    terms = distillation_terms(scores, torch.tensor([[0.0, 1.0, 1.0], [0.0, 0.0, 0.0]]))
    assert terms.total.item() == pytest.approx(math.log(7) - 1.5 * math.log(2), abs=1e-12)
    assert terms.target_entropy.item() == pytest.approx(math.log(2), abs=1e-12)
    assert terms.agreement.item() == 1.0
    assert terms.gradient_share.item() == 0.5
    other = distillation_terms(scores, torch.tensor([[1.0, 1.0, 0.0], [0.0, 2.0, 0.0]]))
    assert (other.agreement.item(), other.gradient_share.item()) == (0.0, 1.0)


def test_agrees_with_loops() -> None:
    scores, weights = random_batch("loops")
    losses, entropies, hits = [], [], []
    for row, wanted in zip(scores.tolist(), weights.tolist(), strict=True):
        if not sum(wanted):
            continue
        log_total = math.log(sum(math.exp(score) for score in row))
        shares = [weight / sum(wanted) for weight in wanted]
        losses.append(sum(share * (log_total - score) for share, score in zip(shares, row, strict=True)))
        entropies.append(-sum(share * math.log(share) for share in shares if share))
        hits.append(shares[row.index(max(row))] > 0)
    terms = distillation_terms(scores, weights)
    assert len(losses) == 5
    assert terms.total.item() == pytest.approx(sum(losses) / 5, abs=1e-12)
    assert terms.target_entropy.item() == pytest.approx(sum(entropies) / 5, abs=1e-12)
    assert terms.agreement.item() == pytest.approx(sum(hits) / 5, abs=1e-12)
    assert terms.gradient_share.item() == pytest.approx(5 / 6, abs=1e-12)
    assert 0 < sum(hits) < 5


def test_gradient_is_policy_minus_target_and_agrees_with_finite_differences() -> None:
    scores, weights = random_batch("gradient")
    leaf = scores.clone().requires_grad_()
    distillation_terms(leaf, weights).total.backward()
    assert leaf.grad is not None
    shares = weights / weights.sum(dim=1, keepdim=True).clamp(min=1e-9)
    wanted = (scores.softmax(dim=1) - shares) / 5
    wanted[4] = 0.0
    assert torch.allclose(leaf.grad, wanted, atol=1e-12, rtol=0)  # float64 rounding
    step = 1e-5
    for index in range(scores.numel()):
        shift = torch.zeros_like(scores)
        shift.view(-1)[index] = step
        up, down = (distillation_terms(scores + sign * shift, weights).total.item() for sign in (1, -1))
        # truncation of order step^2 = 1e-10, rounding of order 1e-16 / step = 1e-11
        assert (up - down) / (2 * step) == pytest.approx(leaf.grad.view(-1)[index].item(), abs=1e-9)


@settings(max_examples=30)
@given(seed=st.integers(0, 10_000), factor=st.floats(0.01, 100), constant=st.floats(-20, 20))
def test_properties(seed: int, factor: float, constant: float) -> None:
    scores, weights = random_batch(str(seed))
    terms = distillation_terms(scores, weights)
    assert terms.total.item() >= terms.target_entropy.item() - 1e-12  # Gibbs
    order = torch.randperm(5, generator=torch_generator(seed, "order"))
    rows = torch.randperm(6, generator=torch_generator(seed, "rows"))
    same = [
        distillation_terms(scores, weights * factor),
        distillation_terms(scores + constant, weights),
        distillation_terms(scores[:, order], weights[:, order]),
        distillation_terms(scores[rows], weights[rows]),
    ]
    for other in same:
        for field in fields(terms):
            # abs: constants of 20 round at 4e-15, and sums run in another order
            wanted = getattr(terms, field.name).item()
            assert getattr(other, field.name).item() == pytest.approx(wanted, abs=1e-12)


def test_without_any_target_nothing_moves() -> None:
    scores = torch.randn(3, 4, generator=torch_generator(0, "none"), requires_grad=True)
    terms = distillation_terms(scores, torch.zeros(3, 4))
    terms.total.backward()
    assert [getattr(terms, field.name).item() for field in fields(terms)] == [0.0] * 4
    assert scores.grad is not None
    assert torch.equal(scores.grad, torch.zeros(3, 4))


@pytest.mark.parametrize("weight", [-1.0, math.nan, math.inf])
def test_invalid_weights_are_errors(weight: float) -> None:
    with pytest.raises(ValueError, match="targets_BK"):
        distillation_terms(torch.zeros(1, 2), torch.tensor([[1.0, weight]]))
