"""Properties of every loss: the direction of its gradient, its omissions and its refusals."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from lever_pipe.base.shapes import ShapeError
from lever_pipe.base.torch_streams import torch_generator
from lever_pipe.losses.distillation import distillation_terms
from lever_pipe.losses.grpo import grpo_terms
from lever_pipe.losses.on_policy import on_policy_terms
from lever_pipe.losses.rce import rce_terms
from lever_pipe.losses.tokens import agent_terms


class Loss(NamedTuple):
    """A loss with its inputs of one shape, its mask and settings, and what a gradient reaches."""

    terms_of: Callable[..., Any]
    values: tuple[str, ...]
    mask: str
    settings: dict[str, Any]
    learned: set[str]
    """Inputs that get a gradient."""
    trained: set[str]
    """Terms that carry one."""


SAMPLED = ("log_probs_BG", "behaviour_log_probs_BG", "advantages_BG", "divergences_BG")
AGENT = ("log_probs_BT", "behaviour_log_probs_BT", "reference_log_probs_BT", "entropies_BT", "advantages_BT")
OF_DRAWS = {"log_probs_BG", "divergences_BG"}
LIMITS = {"n_tokens": 9, "clip_low": 0.2, "clip_high": 0.4, "dual_clip": 3.0, "kl": 0.3, "entropy": 0.1}
POLICY = {"policy", "penalty", "total"}
LOSSES = {
    "grpo": Loss(
        grpo_terms, ("log_probs_BG", "reference_log_probs_BG", "advantages_BG"), "valid_BG",
        {"clip_epsilon": 0.2, "kl_beta": 0.15}, {"log_probs_BG"}, POLICY,
    ),
    "on policy": Loss(
        on_policy_terms, SAMPLED, "valid_BG", {"clip_epsilon": 0.2, "kl_beta": 0.15}, OF_DRAWS, POLICY
    ),
    "reinforce": Loss(
        on_policy_terms, SAMPLED, "valid_BG", {"clip_epsilon": None, "kl_beta": 0.15}, OF_DRAWS, POLICY
    ),
    "rce": Loss(
        rce_terms, ("log_probs_BG", "rewards_BG"), "valid_BG", {"temperature": 0.7}, {"log_probs_BG"}, {"total"}
    ),
    "agent": Loss(
        agent_terms, AGENT, "mask_BT", LIMITS, {"log_probs_BT", "entropies_BT"}, {*POLICY, "entropy"},
    ),
    "distillation": Loss(distillation_terms, ("scores_BK", "targets_BK"), "", {}, {"scores_BK"}, {"total"}),
}  # fmt: skip
MASKED = [name for name, loss in LOSSES.items() if loss.mask]


def batch_of(name: str) -> dict[str, Any]:
    """Return random inputs, [4, 6] each, with a mask of unequal rows."""
    loss, random = LOSSES[name], torch_generator(0, "every loss", name)
    batch: dict[str, Any] = {of: torch.randn(4, 6, generator=random, dtype=torch.float64) * 0.4 for of in loss.values}
    if loss.mask:
        batch[loss.mask] = torch.rand(4, 6, generator=random) < torch.linspace(0.3, 0.9, 4)[:, None]
        batch[loss.mask][:, :2] = True
    else:
        batch["targets_BK"] = batch["targets_BK"].abs()
    return batch


def terms_of(name: str, batch: dict[str, Any]) -> dict[str, Tensor]:
    terms = LOSSES[name].terms_of(**batch, **LOSSES[name].settings)
    return {field.name: getattr(terms, field.name) for field in fields(terms)}


@pytest.mark.parametrize("name", LOSSES)
def test_only_the_loss_carries_a_gradient_and_only_into_what_is_learned(name: str) -> None:
    batch = {of: x.requires_grad_(x.is_floating_point()) for of, x in batch_of(name).items()}
    terms = terms_of(name, batch)
    assert {of for of, term in terms.items() if term.requires_grad} == LOSSES[name].trained
    terms["total"].backward()
    assert {of for of, x in batch.items() if x.grad is not None} == LOSSES[name].learned


@pytest.mark.parametrize("filler", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", MASKED)
def test_padding_and_rows_of_nothing_else_may_hold_anything(name: str, filler: float) -> None:
    batch, mask = batch_of(name), LOSSES[name].mask
    longer = {
        of: torch.cat([x.where(batch[mask], torch.full_like(x, filler)), torch.full((1, 6), filler).to(x)])
        for of, x in batch.items()
        if of != mask
    }
    longer[mask] = torch.cat([batch[mask], torch.zeros(1, 6, dtype=torch.bool)])
    for of in LOSSES[name].learned:
        longer[of].requires_grad_()
    plain, padded = terms_of(name, batch), terms_of(name, longer)
    for of in plain:
        assert padded[of].item() == pytest.approx(plain[of].item(), abs=1e-12)
    padded["total"].backward()
    for of in LOSSES[name].learned:
        assert longer[of].grad.isfinite().all()
        assert not longer[of].grad[~longer[mask]].any()


@pytest.mark.parametrize("name", LOSSES)
def test_the_order_of_a_group_changes_nothing(name: str) -> None:
    batch, order = batch_of(name), torch.tensor([3, 5, 0, 2, 4, 1])
    plain, moved = terms_of(name, batch), terms_of(name, {of: x[:, order] for of, x in batch.items()})
    for of in plain:
        assert moved[of].item() == pytest.approx(plain[of].item(), abs=1e-12)  # sums in another order


@pytest.mark.parametrize(("name", "of"), [(name, of) for name in LOSSES for of in batch_of(name)])
def test_an_input_of_another_shape_is_refused(name: str, of: str) -> None:
    batch = batch_of(name)
    with pytest.raises(ShapeError, match=r"must be \[B [GTK]\]"):
        terms_of(name, {**batch, of: batch[of][:, 1:]})
