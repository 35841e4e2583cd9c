from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from lever_pipe.losses import kl
from lever_pipe.losses.kl import k1, k2, k3, kl_policy_to_reference, reference_penalty
from lever_pipe.seeding import torch_generator
from lever_pipe.shapes import ShapeError

POLICY = [0.7, 0.2, 0.1]
REFERENCE = [0.1, 0.3, 0.6]


def log(probabilities: list[float]) -> Tensor:
    return torch.tensor(probabilities, dtype=torch.float64).log()


def kl_by_math(p: list[float], q: list[float]) -> float:
    return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))


def check_exact_kl_in_both_directions() -> None:
    forward = kl.kl_policy_to_reference(log(POLICY), log(REFERENCE)).item()
    backward = kl.kl_policy_to_reference(log(REFERENCE), log(POLICY)).item()
    assert forward == pytest.approx(kl_by_math(POLICY, REFERENCE), abs=1e-12)
    assert backward == pytest.approx(kl_by_math(REFERENCE, POLICY), abs=1e-12)
    assert abs(forward - backward) > 0.01  # the pair tells the directions apart


def check_penalty_by_hand() -> None:
    # One selection, policy twice as likely as the reference: rho = 2, k3 = 2 - 1 - ln 2.
    # The other way round it would be 1/2 - 1 + ln 2.
    penalty = kl.reference_penalty(
        torch.tensor([[math.log(0.5)]]),
        torch.tensor([[math.log(0.25)]]),
        torch.tensor([[True]]),
    )
    assert penalty.item() == pytest.approx(1 - math.log(2), abs=1e-7)  # one float32 rounding


def check_penalty_reduction() -> None:
    # Query 1 holds rho = 2 alone, query 2 holds rho = 1 three times; the mean over queries is
    # half of k3(2), while a mean over selections would be a quarter of it.
    log_ratios = torch.tensor([[math.log(2), 9.0, 9.0], [0.0, 0.0, 0.0]])
    valid = torch.tensor([[True, False, False], [True, True, True]])
    penalty = kl.reference_penalty(log_ratios, torch.zeros(2, 3), valid)
    assert penalty.item() == pytest.approx((1 - math.log(2)) / 2, abs=1e-7)  # float32 rounding


CHECKS = (check_exact_kl_in_both_directions, check_penalty_by_hand, check_penalty_reduction)


@pytest.mark.parametrize("check", CHECKS)
def test_distances_pass_the_checks(check: Callable[[], None]) -> None:
    check()


def reversed_penalty(log_probs: Tensor, reference_log_probs: Tensor, valid: Tensor) -> Tensor:
    return reference_penalty(reference_log_probs, log_probs, valid)


def flat_penalty(log_probs: Tensor, reference_log_probs: Tensor, valid: Tensor) -> Tensor:
    return k3(log_probs - reference_log_probs)[valid].mean()


def unmasked_penalty(log_probs: Tensor, reference_log_probs: Tensor, valid: Tensor) -> Tensor:
    return reference_penalty(log_probs, reference_log_probs, torch.ones_like(valid))


def reversed_kl(logits: Tensor, reference_logits: Tensor) -> Tensor:
    return kl_policy_to_reference(reference_logits, logits)


def wrong_expectation(logits: Tensor, reference_logits: Tensor) -> Tensor:
    log_p, log_r = logits.log_softmax(-1), reference_logits.log_softmax(-1)
    return (log_r.exp() * (log_p - log_r)).sum(-1)


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        ("reference_penalty", reversed_penalty),
        ("reference_penalty", flat_penalty),
        ("reference_penalty", unmasked_penalty),
        ("kl_policy_to_reference", reversed_kl),
        ("kl_policy_to_reference", wrong_expectation),
        ("k3", k1),
        ("k3", k2),
        ("k3", lambda log_ratio: k3(-log_ratio)),
    ],
)
def test_the_checks_reject_a_broken_distance(name: str, broken: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kl, name, broken)
    with pytest.raises(AssertionError):
        for check in CHECKS:
            check()


