from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from lever_pipe.base.torch_streams import torch_generator
from lever_pipe.losses import kl
from lever_pipe.losses.advantages import leave_one_out_advantages
from lever_pipe.losses.kl import KlForm, k1, k3, kl_policy_to_reference, selection_divergence
from lever_pipe.losses.sequence import selection_log_probs, step_logits

POLICY = [0.7, 0.2, 0.1]
REFERENCE = [0.1, 0.3, 0.6]


def log(probabilities: list[float]) -> Tensor:
    return torch.tensor(probabilities, dtype=torch.float64).log()


def kl_by_math(p: list[float], q: list[float]) -> float:
    return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))


def test_exact_kl_in_both_directions() -> None:
    forward = kl.kl_policy_to_reference(log(POLICY), log(REFERENCE)).item()
    backward = kl.kl_policy_to_reference(log(REFERENCE), log(POLICY)).item()
    assert forward == pytest.approx(kl_by_math(POLICY, REFERENCE), abs=1e-12)
    assert backward == pytest.approx(kl_by_math(REFERENCE, POLICY), abs=1e-12)
    assert abs(forward - backward) > 0.01  # the pair distinguishes the directions


def test_k3_by_hand() -> None:
    # The policy twice as likely as the reference: r = 2, k3 = 2 - 1 - ln 2. The other way round 1/2 - 1 + ln 2.
    assert kl.k3(torch.tensor(math.log(2))).item() == pytest.approx(1 - math.log(2), abs=1e-7)  # float32 rounding


def reversed_kl(logits: Tensor, reference_logits: Tensor) -> Tensor:
    return kl_policy_to_reference(reference_logits, logits)


def wrong_expectation(logits: Tensor, reference_logits: Tensor) -> Tensor:
    log_p, log_r = logits.log_softmax(-1), reference_logits.log_softmax(-1)
    return (log_r.exp() * (log_p - log_r)).sum(-1)


WRONG: list[tuple[object, str, object]] = [
    (kl, "kl_policy_to_reference", reversed_kl),
    (kl, "kl_policy_to_reference", wrong_expectation),
    (kl, "k3", k1),
    (kl, "k3", lambda log_ratio: k3(-log_ratio)),
    (kl, "k2", lambda log_ratio: log_ratio**2),
    (kl, "leave_one_out_advantages", lambda costs, valid: -leave_one_out_advantages(costs, valid)),
    (kl, "leave_one_out_advantages", lambda costs, valid: leave_one_out_advantages(costs, valid) / 2),
    (kl, "selection_divergence", lambda p, r: selection_divergence(r, p)),
    (kl, "selection_divergence", lambda p, r: selection_divergence(p, r) / p.shape[2]),
    (kl, "selection_divergence", lambda p, r: selection_divergence(p[:, :, :1], r[:, :, :1])),
]


def draws(groups: list[tuple[int, int]], leaf: Tensor, form: KlForm, clip: float | None = 0.2) -> Tensor:
    """The distances of groups of two draws of POLICY, [B, 2], the trained policy being softmax(leaf)."""
    rows = torch.tensor(groups)
    valid = torch.ones_like(rows, dtype=torch.bool)
    others = log(POLICY)[rows], log(REFERENCE)[rows], valid
    return kl.divergence_of_draws(leaf.log_softmax(-1)[rows], *others, form=form, clip_epsilon=clip, clip_high=0.3)


def mean_gradient(form: KlForm, clip: float | None = 0.2) -> Tensor:
    """The mean of the gradient over all nine groups of two draws of the policy, enumerated; 0.7 0.2 0.1 by 3."""
    groups = list(itertools.product(range(3), repeat=2))
    leaf = log(POLICY).requires_grad_()
    weights = torch.tensor([POLICY[one] * POLICY[other] for one, other in groups], dtype=torch.float64)
    (gradient,) = torch.autograd.grad((weights * draws(groups, leaf, form, clip).mean(dim=1)).sum(), leaf)
    return gradient


def gradient_of_kl(*, reversed_: bool = False) -> Tensor:
    leaf = log(POLICY).requires_grad_()
    pair = (log(REFERENCE), leaf) if reversed_ else (leaf, log(REFERENCE))
    (gradient,) = torch.autograd.grad(kl_policy_to_reference(*pair), leaf)
    return gradient


def test_k2_loss_and_k1_reward_have_the_gradient_of_the_kl_and_k3_loss_that_of_the_other_direction() -> None:
    true, other = gradient_of_kl(), gradient_of_kl(reversed_=True)
    for form in ("k2_loss", "k1_reward"):
        assert torch.allclose(mean_gradient(form), true, atol=1e-12, rtol=0)  # float64 sums of nine terms
    assert torch.allclose(mean_gradient("k1_reward", None), true, atol=1e-12, rtol=0)
    assert torch.allclose(mean_gradient("k3_loss"), other, atol=1e-12, rtol=0)
    # p (ln p/r - KL) is (0.591, -0.301, -0.289), p - r is (0.6, -0.1, -0.5): 22 degrees apart, 40 % of its length.
    bias = (mean_gradient("k3_loss") - true).norm() / true.norm()
    assert bias.item() == pytest.approx(0.402973, abs=1e-6)  # printed digits


