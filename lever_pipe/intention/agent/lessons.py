"""From played episodes to what an update learns from: an advantage and two earlier log-probabilities a token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from lever_pipe.experiment.agent_config import AgentArm, AgentGrpo
from lever_pipe.intention.agent.rollout import Episode
from lever_pipe.losses.credit import (
    episode_z_scores,
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

    def silenced(self) -> Lesson:
        """Return a lesson without the agent's tokens: it is read with the others, and moves nothing."""
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
    z_B = torch.cat([episode_z_scores(scores_N[None])[0] for scores_N in scores])
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
