from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from lever_pipe.base.shapes import ShapeError
from lever_pipe.base.torch_streams import torch_generator
from lever_pipe.losses import rce
from lever_pipe.losses.rce import RceTerms, reward_ranges

real_imitation_weights = rce.imitation_weights
real_rce_terms = rce.rce_terms


def tensor(*rows: list[float]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def terms_of(
    log_probs: Tensor,
    rewards: Tensor,
    valid: Tensor | None = None,
    *,
    temperature: float = 1.0,
    query_weights: Tensor | None = None,
) -> RceTerms:
    return rce.rce_terms(
        log_probs_BG=log_probs,
        rewards_BG=rewards,
        valid_BG=torch.ones_like(rewards, dtype=torch.bool) if valid is None else valid,
        temperature=temperature,
        query_weights_B=query_weights,
    )


def random_batch(name: str) -> tuple[Tensor, Tensor, Tensor]:
    random = torch_generator(0, "rce", name)
    log_probs = -8 + torch.randn(4, 6, generator=random, dtype=torch.float64)
    rewards = torch.randn(4, 6, generator=random, dtype=torch.float64)
    valid = torch.rand(4, 6, generator=random) < 0.7
    valid[:, 0] = True
    return log_probs, rewards, valid


def test_hand_derived_loss() -> None:
    # R = 0 and 2 ln 3 at t = 2: weights 1/4, 3/4. log P = -4, -8: L = 1 + 6 = 7.
    # Entropy (ln 4)/4 + 3/4 ln(4/3).
    terms = terms_of(tensor([-4.0, -8.0]), tensor([0.0, 2 * math.log(3)]), temperature=2.0)
    assert terms.total.item() == pytest.approx(7.0, abs=1e-12)
    entropy = math.log(4) / 4 + 0.75 * math.log(4 / 3)
    assert terms.weights_entropy.item() == pytest.approx(entropy, abs=1e-12)
    assert terms.max_weight.item() == pytest.approx(0.75, abs=1e-12)


def test_query_weights_are_not_normalised() -> None:
    # L = 2 and 6, weights .5 and 0: (1 + 0)/2, while a weighted mean would be 2.
    log_probs = tensor([-2.0, -2.0], [-6.0, -6.0])
    rewards = torch.zeros(2, 2, dtype=torch.float64)
    weights = torch.tensor([0.5, 0.0], dtype=torch.float64)
    assert terms_of(log_probs, rewards, query_weights=weights).total.item() == 0.5


def test_slow_oracle() -> None:
    log_probs, rewards, valid = random_batch("oracle")
    losses = []
    for b in range(4):
        selected = [g for g in range(6) if valid[b, g]]
        raw = [math.exp(rewards[b, g].item() / 0.7) for g in selected]
        losses.append(-sum(w / sum(raw) * log_probs[b, g].item() for w, g in zip(raw, selected, strict=True)))
    total = terms_of(log_probs, rewards, valid, temperature=0.7).total.item()
    assert total == pytest.approx(sum(losses) / 4, abs=1e-12)


def test_gradient_is_minus_the_weight() -> None:
    log_probs, rewards, valid = random_batch("gradient")
    policy = log_probs.clone().requires_grad_()
    terms_of(policy, rewards, valid).total.backward()
    assert policy.grad is not None
    weights = real_imitation_weights(rewards, valid, temperature=1.0)
    assert torch.allclose(policy.grad, -weights / 4, atol=1e-12, rtol=0)  # float64
    best = rewards.masked_fill(~valid, -math.inf).argmax(dim=1)
    assert policy.grad.argmin(dim=1).equal(best)


def weights_of(rewards: Tensor, valid: Tensor, temperature: float) -> Tensor:
    return real_imitation_weights(rewards, valid, temperature=temperature)


def normalised_query_weights(**kwargs: Tensor) -> RceTerms:
    weights = kwargs["query_weights_B"]
    if weights is not None:
        kwargs["query_weights_B"] = weights / weights.mean()
    return real_rce_terms(**kwargs)  # type: ignore[arg-type]


WRONG: list[tuple[object, str, object]] = [
    (rce, "imitation_weights", lambda r, v, temperature: weights_of(-r, v, temperature)),
    (rce, "imitation_weights", lambda r, v, temperature: weights_of(r, v, 1.0)),
    (rce, "imitation_weights", lambda r, v, temperature: weights_of(r, v, 1 / temperature)),
    (rce, "imitation_weights", lambda r, v, temperature: weights_of(r, v | True, temperature)),
    (rce, "imitation_weights", lambda r, v, temperature: (r / temperature).softmax(dim=0)),
    (rce, "mean_over_queries", lambda values, valid: values.sum()),
    (rce, "rce_terms", normalised_query_weights),
]


def test_reward_ranges() -> None:
    rewards = tensor([0.0, 2.0, 9.0], [1.6, 1.6, 9.0], [9.0, 9.0, 9.0])
    valid = torch.tensor([[True, True, False], [True, True, False], [False, False, False]])
    assert reward_ranges(rewards, valid).tolist() == [2.0, 0.0, 0.0]


def test_problems_are_named() -> None:
    with pytest.raises(ValueError, match="temperature"):
        terms_of(tensor([-1.0]), tensor([1.0]), temperature=0.0)
    with pytest.raises(ShapeError, match="query_weights_B"):
        terms_of(tensor([-1.0]), tensor([1.0]), query_weights=torch.ones(3))