def test_draws_by_hand() -> None:
    # Outcomes 0 and 2: K = ln 7 and -ln 6, so c = +-(ln 7 + ln 6) = +-ln 42. The trained policy has 0.9 and 0.05:
    # rho = 9/7 and 1/2, neither on the side that its clip cuts.
    leaf = log([0.9, 0.05, 0.05])
    (row,) = draws([(0, 2)], leaf, "k1_reward").tolist()
    gap = math.log(42)
    assert row == pytest.approx([math.log(7) + gap * 2 / 7, -math.log(6) - 0.5 * gap + gap], abs=1e-12)
    # A costly draw that fell below 0.8 and a cheap one that rose above 1.3 are at the bounds.
    (row,) = draws([(0, 2)], log([0.5, 0.1, 0.4]), "k1_reward").tolist()
    assert row == pytest.approx([math.log(7) + gap * (0.8 - 1), -math.log(6) - 1.3 * gap + gap], abs=1e-12)
    (row,) = draws([(0, 2)], leaf, "k2_loss").tolist()
    assert row == pytest.approx([math.log(9) ** 2 / 2, math.log(12) ** 2 / 2], abs=1e-12)
    (row,) = draws([(0, 2)], leaf, "k3_loss").tolist()
    assert row == pytest.approx([1 / 9 - 1 + math.log(9), 12 - 1 - math.log(12)], abs=1e-12)


def test_draws_of_the_reference_itself_are_not_pulled() -> None:
    leaf = log(REFERENCE).requires_grad_()
    rows = torch.tensor([[0, 1, 2, 2]])
    at = log(REFERENCE)[rows]
    for form in ("k3_loss", "k2_loss", "k1_reward"):
        values = kl.divergence_of_draws(
            leaf.log_softmax(-1)[rows], at, at, rows >= 0, form=form, clip_epsilon=0.2
        )  # fmt: skip
        values.sum().backward()
        assert values.abs().max().item() < 1e-15
    assert leaf.grad is not None
    assert leaf.grad.abs().max().item() < 1e-15  # rounding of a softmax


@pytest.mark.parametrize("form", ["k3_loss", "k2_loss", "k1_reward"])
def test_padding_reaches_no_distance_and_no_gradient(form: KlForm) -> None:
    log_probs = torch.tensor([[-1.0, -2.0, math.nan]], requires_grad=True)
    values = kl.divergence_of_draws(
        *(log_probs, torch.tensor([[-1.1, -1.9, math.inf]]), torch.tensor([[-1.5, -1.5, math.nan]])),
        *(torch.tensor([[True, True, False]]),),
        form=form,
        clip_epsilon=0.2,
    )
    values.sum().backward()
    assert values[0, 2].item() == 0
    assert log_probs.grad is not None
    assert log_probs.grad[0, 2].item() == 0
    assert log_probs.grad[0, :2].abs().min().item() > 0


@pytest.mark.parametrize("estimator", [k1, k3])
def test_estimators_are_unbiased_for_the_sampling_direction(estimator: object) -> None:
    # Expectation under q = REFERENCE, written out over its three outcomes, is KL(q || p).
    values = estimator(log(POLICY) - log(REFERENCE))  # type: ignore[operator]
    expectation = sum(q * v for q, v in zip(REFERENCE, values.tolist(), strict=True))
    assert expectation == pytest.approx(kl_by_math(REFERENCE, POLICY), abs=1e-12)
    assert expectation != pytest.approx(kl_by_math(POLICY, REFERENCE), abs=0.01)


def test_k3_keeps_its_digits_near_identity() -> None:
    # k3(x) = x^2/2 + x^3/6 + ...: at 1e-6 it is 5.000002e-13; exp(x) - 1 - x would give noise.
    tiny = k3(torch.tensor(1e-6, dtype=torch.float64)).item()
    assert tiny == pytest.approx(5e-13, abs=1e-16)  # expm1 is good to 1e-22 here


def test_shapes_are_checked() -> None:
    with pytest.raises(ValueError, match="one shape"):
        kl_policy_to_reference(torch.zeros(2, 3), torch.zeros(3))


def weights_of(scores: list[float], selection: tuple[int, ...]) -> Iterator[dict[int, float]]:
    """The choice probabilities of each step by the definition: the chosen ones are removed, nothing is masked."""
    left = {k: math.exp(score) for k, score in enumerate(scores)}
    for pick in selection:
        total = sum(left.values())
        yield {k: weight / total for k, weight in left.items()}
        del left[pick]


def probability(scores: list[float], selection: tuple[int, ...]) -> float:
    steps = zip(weights_of(scores, selection), selection, strict=True)
    return math.prod(shares[pick] for shares, pick in steps)


