"""The on-policy objective, its gradient, and how the advantages of a group relate to the expected reward."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import fields, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lever_pipe.base.torch_streams import torch_generator
from lever_pipe.losses import on_policy
from lever_pipe.losses.advantages import (
    centred_advantages,
    leave_one_out_advantages,
)
from lever_pipe.losses.kl import selection_divergence
from lever_pipe.losses.on_policy import score_function_surrogate
from lever_pipe.losses.sequence import selection_log_probs, step_logits
from lever_pipe.losses.surrogate import PolicyTerms, clipped_surrogate

real_terms = on_policy.on_policy_terms
Advantages = Callable[[Tensor, Tensor], Tensor]


def tensor(*rows: list[float]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def all_valid(values: Tensor) -> Tensor:
    return torch.ones_like(values, dtype=torch.bool)


Batch = dict[str, Tensor]


def terms_of(batch: Batch, clip_epsilon: float | None = 0.2, kl_beta: float = 0.15) -> PolicyTerms:
    return on_policy.on_policy_terms(**batch, clip_epsilon=clip_epsilon, kl_beta=kl_beta)


def hand_batch() -> Batch:
    """Query 1 has ratios 2 and 1/2; query 2 is tied; query 3 has one draw next to padding."""
    return {
        "log_probs_BG": tensor([0.2, 0.1], [0.3, 0.3], [0.5, 1.0]).log(),
        "behaviour_log_probs_BG": tensor([0.1, 0.2], [0.3, 0.3], [0.5, 0.1]).log(),
        "advantages_BG": tensor([1.0, -1.0], [0.0, 0.0], [3.0, 70.0]),
        "divergences_BG": tensor([0.3, 0.5], [0.1, 0.3], [1.0, 70.0]),
        "valid_BG": torch.tensor([[True, True], [True, True], [True, False]]),
    }


def random_batch(name: str) -> Batch:
    """Six queries of up to five draws, [6, 5]; the second is tied and the last two are ragged."""
    random = torch_generator(0, "on policy", name)
    noise = torch.randn(4, 6, 5, generator=random, dtype=torch.float64)
    valid = torch.ones(6, 5, dtype=torch.bool)
    valid[4, 2:] = valid[5, 4:] = False
    rewards = noise[2].clone()
    rewards[1] = 0.6
    return {
        "log_probs_BG": noise[0] * 0.3 - 4,
        "behaviour_log_probs_BG": noise[1] * 0.3 - 4,
        "advantages_BG": leave_one_out_advantages(rewards, valid),
        "divergences_BG": noise[3].abs(),
        "valid_BG": valid,
    }


def test_hand_derived_step() -> None:
    # policy: query 1 min(2, 1.2) = 1.2 and min(-.5, -.8) = -.8, mean .2; query 3: 3; mean over the two 1.6.
    # penalty: (.4 + .2 + 1) / 3; total = -1.6 + .15 * 1.6 / 3 = -1.52. Ratios: (1.25 + 1 + 1) / 3.
    # Two of the five draws are clipped. A: means 0, 0, 3; std sqrt 2, 0, 0; largest 1, 0, 3.
    terms = terms_of(hand_batch())
    expected = (-1.6, 1.6 / 3, -1.52, 3.25 / 3, 2 / 5, 1.0, math.sqrt(2) / 3, 4 / 3, 2 / 3)
    assert [getattr(terms, field.name).item() for field in fields(terms)] == pytest.approx(expected, abs=1e-12)


def test_a_gain_rises_to_the_upper_bound_and_a_loss_falls_to_the_lower_one() -> None:
    # Ratios 2 and 1/2 with A = 1 and -1: 1.5 and -0.8 count; query 3 has ratio 1 and A = 3, query 2 is skipped.
    terms = on_policy.on_policy_terms(**hand_batch(), clip_epsilon=0.2, clip_high=0.5, kl_beta=0.0)
    assert terms.policy.item() == pytest.approx(-((1.5 - 0.8) / 2 + 3) / 2, abs=1e-12)


def test_plain_surrogate_by_hand() -> None:
    # Query 1: mean of ln .2 and -ln .1 = (ln 2) / 2; query 3: 3 ln .5 = -3 ln 2; - their mean = 5/4 ln 2.
    terms = terms_of(hand_batch(), clip_epsilon=None)
    assert terms.policy.item() == pytest.approx(1.25 * math.log(2), abs=1e-12)
    assert terms.clip_fraction.item() == 0.0
    assert terms.mean_ratio.item() == pytest.approx(3.25 / 3, abs=1e-12)


def test_nothing_moves_where_all_queries_are_tied() -> None:
    batch = random_batch("tied")
    for clip in (0.2, None):
        leaf = batch["log_probs_BG"].clone().requires_grad_()
        tied = {**batch, "log_probs_BG": leaf, "advantages_BG": torch.zeros(6, 5, dtype=torch.float64)}
        terms = terms_of(tied, clip)
        terms.policy.backward()
        assert leaf.grad is not None
        assert not leaf.grad.any()
        assert terms.policy.item() == terms.gradient_share.item() == terms.clip_fraction.item() == 0.0
        assert terms.total.item() == 0.15 * terms.penalty.item() > 0


def slow_terms(batch: Batch, clip_epsilon: float | None) -> dict[str, float]:
    """The docstring, by loops over lists."""
    policies, penalties, ratios, clipped, n_queries = [], [], [], [], 0
    for query in zip(*(batch[key].tolist() for key in batch), strict=True):
        rows = [row[:4] for row in zip(*query, strict=True) if row[4]]
        n_queries += 1
        gains = []
        for new, old, advantage, _ in rows:
            ratio = math.exp(new - old)
            ratios.append(ratio / len(rows))
            if clip_epsilon is None:
                gains.append(advantage * new)
                continue
            bounded = max(1 - clip_epsilon, min(1 + clip_epsilon, ratio))
            gains.append(min(ratio * advantage, bounded * advantage))
            clipped.append(bounded * advantage < ratio * advantage)
        penalties.append(sum(row[3] for row in rows) / len(rows))
        if any(row[2] for row in rows):
            policies.append(-sum(gains) / len(rows))
    return {
        "policy": sum(policies) / len(policies),
        "penalty": sum(penalties) / n_queries,
        "mean_ratio": sum(ratios) / n_queries,
        "clip_fraction": sum(clipped) / len(clipped) if clipped else 0.0,
        "gradient_share": len(policies) / n_queries,
    }


def test_slow_oracle() -> None:
    for clip, index in itertools.product((0.2, 0.05, None), range(3)):
        batch = random_batch(f"oracle {index}")
        terms = terms_of(batch, clip)
        for name, value in slow_terms(batch, clip).items():
            assert getattr(terms, name).item() == pytest.approx(value, abs=1e-12)


def unweighted_penalty(**kwargs: object) -> PolicyTerms:
    terms = real_terms(**kwargs)  # type: ignore[arg-type]
    return replace(terms, total=terms.policy + terms.penalty)


def with_changed(**changes: Callable[[dict[str, object]], object]) -> Callable[..., PolicyTerms]:
    def broken(**kwargs: object) -> PolicyTerms:
        return real_terms(**{**kwargs, **{key: change(kwargs) for key, change in changes.items()}})  # type: ignore[arg-type]

    return broken


def diluted(r: Tensor, a: Tensor, v: Tensor, *e: float) -> object:
    return clipped_surrogate(r, a, torch.ones_like(v), *e)


WRONG: list[tuple[object, str, object]] = [
    (on_policy, "on_policy_terms", unweighted_penalty),
    (on_policy, "on_policy_terms", with_changed(kl_beta=lambda k: -k["kl_beta"])),  # type: ignore[operator]
    (on_policy, "on_policy_terms", with_changed(clip_epsilon=lambda k: 0.2)),
    (on_policy, "on_policy_terms", with_changed(behaviour_log_probs_BG=lambda k: k["log_probs_BG"])),
    (on_policy, "on_policy_terms", with_changed(valid_BG=lambda k: torch.ones_like(k["valid_BG"]))),  # type: ignore[arg-type]
    (on_policy, "clipped_surrogate", diluted),
    (on_policy, "clipped_surrogate", lambda r, a, v, e, high: clipped_surrogate(r, a, v, e)),
    (on_policy, "clipped_surrogate", lambda r, a, v, *e: clipped_surrogate(-r, a, v, *e)),
    (on_policy, "score_function_surrogate", lambda p, a, v: -score_function_surrogate(p, a, v)),
    (on_policy, "score_function_surrogate", lambda p, a, v: -(p * a)[v].mean()),
    (on_policy, "mean_of_group_means", lambda values, valid: values[valid].mean()),
]


@settings(max_examples=30)
@given(beta=st.floats(0, 100), seed=st.integers(0, 1000), clip=st.sampled_from([None, 0.05, 0.2]))
def test_properties(beta: float, seed: int, clip: float | None) -> None:
    batch = random_batch(str(seed))
    terms = terms_of(batch, clip, beta)
    assert torch.equal(terms.total, terms.policy + beta * terms.penalty)
    draws = torch.randperm(5, generator=torch_generator(seed, "draws"))
    queries = torch.randperm(6, generator=torch_generator(seed, "queries"))
    moved = terms_of({key: x[queries][:, draws] for key, x in batch.items()}, clip, beta)
    for field in fields(terms):
        # abs: sums in another order, the penalty times 100
        assert getattr(moved, field.name).item() == pytest.approx(getattr(terms, field.name).item(), abs=1e-10)
    tripled = terms_of({**batch, "advantages_BG": 3 * batch["advantages_BG"]}, clip, beta)
    assert tripled.policy.item() == pytest.approx(3 * terms.policy.item(), abs=1e-12)
    assert torch.equal(tripled.penalty, terms.penalty)


# A toy policy: scores of 5 candidates from 3 features of each of 4 queries, S = 3 picks, G = 6 draws.
FEATURES = torch.randn(4, 3, generator=torch_generator(0, "features"), dtype=torch.float64)
REFERENCE = torch.randn(3, 5, generator=torch_generator(0, "reference"), dtype=torch.float64)
SELECTIONS = torch.rand(4, 6, 5, generator=torch_generator(0, "selections")).argsort(dim=-1)[..., :3]
GATE = torch.randn(5, 5, generator=torch_generator(0, "gate"), dtype=torch.float64)


def static_scores(theta: Tensor) -> Tensor:
    return (FEATURES @ theta).tanh() * 2


def history_scores(theta: Tensor) -> Tensor:
    """[B, G, S, K]: each step's scores also depend, through the parameters, on the choices before it."""
    chosen = torch.nn.functional.one_hot(SELECTIONS, 5).to(theta)
    before = (chosen.cumsum(dim=2) - chosen) @ GATE
    return static_scores(theta)[:, None, None, :] * (1 + 0.3 * before) + (before @ theta.T @ theta).tanh()


