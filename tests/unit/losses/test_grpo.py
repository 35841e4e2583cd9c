from __future__ import annotations

import math
from dataclasses import fields, replace
from functools import partial

import pytest
import torch
from torch import Tensor

from lever_pipe.base.torch_streams import torch_generator
from lever_pipe.losses import advantages as advantage_losses
from lever_pipe.losses import grpo, surrogate
from lever_pipe.losses.kl import k3
from lever_pipe.losses.surrogate import PolicyTerms, clipped_surrogate

real_grpo_terms = grpo.grpo_terms

EPSILON = 0.2
# The published constants.
published_z_scores = partial(advantage_losses.published_z_scores, clamp=3.0)
group_advantages = partial(advantage_losses.group_advantages, std_floor=0.1, clamp=5.0)


def tensor(*rows: list[float]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def terms_of(
    log_probs: Tensor,
    reference: Tensor,
    advantages: Tensor,
    valid: Tensor | None = None,
    kl_beta: float = 0.15,
) -> PolicyTerms:
    return grpo.grpo_terms(
        log_probs_BG=log_probs,
        reference_log_probs_BG=reference,
        advantages_BG=advantages,
        valid_BG=torch.ones_like(advantages, dtype=torch.bool) if valid is None else valid,
        clip_epsilon=EPSILON,
        kl_beta=kl_beta,
    )


def random_batch(name: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Log-probs, reference, advantages and an unequal mask, [4, 6] each."""
    random = torch_generator(0, "grpo", name)
    log_probs = -5 + torch.randn(4, 6, generator=random, dtype=torch.float64) * 0.4
    reference = -5 + torch.randn(4, 6, generator=random, dtype=torch.float64) * 0.4
    valid = torch.rand(4, 6, generator=random) < 0.7
    valid[:, :2] = True
    rewards = torch.randn(4, 6, generator=random, dtype=torch.float64)
    return log_probs, reference, group_advantages(rewards, valid), valid


def test_hand_derived_step() -> None:
    # Two selections, rho = 2 with A = 1 and rho = 1/2 with A = -1.
    # policy: min(2, 1.2) = 1.2 and min(-.5, -.8) = -.8; mean .2; negated -.2.
    # penalty: (2 - 1 - ln 2 + 1/2 - 1 + ln 2) / 2 = 1/4. total = -.2 + .15/4 = -.1625.
    # mean ratio (2 + .5)/2; both are clipped; std of (1, -1) = sqrt 2; largest |A| = 1.
    log_probs = tensor([math.log(0.2), math.log(0.1)])
    reference = tensor([math.log(0.1), math.log(0.2)])
    terms = terms_of(log_probs, reference, tensor([1.0, -1.0]))
    expected = (-0.2, 0.25, -0.1625, 1.25, 1.0, 0.0, math.sqrt(2), 1.0, 1.0)
    actual = [getattr(terms, field.name).item() for field in fields(terms)]
    assert actual == pytest.approx(expected, abs=1e-12)


def test_gradient_at_identity_is_minus_the_advantage() -> None:
    log_probs, _, advantages, valid = random_batch("gradient")
    policy = log_probs.clone().requires_grad_()
    terms_of(policy, log_probs, advantages, valid).total.backward()
    assert policy.grad is not None
    wanted = -advantages / valid.sum(dim=1, keepdim=True) / 4
    assert torch.allclose(policy.grad, wanted, atol=1e-12, rtol=0)  # float64 rounding


def test_tied_group_has_no_policy_gradient_and_is_counted() -> None:
    rewards = tensor([1.6, 1.6, 1.6], [0.0, 1.6, 2.0], [0.0, 0.0, 0.0])
    valid = torch.ones(3, 3, dtype=torch.bool)
    advantages = group_advantages(published_z_scores(rewards, valid), valid)
    policy = torch.full((3, 3), -4.0, dtype=torch.float64, requires_grad=True)
    terms = terms_of(policy, policy.detach() + 0.1, advantages, valid)
    terms.policy.backward()
    assert policy.grad is not None
    assert policy.grad[0].tolist() == policy.grad[2].tolist() == [0.0] * 3
    assert policy.grad[1].abs().min().item() > 0
    assert terms.gradient_share.item() == pytest.approx(1 / 3, abs=1e-12)
    # The published logs' "Adv Std" is this share: 1 in a group with a spread, else 0.
    assert terms.std_advantage.item() == pytest.approx(1 / 3, abs=1e-12)


def slow_terms(batch: tuple[Tensor, Tensor, Tensor, Tensor], beta: float) -> tuple[float, float]:
    """Policy and penalty by loops over queries with `math` only."""
    policies, penalties = [], []
    for new, old, adv, valid in zip(*(x.tolist() for x in batch), strict=True):
        rows = [row[:3] for row in zip(new, old, adv, valid, strict=True) if row[3]]
        rhos = [math.exp(n - o) for n, o, _ in rows]
        gains = [min(rho * a, max(0.8, min(1.2, rho)) * a) for rho, (_, _, a) in zip(rhos, rows, strict=True)]
        policies.append(-sum(gains) / len(rows))
        penalties.append(sum(rho - 1 - math.log(rho) for rho in rhos) / len(rows))
    return sum(policies) / len(policies), sum(penalties) / len(penalties)


def test_slow_oracle() -> None:
    batch = random_batch("oracle")
    policy, penalty = slow_terms(batch, 0.15)
    terms = terms_of(*batch)
    assert terms.policy.item() == pytest.approx(policy, abs=1e-12)
    assert terms.penalty.item() == pytest.approx(penalty, abs=1e-12)
    assert terms.total.item() == pytest.approx(policy + 0.15 * penalty, abs=1e-12)


def test_five_corners_by_hand_with_no_gradient_where_the_clip_is_counted() -> None:
    # rho = 1.5, 1.5, .5, .5, 1.1 and A = 1, -1, 1, -1, 1: min(rho A, clip A) = 1.2, -1.5, .5, -.8, 1.1;
    # the mean is .5 / 5, negated -.1. Clipped: the first and the fourth.
    ratios, advantages = tensor([1.5, 1.5, 0.5, 0.5, 1.1]), tensor([1.0, -1.0, 1.0, -1.0, 1.0])
    log_ratio = ratios.log().requires_grad_()
    terms = grpo.clipped_surrogate(log_ratio, advantages, torch.ones_like(ratios, dtype=torch.bool), EPSILON)
    terms.loss.backward()
    assert terms.loss.item() == pytest.approx(-0.1, abs=1e-12)
    assert log_ratio.grad is not None
    assert (log_ratio.grad == 0).tolist() == [[True, False, False, True, False]]
    assert terms.clip_fraction.item() == pytest.approx(2 / 5, abs=1e-12)


def unweighted_penalty(**kwargs: object) -> PolicyTerms:
    terms = real_grpo_terms(**kwargs)  # type: ignore[arg-type]
    return replace(terms, total=terms.policy + terms.penalty)


def penalty_subtracted(**kwargs: object) -> PolicyTerms:
    return real_grpo_terms(**{**kwargs, "kl_beta": -float(kwargs["kl_beta"])})  # type: ignore[arg-type]


def unmasked(**kwargs: object) -> PolicyTerms:
    valid = torch.ones_like(kwargs["valid_BG"])  # type: ignore[call-overload]
    return real_grpo_terms(**{**kwargs, "valid_BG": valid})  # type: ignore[arg-type]


WRONG: list[tuple[object, str, object]] = [
    (grpo, "grpo_terms", unweighted_penalty),
    (grpo, "grpo_terms", penalty_subtracted),
    (grpo, "grpo_terms", unmasked),
    (grpo, "clipped_surrogate", lambda r, a, v, e: clipped_surrogate(-r, a, v, e)),
    (grpo, "clipped_surrogate", lambda r, a, v, e: clipped_surrogate(r, a, v, 1e9)),
    (grpo, "clipped_surrogate", lambda r, a, v, e: clipped_surrogate(*(x.reshape(1, -1) for x in (r, a, v)), e)),
    (grpo, "k3", lambda log_ratio: k3(-log_ratio)),
    (grpo, "k3", lambda log_ratio: log_ratio),
    (grpo, "mean_of_group_means", lambda values, valid: values[valid].mean()),
    (surrogate, "mean_over_queries", lambda values, valid: values.sum()),
    (surrogate, "group_standard_deviations", lambda a, v: a.std(dim=1, correction=0)),
]