def random_scores(name: str, n_candidates: int) -> tuple[Tensor, Tensor]:
    random = torch_generator(0, "divergence", name)
    first, second = torch.randn(2, 1, n_candidates, generator=random, dtype=torch.float64) * 1.5
    return first, second


def every_selection(n_candidates: int, shots: int) -> Tensor:
    """[1, G, S], G = K (K - 1) ...: all ordered selections."""
    return torch.tensor([list(itertools.permutations(range(n_candidates), shots))])


def divergences_of(scores: Tensor, reference: Tensor, selections: Tensor) -> Tensor:
    return kl.selection_divergence(step_logits(scores, selections), step_logits(reference, selections))


@pytest.mark.parametrize(("n_candidates", "shots"), [(5, 1), (5, 2), (6, 2), (5, 3), (4, 4)])
def test_mean_divergence_is_the_brute_force_kl_of_whole_selections(n_candidates: int, shots: int) -> None:
    scores, reference = random_scores("brute force", n_candidates)
    selections = every_selection(n_candidates, shots)
    p, r = scores[0].tolist(), reference[0].tolist()
    pairs = [tuple(row) for row in selections[0].tolist()]
    brute_force = sum(probability(p, pair) * math.log(probability(p, pair) / probability(r, pair)) for pair in pairs)
    weights = selection_log_probs(scores, selections).exp()
    mean = (weights * divergences_of(scores, reference, selections)).sum().item()
    assert brute_force > 0.1
    assert mean == pytest.approx(brute_force, abs=1e-12)  # float64 sums of up to 60 terms
    # Under the reference's draws the same sum is another number as soon as prefixes differ.
    under_reference = (
        selection_log_probs(reference, selections).exp() * divergences_of(scores, reference, selections)
    ).sum()
    assert (abs(under_reference.item() - brute_force) > 1e-3) == (shots > 1)


def test_divergence_by_hand() -> None:
    # Weights 1, 1, 2 against 1, 1, 1. Step 1: 1/4 ln(3/4) twice + 1/2 ln(3/2) = ln 3 - 3/2 ln 2.
    # Candidate 2 first: then 1/2, 1/2 on both sides: 0. Candidate 0 first: 1/3, 2/3 against 1/2, 1/2:
    # 1/3 ln(2/3) + 2/3 ln(4/3) = 5/3 ln 2 - ln 3.
    scores = torch.tensor([[0.0, 0.0, math.log(2)]], dtype=torch.float64)
    selections = torch.tensor([[[2, 0], [0, 2]]])
    values = divergences_of(scores, torch.zeros_like(scores), selections)[0].tolist()
    first = math.log(3) - 1.5 * math.log(2)
    assert values == pytest.approx([first, first + 5 / 3 * math.log(2) - math.log(3)], abs=1e-12)


def whole_kl_gradient(scores: Tensor, reference: Tensor, selections: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient of the exact KL of whole selections, and the mean of the divergence's over draws of the policy."""
    leaf = scores.clone().requires_grad_()
    log_p, log_r = selection_log_probs(leaf, selections), selection_log_probs(reference, selections)
    (whole,) = torch.autograd.grad((log_p.exp() * (log_p - log_r)).sum(), leaf)
    weights = selection_log_probs(scores, selections).exp()
    (partial,) = torch.autograd.grad((weights * divergences_of(leaf, reference, selections)).sum(), leaf)
    return whole, partial


def test_gradient_is_that_of_the_kl_for_one_shot_and_leaves_out_the_prefixes_for_more() -> None:
    scores, reference = random_scores("gradient", 5)
    whole, partial = whole_kl_gradient(scores, reference, every_selection(5, 1))
    assert torch.allclose(whole, partial, atol=1e-12, rtol=0)  # float64 rounding
    selections = every_selection(5, 2)
    whole, partial = whole_kl_gradient(scores, reference, selections)
    assert (whole - partial).abs().max().item() > 1e-3
    # The missing part is the score-function term: the mean of D grad ln P.
    leaf = scores.clone().requires_grad_()
    constants = divergences_of(scores, reference, selections)
    (missing,) = torch.autograd.grad((selection_log_probs(leaf, selections).exp() * constants).sum(), leaf)
    assert torch.allclose(whole, partial + missing, atol=1e-12, rtol=0)


def test_divergence_is_zero_at_identity_and_never_negative() -> None:
    random = torch_generator(0, "many")
    first, second = torch.randn(2, 9, 7, generator=random, dtype=torch.float64) * 3
    selections = torch.rand(9, 5, 7, generator=random).argsort(dim=-1)[..., :4]
    assert (divergences_of(first, second, selections) > 0).all()
    leaf = first.clone().requires_grad_()
    same = divergences_of(leaf, first, selections)
    same.sum().backward()
    assert torch.equal(same, torch.zeros(9, 5, dtype=torch.float64))
    assert leaf.grad is not None
    assert leaf.grad.abs().max().item() < 1e-13  # sums of 20 probabilities that cancel
