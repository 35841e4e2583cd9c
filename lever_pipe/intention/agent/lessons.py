"""From played episodes to what an update learns from: an advantage and two earlier log-probabilities a token."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lever_pipe.experiment.agent_config import AgentArm, AgentGrpo
from lever_pipe.intention.agent.layers import branching, causal, is_plain, run_layers
from lever_pipe.intention.agent.rollout import Episode
from lever_pipe.losses.credit import (
    group_z_scores,
    token_advantages,
    trajectory_score,
    turn_credits,
)
from lever_pipe.losses.tokens import token_entropies, token_log_probs

LEAST_SHARED = 128
"""Tokens that the texts of one pass begin with alike, from which on these are read once for all of them."""


class Scored(NamedTuple):
    """One value a chosen place, all sequences in their order; n places in all."""

    log_probs: Tensor
    """[n] float32, of the tokens that stand there."""
    entropies: Tensor | None
    """[n] float32, of what could have stood there; None unless asked for."""


def score(
    model: Any,
    sequences: Sequence[Tensor],
    places: Sequence[Tensor],
    *,
    pad_id: int,
    temperature: float,
    entropies: bool,
) -> Scored:
    """Return what the model thinks of the tokens at the given places, in one forward pass.

    Args:
        model: a causal language model.
        sequences: int64 [L] token ids each.
        places: int64 [n_i] positions in each sequence, at least 1.
        pad_id: fills the ends of shorter sequences; it changes no number, because nothing looks ahead.
        temperature: divides the logits.
        entropies: whether to give entropies too.
    """
    device = model.device
    ids_BL = torch.nn.utils.rnn.pad_sequence(list(sequences), batch_first=True, padding_value=pad_id)
    rows = torch.repeat_interleave(torch.arange(len(places)), torch.tensor([len(each) for each in places]))
    columns = torch.cat(list(places))
    targets_1n = ids_BL[rows, columns][None].to(device)
    logits_1nV = _logits_before(model, ids_BL.to(device), rows.to(device), columns.to(device))
    log_probs_1n = token_log_probs(logits_1nV, targets_1n, temperature)
    return Scored(log_probs_1n[0], token_entropies(logits_1nV, temperature)[0] if entropies else None)


def _logits_before(model: Any, ids_BL: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Return the logits [1, n, V] before the n places."""
    n_rows, length = ids_BL.shape
    n_shared = _shared(ids_BL, columns) if is_plain(model) and not model.is_activation_checkpointing else 0
    if n_shared >= LEAST_SHARED:
        first, rest = ids_BL[:1, :n_shared], ids_BL[:, n_shared:]
        positions_L = torch.arange(length, device=ids_BL.device)
        positions_1T = torch.cat([positions_L[:n_shared], positions_L[n_shared:].repeat(n_rows)])[None]
        ids_1T = torch.cat([first, rest.reshape(1, -1)], dim=1)
        before = torch.zeros_like(rows), columns - 1 + rows * (length - n_shared)
        hidden_nH = run_layers(model, ids_1T, positions_1T, branching(n_shared, n_rows), before)
        return torch.as_tensor(model.lm_head(hidden_nH[None]))
    if is_plain(model) and not torch.is_grad_enabled():
        positions_1L = torch.arange(ids_BL.shape[1], device=ids_BL.device)[None]
        hidden_nH = run_layers(model, ids_BL, positions_1L, causal, (rows, columns - 1))
        return torch.as_tensor(model.lm_head(hidden_nH[None]))
    with _only_before(model, rows, columns):
        return torch.as_tensor(model(input_ids=ids_BL, use_cache=False).logits)


def _shared(ids_BL: Tensor, columns: Tensor) -> int:
    """Return how many tokens several rows begin with alike, all of them before the first state that is wanted."""
    if len(ids_BL) == 1 or not len(columns):
        return 0
    alike = int((ids_BL == ids_BL[:1]).all(dim=0).long().cumprod(dim=0).sum())
    return min(alike, int(columns.min()) - 1)


@contextmanager
def _only_before(model: Any, rows: Tensor, columns: Tensor) -> Iterator[None]:
    """Show the output layer the states before these places alone, as one sequence [1, n, D]."""

    def choose(_: Any, inputs: tuple[Tensor, ...]) -> Tensor:
        return inputs[0][rows, columns - 1][None]

    handle = model.get_output_embeddings().register_forward_pre_hook(choose)
    try:
        yield
    finally:
        handle.remove()


Group = Sequence[Episode]
"""All episodes of one task."""