@pytest.mark.parametrize("estimator", [k1, k3])
def test_estimators_are_unbiased_for_the_sampling_direction(estimator: object) -> None:
    # Expectation under q = REFERENCE, written out over its three outcomes, is KL(q || p).
    values = estimator(log(POLICY) - log(REFERENCE))  # type: ignore[operator]
    expectation = sum(q * v for q, v in zip(REFERENCE, values.tolist(), strict=True))
    assert expectation == pytest.approx(kl_by_math(REFERENCE, POLICY), abs=1e-12)
    assert expectation != pytest.approx(kl_by_math(POLICY, REFERENCE), abs=0.01)


def test_k2_is_half_the_square() -> None:
    assert k2(torch.tensor([-3.0, 0.0, 2.0])).tolist() == [4.5, 0.0, 2.0]


def test_k3_keeps_its_digits_near_identity() -> None:
    # k3(x) = x^2/2 + x^3/6 + ...: at 1e-6 it is 5.000002e-13; exp(x) - 1 - x would give noise.
    tiny = k3(torch.tensor(1e-6, dtype=torch.float64)).item()
    assert tiny == pytest.approx(5e-13, abs=1e-16)  # expm1 is good to 1e-22 here


def test_everything_is_zero_at_identity() -> None:
    log_probs = torch.tensor([[-1.0, -2.0]])
    valid = torch.ones(1, 2, dtype=torch.bool)
    assert reference_penalty(log_probs, log_probs, valid).item() == 0.0
    logits = torch.randn(2, 3, 8, generator=torch_generator(0, "kl"), dtype=torch.float64)
    assert torch.equal(kl_policy_to_reference(logits, logits), torch.zeros(2, 3).double())
    # atol: adding 5 rounds each logit at 1e-15
    shifted = kl_policy_to_reference(logits, logits + 5)
    assert torch.allclose(shifted, torch.zeros(2, 3).double(), atol=1e-13, rtol=0)


def test_k3_and_exact_kl_are_never_negative() -> None:
    random = torch_generator(0, "positive")
    first, second = torch.randn(2, 50, 8, generator=random, dtype=torch.float64) * 3
    assert (kl_policy_to_reference(first, second) > 0).all()
    assert (k3(first) > 0).all()


def test_gradient_pulls_the_policy_towards_the_reference() -> None:
    log_probs = torch.tensor([[-1.0, -3.0]], requires_grad=True)
    reference = torch.tensor([[-2.0, -2.0]], requires_grad=True)
    reference_penalty(log_probs, reference, torch.ones(1, 2, dtype=torch.bool)).backward()
    assert log_probs.grad is not None
    # d k3 / d log pi = rho - 1: positive where the policy is above the reference; halved by mean
    assert log_probs.grad[0].tolist() == pytest.approx(
        [(math.e - 1) / 2, (1 / math.e - 1) / 2],
        abs=1e-6,  # float32
    )
    assert reference.grad is None


def test_padding_may_hold_anything() -> None:
    log_probs = torch.tensor([[0.0, math.inf, math.nan]], requires_grad=True)
    valid = torch.tensor([[True, False, False]])
    penalty = reference_penalty(log_probs, torch.zeros(1, 3), valid)
    penalty.backward()
    assert penalty.item() == 0.0
    assert log_probs.grad is not None
    assert log_probs.grad.tolist() == [[0.0, 0.0, 0.0]]


def test_shapes_are_checked() -> None:
    with pytest.raises(ShapeError, match="reference_log_probs"):
        reference_penalty(torch.zeros(1, 2), torch.zeros(1, 3), torch.ones(1, 2).bool())
    with pytest.raises(ValueError, match="one shape"):
        kl_policy_to_reference(torch.zeros(2, 3), torch.zeros(3))