@pytest.mark.parametrize("clip", [0.2, None])
@pytest.mark.parametrize("scores_of", [static_scores, history_scores])
def test_the_whole_objective_agrees_with_finite_differences(
    scores_of: Callable[[Tensor], Tensor], clip: float | None
) -> None:
    def logits_of(theta: Tensor) -> Tensor:
        return step_logits(scores_of(theta), SELECTIONS)

    random = torch_generator(0, "finite differences")
    behaviour, theta = REFERENCE + torch.randn(2, 3, 5, generator=random, dtype=torch.float64) * 0.1
    rewards = torch.randint(3, (4, 6), generator=random).to(torch.float64)
    rewards[2] = 1.0
    valid = torch.ones(4, 6, dtype=torch.bool)
    valid[3, 4:] = False
    advantages = leave_one_out_advantages(rewards, valid)

    def terms_at(theta: Tensor) -> PolicyTerms:
        batch = {
            "log_probs_BG": selection_log_probs(scores_of(theta), SELECTIONS, valid),
            "behaviour_log_probs_BG": selection_log_probs(scores_of(behaviour), SELECTIONS, valid),
            "advantages_BG": advantages,
            "divergences_BG": selection_divergence(logits_of(theta), logits_of(REFERENCE)),
            "valid_BG": valid,
        }
        return terms_of(batch, clip, kl_beta=0.7)

    leaf = theta.clone().requires_grad_()
    terms = terms_at(leaf)
    (gradient,) = torch.autograd.grad(terms.total, leaf)
    assert terms.gradient_share.item() == 0.75
    if clip is not None:
        assert 0 < terms.clip_fraction.item() < 1  # both branches are at work
    step = 1e-5
    for index in range(theta.numel()):
        shift = torch.zeros_like(theta)
        shift.view(-1)[index] = step
        slope = (terms_at(theta + shift).total - terms_at(theta - shift).total).item() / (2 * step)
        # truncation of order step^2 = 1e-10 times a third derivative, rounding of order 1e-16 / step = 1e-11
        assert gradient.view(-1)[index].item() == pytest.approx(slope, abs=1e-8)
    assert gradient.abs().min().item() > 1e-4


