"""Credit assignment for the tokens of episodes, and one optimizer update."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lever_pipe.base.optimiser import AdamW, require_finite
from lever_pipe.experiment.agent_training import AgentArm, AgentGrpo
from lever_pipe.intention.agent.policy import Precision, autocast, recomputes
from lever_pipe.intention.agent.rollout import Episode
from lever_pipe.intention.agent.scoring import cut, score
from lever_pipe.losses.credit import (
    centred_scores,
    episode_z_scores,
    kl_rewards,
    token_advantages,
    trajectory_score,
    turn_credits,
)
from lever_pipe.losses.tokens import agent_terms, behaviour_of_sequences

SHARES = ("pg_loss", "kl_loss", "loss", "clip_fraction", "dual_clip_fraction")


class Credit(NamedTuple):
    """Scores and token advantages of the sound episodes of several groups."""

    scores: list[Tensor]
    """[n] float64 trajectory scores of the n sound episodes of each group with at least two."""
    advantages: list[Tensor | None]
    """[tokens] float32 for each episode, group by group; None for an episode without a comparison."""


def assign_credit(groups: Sequence[Sequence[Episode]], arm: AgentArm, grpo: AgentGrpo) -> Credit:
    """Return scores and token advantages; sound episodes are compared within their group, if it has at least two."""
    compared = [sound for group in groups if len(sound := [episode for episode in group if episode.is_sound]) > 1]
    kind = arm.trajectory_score or grpo.trajectory_score
    scores = [
        torch.tensor([trajectory_score(episode.rewards, kind, grpo.gamma) for episode in group], dtype=torch.float64)
        for group in compared
    ]
    episodes = [episode for group in compared for episode in group]
    # Keys are object identities: two episodes of a task can be equal in all values.
    advantages = dict(zip(map(id, episodes), _advantages(episodes, scores, arm, grpo), strict=True))
    return Credit(scores, [advantages.get(id(episode)) for group in groups for episode in group])


def _advantages(episodes: Sequence[Episode], scores: Sequence[Tensor], arm: AgentArm, grpo: AgentGrpo) -> list[Tensor]:
    """Return the advantages of the tokens of each episode; `scores` has one tensor for each group."""
    if not episodes:
        return []
    turns = [torch.tensor([turn for turn in episode.turn if turn >= 0]) for episode in episodes]
    # -1 marks padding, as it marks tokens outside the agent's turns.
    turn_BT = nn.utils.rnn.pad_sequence(turns, batch_first=True, padding_value=-1).long()
    credits_B = [turn_credits(episode.rewards, grpo.turn_credit, grpo.gamma) for episode in episodes]
    standing = centred_scores if arm.advantages == "centred" else episode_z_scores
    z_B = torch.cat([standing(scores_N[None])[0] for scores_N in scores])
    advantages_BT = token_advantages(z_B, credits_B, turn_BT).float()
    return [row[: len(turn)] for row, turn in zip(advantages_BT, turns, strict=True)]


class TokenPositions(NamedTuple):
    """Tokens of an episode, and positions of the response and of the agent's tokens."""

    tokens: Tensor
    """[L] int64."""
    response: Tensor
    """Positions after the prompt."""
    is_agent: Tensor
    """bool, one value for each of these positions: whether the agent has sampled the token."""

    @property
    def agent(self) -> Tensor:
        """Return the positions of the agent's tokens."""
        return self.response[self.is_agent]


def token_positions_of(episode: Episode) -> TokenPositions:
    """Return the tokens of an episode and the positions of its response."""
    response = torch.arange(episode.n_prompt, len(episode.tokens))
    return TokenPositions(
        torch.tensor(episode.tokens), response, torch.tensor(episode.is_agent[episode.n_prompt :]).bool()
    )


@dataclass(frozen=True, slots=True)
class TrainingSample:
    """One episode of L tokens, n of them the agent's."""

    tokens: Tensor
    """[L] int64; on the CPU, the same as `positions`."""
    positions: Tensor
    """[n] positions of the agent's tokens."""
    advantages: Tensor
    """[n] float32."""
    behaviour: Tensor
    """[n] log-probabilities before the step's first update, at the training temperature."""
    reference: Tensor
    """[n] the same under the frozen start policy."""

    def silenced(self) -> TrainingSample:
        """Return a training sample without the agent's tokens: it is part of the batch, but has no gradient."""
        none = slice(0, 0)
        return TrainingSample(
            self.tokens, self.positions[none], self.advantages[none], self.behaviour[none], self.reference[none]
        )


