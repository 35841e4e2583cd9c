from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from lever_pipe.base.seeding import torch_generator
from lever_pipe.base.shapes import ShapeError
from lever_pipe.losses import surrogate
from lever_pipe.losses.surrogate import SurrogateTerms, clipped_surrogate, score_function_surrogate

EPSILON = 0.2


def tensor(*rows: list[float]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def all_valid(values: Tensor) -> Tensor:
    return torch.ones_like(values, dtype=torch.bool)


def terms_of(ratios: Tensor, advantages: Tensor, valid: Tensor | None = None) -> SurrogateTerms:
    valid = all_valid(ratios) if valid is None else valid
    return surrogate.clipped_surrogate(ratios.log(), advantages, valid, EPSILON)


def check_four_corners_by_hand() -> None:
    # rho = 1.5, 1.5, .5, .5 and A = 1, -1, 1, -1: min(rho A, clip A) = 1.2, -1.5, .5, -.8;
    # the mean is -.6 / 4, negated .15. Clipped: the first and the last.
    terms = terms_of(tensor([1.5, 1.5, 0.5, 0.5]), tensor([1.0, -1.0, 1.0, -1.0]))
    assert terms.loss.item() == pytest.approx(0.15, abs=1e-12)
    assert terms.clip_fraction.item() == 0.5


def check_mean_over_queries_and_padding() -> None:
    # Query 1: A = 1 alone, -1. Query 2: A = 4, 0, 2 at rho = 1, -2. Mean over queries: -1.5;
    # over selections it would be -7/4.
    advantages = tensor([1.0, 50.0, 50.0], [4.0, 0.0, 2.0])
    valid = torch.tensor([[True, False, False], [True, True, True]])
    terms = terms_of(torch.ones(2, 3).double(), advantages, valid)
    assert terms.loss.item() == -1.5


def check_gradient_raises_good_and_lowers_bad_selections() -> None:
    log_ratio = torch.zeros(1, 2, dtype=torch.float64, requires_grad=True)
    advantages = tensor([1.0, -1.0])
    surrogate.clipped_surrogate(log_ratio, advantages, all_valid(advantages), EPSILON).loss.backward()
    assert log_ratio.grad is not None
    assert log_ratio.grad.tolist() == [[-0.5, 0.5]]  # - A rho / 2; descent goes the other way


def check_gradient_is_cut_where_the_clip_is_counted() -> None:
    ratios = tensor([1.5, 1.5, 0.5, 0.5, 1.1])
    log_ratio = ratios.log().requires_grad_()
    advantages = tensor([1.0, -1.0, 1.0, -1.0, 1.0])
    terms = surrogate.clipped_surrogate(log_ratio, advantages, all_valid(ratios), EPSILON)
    terms.loss.backward()
    assert log_ratio.grad is not None
    assert (log_ratio.grad == 0).tolist() == [[True, False, False, True, False]]
    assert terms.clip_fraction.item() == pytest.approx(2 / 5, abs=1e-12)


def check_slow_oracle() -> None:
    random = torch_generator(0, "surrogate")
    ratios = torch.rand(4, 6, generator=random, dtype=torch.float64) * 2 + 0.01
    advantages = torch.randn(4, 6, generator=random, dtype=torch.float64)
    valid = torch.rand(4, 6, generator=random) < 0.7
    valid[:, 0] = True
    means = []
    for rho_row, a_row, valid_row in zip(ratios, advantages, valid, strict=True):
        kept = []
        for rho, a, ok in zip(rho_row.tolist(), a_row.tolist(), valid_row.tolist(), strict=True):
            if ok:
                kept.append(min(rho * a, max(0.8, min(1.2, rho)) * a))
        means.append(sum(kept) / len(kept))
    loss = terms_of(ratios, advantages, valid).loss.item()
    assert loss == pytest.approx(-sum(means) / 4, abs=1e-12)


CHECKS = (
    check_four_corners_by_hand,
    check_mean_over_queries_and_padding,
    check_gradient_raises_good_and_lowers_bad_selections,
    check_gradient_is_cut_where_the_clip_is_counted,
    check_slow_oracle,
)


@pytest.mark.parametrize("check", CHECKS)
def test_surrogate_passes_the_checks(check: Callable[[], None]) -> None:
    check()


def swapped_sign(log_ratio: Tensor, advantages: Tensor, valid: Tensor, eps: float) -> SurrogateTerms:
    terms = clipped_surrogate(log_ratio, advantages, valid, eps)
    return SurrogateTerms(-terms.loss, terms.clip_fraction)


def no_clip(log_ratio: Tensor, advantages: Tensor, valid: Tensor, eps: float) -> SurrogateTerms:
    return clipped_surrogate(log_ratio, advantages, valid, 1e9)


def always_clipped(log_ratio: Tensor, advantages: Tensor, valid: Tensor, eps: float) -> SurrogateTerms:
    clamped = log_ratio.exp().clamp(1 - eps, 1 + eps).log()
    return clipped_surrogate(clamped, advantages, valid, eps)


def inverted_ratio(log_ratio: Tensor, advantages: Tensor, valid: Tensor, eps: float) -> SurrogateTerms:
    return clipped_surrogate(-log_ratio, advantages, valid, eps)


def no_mask(log_ratio: Tensor, advantages: Tensor, valid: Tensor, eps: float) -> SurrogateTerms:
    return clipped_surrogate(log_ratio, advantages, torch.ones_like(valid), eps)


def flat_mean(log_ratio: Tensor, advantages: Tensor, valid: Tensor, eps: float) -> SurrogateTerms:
    flat = valid.reshape(1, -1)
    return clipped_surrogate(log_ratio.reshape(1, -1), advantages.reshape(1, -1), flat, eps)


@pytest.mark.parametrize("broken", [swapped_sign, no_clip, always_clipped, inverted_ratio, no_mask, flat_mean])
def test_the_checks_reject_a_broken_surrogate(broken: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(surrogate, "clipped_surrogate", broken)
    with pytest.raises(AssertionError):
        for check in CHECKS:
            check()


def test_padding_may_hold_anything_and_advantages_get_no_gradient() -> None:
    log_ratio = torch.tensor([[0.0, math.inf]], requires_grad=True)
    advantages = torch.tensor([[2.0, math.nan]], requires_grad=True)
    terms = clipped_surrogate(log_ratio, advantages, torch.tensor([[True, False]]), EPSILON)
    terms.loss.backward()
    assert terms.loss.item() == -2.0
    assert log_ratio.grad is not None
    assert log_ratio.grad.tolist() == [[-2.0, 0.0]]
    assert advantages.grad is None
    assert not terms.clip_fraction.requires_grad


def test_shapes_are_checked() -> None:
    with pytest.raises(ShapeError, match="advantages"):
        clipped_surrogate(torch.zeros(2, 3), torch.zeros(2), torch.ones(2, 3).bool(), EPSILON)


def test_the_plain_surrogate_by_hand() -> None:
    # Query 1: A ln P = 2 (-1) and -1 (-3): mean 1/2. Query 2: 4 (-2) alone. loss = -(1/2 - 8) / 2.
    log_probs = tensor([-1.0, -3.0], [-2.0, math.inf]).requires_grad_()
    valid = torch.tensor([[True, True], [True, False]])
    loss = score_function_surrogate(log_probs, tensor([2.0, -1.0], [4.0, math.nan]), valid)
    loss.backward()
    assert loss.item() == pytest.approx(3.75, abs=1e-12)
    assert log_probs.grad is not None
    # - A / (valid of the query) / (queries)
    assert log_probs.grad.tolist() == [[-0.5, 0.25], [-2.0, 0.0]]


def test_the_plain_surrogate_has_the_gradient_of_the_clipped_one_where_policy_and_behaviour_agree() -> None:
    random = torch_generator(0, "plain")
    log_probs, advantages = torch.randn(2, 5, 4, generator=random, dtype=torch.float64)
    valid = torch.rand(5, 4, generator=random) < 0.7
    leaf = log_probs.clone().requires_grad_()
    (clipped,) = torch.autograd.grad(clipped_surrogate(leaf - log_probs, advantages, valid, EPSILON).loss, leaf)
    (plain,) = torch.autograd.grad(score_function_surrogate(leaf, advantages, valid), leaf)
    assert plain.abs().max().item() > 0.01
    assert torch.allclose(clipped, plain, atol=1e-15, rtol=0)  # at the tie, two halves of the gradient are added


def test_the_plain_surrogate_checks_shapes_and_keeps_advantages_constant() -> None:
    log_probs, advantages = tensor([-1.0, -2.0]).requires_grad_(), tensor([1.0, 2.0]).requires_grad_()
    score_function_surrogate(log_probs, advantages, all_valid(log_probs)).backward()
    assert log_probs.grad is not None
    assert advantages.grad is None
    with pytest.raises(ShapeError, match="advantages"):
        score_function_surrogate(torch.zeros(1, 3), torch.zeros(3), torch.ones(1, 3).bool())
