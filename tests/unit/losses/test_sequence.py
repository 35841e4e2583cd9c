from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from lever_pipe.base.torch_streams import torch_generator
from lever_pipe.losses import sequence
from lever_pipe.losses.sequence import (
    MASKED_SCORE,
    first_step_logits,
    selection_log_probs,
    step_log_probs,
    step_logits,
)


def slow_log_prob(scores: list[float], selection: list[int]) -> float:
    """The definition, one pick after the other, with `math` only."""
    total, scores = 0.0, list(scores)
    for pick in selection:
        total += scores[pick] - math.log(sum(math.exp(score) for score in scores))
        scores[pick] = MASKED_SCORE
    return total


def random_batch(name: str) -> tuple[Tensor, Tensor]:
    random = torch_generator(0, name)
    scores = torch.randn(3, 7, generator=random, dtype=torch.float64) * 3
    picks = torch.rand(3, 5, 7, generator=random).argsort(dim=-1)[..., :4]
    return scores, picks


def test_hand_derived_steps() -> None:
    # Weights e^score = 1, 2, 4. Pick 2 first: 4/7. Then 0: 1/(1 + 2). Then 1: 2/2.
    scores = torch.tensor([[0.0, math.log(2), math.log(4)]], dtype=torch.float64)
    steps = step_log_probs(scores, torch.tensor([[[2, 0, 1]]]))
    assert steps.exp().flatten().tolist() == pytest.approx([4 / 7, 1 / 3, 1.0], abs=1e-12)


def test_agrees_with_the_slow_definition() -> None:
    scores, picks = random_batch("oracle")
    fast = selection_log_probs(scores, picks)
    for b, g in itertools.product(range(3), range(5)):
        slow = slow_log_prob(scores[b].tolist(), picks[b, g].tolist())
        assert fast[b, g].item() == pytest.approx(slow, abs=1e-10)


def each_step(scores: Tensor, picks: Tensor) -> Tensor:
    """One ranking as the logits of each step."""
    return scores[:, None, None].expand(*picks.shape, -1)


def test_one_ranking_may_come_as_logits_of_each_step() -> None:
    scores, picks = random_batch("ranks")
    assert torch.equal(step_logits(each_step(scores, picks), picks), step_logits(scores, picks))
    assert torch.equal(selection_log_probs(each_step(scores, picks), picks), selection_log_probs(scores, picks))
    assert torch.equal(first_step_logits(each_step(scores, picks)), first_step_logits(scores))
    assert torch.equal(first_step_logits(scores), scores)


def test_each_step_of_each_selection_has_its_own_logits() -> None:
    _, picks = random_batch("history")
    scores = torch.randn(*picks.shape, 7, generator=torch_generator(1), dtype=torch.float64)
    fast = step_log_probs(scores, picks)
    for b, g, s in itertools.product(range(3), range(5), range(4)):
        left = [k for k in range(7) if k not in picks[b, g, :s].tolist()]
        total = sum(math.exp(scores[b, g, s, k].item()) for k in left)
        pick = picks[b, g, s].item()
        assert fast[b, g, s].item() == pytest.approx(scores[b, g, s, int(pick)].item() - math.log(total), abs=1e-10)


def test_probabilities_of_all_ordered_selections_sum_to_one_with_a_history() -> None:
    every = torch.tensor(list(itertools.permutations(range(5), 3)))[None]
    after = torch.randn(5, 5, 5, generator=torch_generator(2), dtype=torch.float64)  # logits after two picks
    first, second = after[0, 0], after[1]
    scores = torch.stack([first[0].expand(1, 60, 5), second[every[..., 0]], after[every[..., 0], every[..., 1]]], dim=2)
    assert selection_log_probs(scores, every).exp().sum().item() == pytest.approx(1.0, abs=1e-12)


def test_padding_hides_its_own_logits() -> None:
    scores = torch.zeros(1, 2, 2, 3)
    scores[0, 1] = math.nan
    scores.requires_grad_()
    log_probs = selection_log_probs(scores, torch.tensor([[[0, 1], [-1, -1]]]), torch.tensor([[True, False]]))
    (gradient,) = torch.autograd.grad(log_probs.sum(), scores)
    assert log_probs[0, 0].item() == pytest.approx(-math.log(6), abs=1e-6)
    assert log_probs[0, 1].item() == 0.0
    assert bool(torch.isfinite(gradient).all())
    assert float(gradient[0, 1].abs().sum()) == 0


def no_mask(scores: Tensor, selections: Tensor) -> Tensor:
    return scores


def masks_the_present_pick(scores: Tensor, selections: Tensor) -> Tensor:
    chosen = torch.nn.functional.one_hot(selections, scores.shape[-1]).cumsum(dim=2) > 0
    return torch.where(chosen, torch.full_like(scores, MASKED_SCORE), scores)


def masks_the_last_pick_only(scores: Tensor, selections: Tensor) -> Tensor:
    chosen = torch.nn.functional.one_hot(selections, scores.shape[-1]).roll(1, dims=2) > 0
    chosen[:, :, 0] = False
    return torch.where(chosen, torch.full_like(scores, MASKED_SCORE), scores)


@pytest.mark.parametrize("broken", [no_mask, masks_the_present_pick, masks_the_last_pick_only])
def test_the_oracle_rejects_a_broken_mask(broken: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequence, "mask_chosen", broken)
    with pytest.raises(AssertionError):
        test_agrees_with_the_slow_definition()
