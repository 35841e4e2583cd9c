"""From played episodes to what an update learns from: an advantage and two earlier log-probabilities a token."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lever_pipe.experiment.agent_config import AgentArm, AgentGrpo
from lever_pipe.intention.agent.episodes import Episode
from lever_pipe.intention.agent.scoring import Scored, score
from lever_pipe.losses.credit import (
    group_z_scores,
    groups_without_spread,
    token_advantages,
    trajectory_score,
    turn_credits,
)

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


class Credit(NamedTuple):
    """What P groups of N episodes say about their tokens."""

    scores: Tensor
    """[P, N] trajectory scores, float64."""
    without_spread: Tensor
    """[P] bool: equal scores throughout, so no policy gradient."""
    advantages: list[Tensor]
    """[n] float32 for each episode, group by group."""


def assign_credit(groups: Sequence[Group], arm: AgentArm, grpo: AgentGrpo) -> Credit:
    """Return scores and token advantages of the episodes of several groups."""
    kind = arm.trajectory_score or grpo.trajectory_score
    scores_PN = torch.tensor(
        [[trajectory_score(episode.rewards, kind, grpo.gamma) for episode in group] for group in groups],
        dtype=torch.float64,
    )
    episodes = [episode for group in groups for episode in group]
    turns = [torch.tensor([turn for turn in episode.turn if turn >= 0]) for episode in episodes]
    turn_BT = torch.nn.utils.rnn.pad_sequence(turns, batch_first=True, padding_value=-1).long()
    credits_B = [turn_credits(episode.rewards, grpo.turn_credit, grpo.gamma) for episode in episodes]
    advantages_BT = token_advantages(group_z_scores(scores_PN).flatten(), credits_B, turn_BT).float()
    return Credit(
        scores_PN,
        groups_without_spread(scores_PN),
        [row[: len(turn)] for row, turn in zip(advantages_BT, turns, strict=True)],
    )


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
    *,
    micro_batch: int,
    pad_id: int,
    temperature: float,
    entropies: bool,
) -> list[Scored]:
    """Return what a model thinks of the chosen places of each sequence, without gradients."""
    found: dict[int, Scored] = {}
    for indices in cut([len(sequence) for sequence in sequences], micro_batch):
        chosen = [places[i] for i in indices]
        scored = score(
            model,
            [sequences[i] for i in indices],
            chosen,
            pad_id=pad_id,
            temperature=temperature,
            entropies=entropies,
        )
        sizes = [len(each) for each in chosen]
        log_probs = torch.split(scored.log_probs, sizes)
        others = [None] * len(sizes) if scored.entropies is None else torch.split(scored.entropies, sizes)
        found.update(zip(indices, map(Scored, log_probs, others), strict=True))
    return [found[index] for index in range(len(sequences))]