# Expected reward and its estimators: two queries, pools of 3, 2 shots, hence 6 selections each.
SCORES = torch.tensor([[0.0, 0.8, -0.5], [0.4, -0.3, 0.9]], dtype=torch.float64)
PAIRS = torch.tensor(list(itertools.permutations(range(3), 2)))
GRADED = torch.tensor([[0.6, 0.2, 2.0, 1.0, 0.1, 0.3], [0.0, 0.3, 0.4, 0.9, 1.1, 1.5]], dtype=torch.float64)
"""Rewards of the six selections, many levels."""


def pair_log_probs(scores: Tensor) -> Tensor:
    """log P of all six selections, [B, 6]."""
    return selection_log_probs(scores, PAIRS.expand(len(scores), -1, -1))


def exact_gradient(rewards: Tensor) -> Tensor:
    """Gradient of each query's expected reward by its own scores, [2, 3]."""
    leaf = SCORES.clone().requires_grad_()
    (pair_log_probs(leaf).exp() * rewards).sum().backward()
    assert leaf.grad is not None
    return leaf.grad


def group_gradients(
    scores: Tensor, groups: Tensor, rewards: Tensor, advantages: Advantages, clip: float | None
) -> Tensor:
    """The ascent direction of each row's scores, [B, 3], as if it were a separate batch; 0 for skipped rows.

    scores [B, 3]; groups [B, G] positions among the six selections; rewards [B, 6].
    """
    leaf = scores.clone().requires_grad_()
    log_probs = pair_log_probs(leaf).gather(1, groups)
    sampled = rewards.gather(1, groups)
    batch = {
        "log_probs_BG": log_probs,
        "behaviour_log_probs_BG": log_probs.detach(),
        "advantages_BG": advantages(sampled, all_valid(sampled)),
        "divergences_BG": torch.zeros_like(sampled),
        "valid_BG": all_valid(sampled),
    }
    terms = terms_of(batch, clip)
    (gradient,) = torch.autograd.grad(terms.policy, leaf)
    return -gradient * terms.gradient_share.item() * len(scores)