def rewarded_by_kl(
    training_samples: Sequence[TrainingSample], groups: Sequence[int], weight: float
) -> list[TrainingSample]:
    """Return training samples with the weighted KL reward added to advantages; `groups` are the groups' sizes."""
    sums = torch.stack([(sample.behaviour - sample.reference).double().sum() for sample in training_samples])
    added = torch.cat([kl_rewards(sums_N[None])[0] for sums_N in torch.split(sums, list(groups))])
    return [
        replace(sample, advantages=sample.advantages + weight * float(reward))
        for sample, reward in zip(training_samples, added, strict=True)
    ]


def update(
    policy: Any,
    optimiser: AdamW,
    training_samples: Sequence[TrainingSample],
    *,
    arm: AgentArm,
    grpo: AgentGrpo,
    pad_id: int,
    precision: Precision,
) -> dict[str, float]:
    """Take one optimizer step on a mini-batch and return its metrics.

    Every term is a sum over tokens divided by the number of the agent's tokens in the mini-batch. The division into
    micro-batches therefore changes the step only by rounding.

    Returns:
        `SHARES` as means over those tokens, `ratio_max`, `grad_norm` before clipping and `grad_clipped` (0 or 1).
    """
    # There are no tokens if no episode of the mini-batch has a comparison.
    n_tokens = max(1, sum(len(sample.positions) for sample in training_samples))
    for parameter in policy.parameters():
        parameter.grad = None
    values = dict.fromkeys((*SHARES, "ratio_max"), 0.0)
    policy.train(recomputes(policy))  # transformers recomputes activations only in training mode
    for indices in cut([len(sample.tokens) for sample in training_samples], grpo.micro_batch):
        batch = [training_samples[i] for i in indices]
        with autocast(policy.device, precision):
            scored = score(
                policy,
                [sample.tokens for sample in batch],
                [sample.positions for sample in batch],
                pad_id=pad_id,
                temperature=grpo.temperature,
                entropies=arm.entropy > 0,
            )
            behaviour = _row([sample.behaviour for sample in batch], policy.device)
            if arm.ratio == "sequence":
                behaviour = _by_sequence(scored.log_probs, behaviour, [len(sample.positions) for sample in batch])
            terms = agent_terms(
                log_probs_BT=scored.log_probs[None],
                behaviour_log_probs_BT=behaviour,
                reference_log_probs_BT=_row([sample.reference for sample in batch], policy.device),
                entropies_BT=None if scored.entropies is None else scored.entropies[None],
                advantages_BT=_row([sample.advantages for sample in batch], policy.device),
                mask_BT=torch.ones_like(scored.log_probs[None], dtype=torch.bool),
                n_tokens=n_tokens,
                clip_low=grpo.clip_low,
                clip_high=grpo.clip_high,
                dual_clip=grpo.dual_clip,
                kl=arm.kl,
                entropy=arm.entropy,
                kl_form=arm.kl_form,
            )
        terms.total.backward()  # type: ignore[no-untyped-call]
        shares = terms.policy, terms.penalty, terms.total, terms.clipped / n_tokens, terms.dual_clipped / n_tokens
        for name, share in zip(SHARES, shares, strict=True):
            values[name] += float(share.detach())
        values["ratio_max"] = max(values["ratio_max"], float(terms.ratio_max))
    policy.eval()
    norm = float(nn.utils.clip_grad_norm_(policy.parameters(), grpo.max_gradient_norm))
    values |= {"grad_norm": norm, "grad_clipped": float(norm > grpo.max_gradient_norm)}
    require_finite(values, do="Lower grpo.learning_rate or the arm's own; the run resumes from its last checkpoint.")
    optimiser.step()
    return values


def _by_sequence(log_probs: Tensor, behaviour: Tensor, lengths: list[int]) -> Tensor:
    """Return `behaviour_of_sequences` of each of the episodes concatenated in a row [1, n]."""
    pairs = zip(torch.split(log_probs, lengths), torch.split(behaviour[0], lengths), strict=True)
    rows = [(policy[None], sampled[None], torch.ones_like(policy[None], dtype=torch.bool)) for policy, sampled in pairs]
    return torch.cat([behaviour_of_sequences(*row) for row in rows], dim=1)


def _row(parts: Sequence[Tensor], device: torch.device) -> Tensor:
    """Return the values of several episodes as one row [1, n]."""
    return torch.cat(list(parts))[None].to(device)
