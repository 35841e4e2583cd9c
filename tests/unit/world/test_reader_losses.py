"""Losses of the reader's training."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import torch
from torch import nn

from lever_pipe.world.episodes import EpisodeOptions, draw_episodes
from lever_pipe.world.reader import (
    LossWeights,
    answer_loss,
    answer_weights,
    attention_loss,
    bound_key_loss,
    end_of_turn_loss,
)
from lever_pipe.world.training import draw_bank


def test_answer_loss_by_hand() -> None:
    # Uniform logits over four words cost ln 4; a logit of ln 3 over three zeros costs ln 2.
    logits = torch.zeros(1, 2, 4)
    logits[0, 1, 2] = math.log(3)
    targets = torch.tensor([[0, 2]])
    loss = answer_loss(logits, targets, torch.tensor([[1.0, 3.0]]))
    torch.testing.assert_close(loss, torch.tensor((math.log(4) + 3 * math.log(2)) / 4))


def test_a_masked_answer_sends_no_gradient() -> None:
    logits = torch.randn(1, 2, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()
    answer_loss(logits, torch.tensor([[0, 1]]), torch.tensor([[0.0, 1.0]])).backward()  # type: ignore[no-untyped-call]
    assert logits.grad is not None
    assert torch.equal(logits.grad[0, 0], torch.zeros(4))
    assert logits.grad[0, 1].abs().sum() > 0


def test_end_of_turn_loss_wants_token_two() -> None:
    logits = torch.zeros(1, 1, 4)
    logits[..., 2] = math.log(3)
    torch.testing.assert_close(end_of_turn_loss(logits), torch.tensor(math.log(2)))


def test_bound_key_loss_reads_both_tokens_of_a_turn() -> None:
    hidden = torch.tensor([[[9.0, 0.0], [0.0, 9.0], [9.0, 0.0], [0.0, 9.0]]])  # two asks, two answers
    head = nn.Identity()
    right = bound_key_loss(head, hidden, torch.tensor([[0, 1]]))
    wrong = bound_key_loss(head, hidden, torch.tensor([[1, 0]]))
    torch.testing.assert_close(wrong - right, torch.tensor(9.0))


def test_attention_loss_by_hand() -> None:
    # Turns 0 and 2 share a key, turn 1 has another: only turn 2 has a source, the answer at slot 1.
    attention = torch.full((1, 2, 3, 6), 0.1)
    attention[0, 0, 2, 1], attention[0, 1, 2, 1] = 0.5, 0.25
    loss = attention_loss(attention.log(), torch.tensor([[1, 3, 5]]), torch.tensor([[7, 4, 7]]))
    torch.testing.assert_close(loss, torch.tensor(-(math.log(0.5) + math.log(0.25)) / 2))


def test_attention_loss_adds_up_the_mass_on_all_sources() -> None:
    attention = torch.full((1, 1, 3, 6), 0.1)
    attention[0, 0, 2, 1], attention[0, 0, 2, 3] = 0.5, 0.25
    # All share a key. Turn 1 looks at slot 1 with 0.1; turn 2 at slots 1 and 3 with 0.75.
    loss = attention_loss(attention.log(), torch.tensor([[1, 3, 5]]), torch.tensor([[7, 7, 7]]))
    torch.testing.assert_close(loss, torch.tensor(-(math.log(0.1) + math.log(0.75)) / 2))


def test_answer_weights_follow_what_is_known() -> None:
    bank = draw_bank(4, 0, "test")
    options = EpisodeOptions((2, 4), (1, 2), 0.2, 0.5, repeat_share=0.4, flipped_share=0.3)
    episodes = draw_episodes(50, 5, options, bank, np.random.default_rng(0))
    weights = answer_weights(episodes, LossWeights(untold=0.1, uncontested=0.3)).numpy()
    for b, t in np.ndindex(weights.shape):
        if episodes.is_flipped[b, t]:
            wanted = 0.0
        elif not episodes.is_knowledge[b, t] or episodes.is_contested[b, t]:
            wanted = 1.0
        else:
            wanted = 0.3 if episodes.is_exact[b, t] else 0.1
        assert math.isclose(weights[b, t], wanted, rel_tol=1e-6)  # float32
    plain = answer_weights(replace(episodes, is_flipped=np.zeros_like(episodes.is_flipped)), LossWeights())
    assert torch.equal(plain, torch.ones_like(plain))