def enumerated_gradient(rewards: Tensor, advantages: Advantages, size: int, clip: float | None = 0.2) -> Tensor:
    """The exact mean of the group estimator over all 6^size groups that the policy can draw, [2, 3]."""
    groups = torch.tensor(list(itertools.product(range(6), repeat=size)))
    means = []
    for scores, row in zip(SCORES, rewards, strict=True):
        weights = pair_log_probs(scores[None])[0][groups].sum(dim=1).exp()
        assert weights.sum().item() == pytest.approx(1.0, abs=1e-12)
        n = len(groups)
        each = group_gradients(scores.expand(n, -1), groups, row.expand(n, -1), advantages, clip)
        means.append(weights @ each)
    return torch.stack(means)


@pytest.mark.parametrize("clip", [0.2, None])
@pytest.mark.parametrize("size", [2, 3, 4])
def test_leave_one_out_is_unbiased_and_centring_shrinks_by_a_known_factor(size: int, clip: float | None) -> None:
    exact = exact_gradient(GRADED)
    assert exact.abs().min().item() > 0.01
    unbiased = enumerated_gradient(GRADED, leave_one_out_advantages, size, clip)
    assert torch.allclose(unbiased, exact, atol=1e-12, rtol=0)  # float64 sums of up to 1,296 terms
    centred = enumerated_gradient(GRADED, centred_advantages, size, clip)
    assert torch.allclose(centred, exact * (size - 1) / size, atol=1e-12, rtol=0)