@dataclass(frozen=True, slots=True)
class Lesson:
    """One episode of L tokens, n of them the agent's."""

    tokens: Tensor
    """[L] int64, on the CPU as `places`."""
    places: Tensor
    """[n] positions of the agent's tokens."""
    advantages: Tensor
    """[n] float32."""
    behaviour: Tensor
    """[n] log-probabilities before the step's first update, at the training temperature."""
    reference: Tensor
    """[n] the same under the frozen start policy."""

    def silenced(self) -> Lesson:
        """Return a lesson without the agent's tokens: it is read with the others, and moves nothing.

        Were it left out, processes that share a model would take unequally many passes and wait for each other.
        """
        none = slice(0, 0)
        return Lesson(self.tokens, self.places[none], self.advantages[none], self.behaviour[none], self.reference[none])


class Credit(NamedTuple):
    """What the sound episodes of several groups say about their tokens."""

    scores: list[Tensor]
    """[n] trajectory scores of the n episodes of each group that is compared, float64."""
    advantages: list[Tensor | None]
    """[tokens] float32 for each episode, group by group; None for one that is compared with nothing."""


def assign_credit(groups: Sequence[Group], arm: AgentArm, grpo: AgentGrpo) -> Credit:
    """Return scores and token advantages of the episodes of several groups.

    Only the sound episodes of a group are compared, and only if there are two at least.
    """
    sound = [[episode for episode in group if episode.is_sound] for group in groups]
    compared = [group for group in sound if len(group) > 1]
    scores = [_scores(group, arm, grpo) for group in compared]
    known = iter(_advantages(compared, scores, grpo))
    advantages = [
        next(known) if episode.is_sound and len(of) > 1 else None
        for group, of in zip(groups, sound, strict=True)
        for episode in group
    ]
    return Credit(scores, advantages)


def _scores(group: Group, arm: AgentArm, grpo: AgentGrpo) -> Tensor:
    kind = arm.trajectory_score or grpo.trajectory_score
    found = [trajectory_score(episode.rewards, kind, grpo.gamma) for episode in group]
    return torch.tensor(found, dtype=torch.float64)


def _advantages(groups: Sequence[Group], scores: Sequence[Tensor], grpo: AgentGrpo) -> list[Tensor]:
    """Return the advantages of the tokens of each episode, group by group."""
    episodes = [episode for group in groups for episode in group]
    if not episodes:
        return []
    turns = [torch.tensor([turn for turn in episode.turn if turn >= 0]) for episode in episodes]
    turn_BT = torch.nn.utils.rnn.pad_sequence(turns, batch_first=True, padding_value=-1).long()
    credits_B = [turn_credits(episode.rewards, grpo.turn_credit, grpo.gamma) for episode in episodes]
    z_B = torch.cat([group_z_scores(scores_N[None])[0] for scores_N in scores])
    advantages_BT = token_advantages(z_B, credits_B, turn_BT).float()
    return [row[: len(turn)] for row, turn in zip(advantages_BT, turns, strict=True)]


class Places(NamedTuple):
    """Where an episode's tokens stand."""

    tokens: Tensor
    """[L] int64."""
    response: Tensor
    """Positions behind the prompt."""
    is_agent: Tensor
    """bool, of those positions: whether the agent has sampled the token."""

    @property
    def agent(self) -> Tensor:
        """Return the positions of the agent's tokens."""
        return self.response[self.is_agent]


def places_of(episode: Episode) -> Places:
    """Return the places of an episode's response and of the agent's tokens in it."""
    response = torch.arange(episode.n_prompt, len(episode.tokens))
    return Places(torch.tensor(episode.tokens), response, torch.tensor(episode.is_agent[episode.n_prompt :]).bool())


def cut(lengths: Sequence[int], size: int) -> Iterator[list[int]]:
    """Yield the indices of micro-batches: `size` sequences of similar length each, so that little is padded."""
    order = sorted(range(len(lengths)), key=lambda index: (lengths[index], index))
    for start in range(0, len(order), size):
        yield order[start : start + size]


@torch.no_grad()
def score_all(
    model: Any,
    sequences: Sequence[Tensor],
    places: Sequence[Tensor],
    grpo: AgentGrpo,
    *,
    pad_id: int,
    entropies: bool,
) -> list[Scored]:
    """Return what a model thinks of the chosen places of each sequence, without gradients."""
    found: dict[int, Scored] = {}
    for indices in cut([len(sequence) for sequence in sequences], grpo.micro_batch):
        tokens, chosen = [sequences[i] for i in indices], [places[i] for i in indices]
        scored = score(model, tokens, chosen, pad_id=pad_id, temperature=grpo.temperature, entropies=entropies)
        sizes = [len(each) for each in chosen]
        log_probs = torch.split(scored.log_probs, sizes)
        others = [None] * len(sizes) if scored.entropies is None else torch.split(scored.entropies, sizes)
        found.update(zip(indices, map(Scored, log_probs, others), strict=True))
    return [found[index] for index in range(len(sequences))]
