"""Losses of the reader's training; those beside the answers exist in training only."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from lever_pipe.world.data.lexicon import IM_END_ID
from lever_pipe.world.models.episodes import EpisodeBatch


@dataclass(frozen=True)
class LossWeights:
    """Weights of the loss terms, and of the answers by what an episode has told so far."""

    end_of_turn: float = 0.2
    bound_key: float = 0.5
    attention: float = 0.0
    untold: float = 1.0  # no earlier turn has the relation and key: the answer cannot be known
    uncontested: float = 1.0  # one has, and no other answer of the relation competes


def answer_weights(episodes: EpisodeBatch, weights: LossWeights) -> Tensor:
    """Return the weight of every answer [B, T]; flipped answers are no targets."""
    told = np.where(episodes.is_exact, weights.uncontested, weights.untold)
    is_easy = episodes.is_knowledge & ~episodes.is_contested
    values = np.where(is_easy, told, 1.0) * ~episodes.is_flipped
    return torch.from_numpy(values).float()


def answer_loss(logits: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    """Return the weighted mean cross-entropy of answers; logits [B, T, V], the others [B, T]."""
    losses = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
    return (losses * weights.flatten()).sum() / weights.sum()


def end_of_turn_loss(logits: Tensor) -> Tensor:
    """Return the cross-entropy of ending the turn after the answer; logits [B, T, V].

    Without it generation goes on after the answer.
    """
    flat = logits.flatten(0, 1)
    return F.cross_entropy(flat, torch.full((len(flat),), IM_END_ID))


def bound_key_loss(head: torch.nn.Module, hidden: Tensor, bound_key: Tensor) -> Tensor:
    """Return the cross-entropy of relation and key, read at both tokens of a turn.

    `hidden` is [B, 2 T, D]: the T ask tokens, then the T answer tokens; `bound_key` is [B, T].
    """
    classes = torch.cat([bound_key, bound_key], dim=1)
    return F.cross_entropy(head(hidden).flatten(0, 1), classes.flatten())


def attention_loss(log_attention: Tensor, answer_slots: Tensor, bound_key: Tensor) -> Tensor:
    """Return -log of the attention that ask tokens give to the answers they should copy.

    `log_attention` is [B, H, T, L] at the ask tokens; `answer_slots` and `bound_key` are [B, T]. A
    turn's sources are the answers of earlier turns with its relation and key; turns without a
    source do not count.
    """
    n_turns = bound_key.shape[1]
    earlier = torch.ones(n_turns, n_turns, dtype=torch.bool).tril(-1)
    is_source = (bound_key[:, :, None] == bound_key[:, None, :]) & earlier
    index = answer_slots[:, None, None, :].expand(-1, log_attention.shape[1], n_turns, -1)
    at_answers = log_attention.gather(3, index).masked_fill(~is_source[:, None], -1e9)
    mass = at_answers.logsumexp(-1)
    has_source = is_source.any(-1)[:, None].expand_as(mass)
    return -mass[has_source].mean()
