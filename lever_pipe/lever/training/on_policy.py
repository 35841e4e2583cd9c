"""One epoch on groups that the policy itself samples and the LVLM scores."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from lever_pipe.base.records import Example, ExampleId, Normalisation, PoolPosition, Proposal
from lever_pipe.experiment.on_policy import OnPolicy
from lever_pipe.experiment.reward import Reward
from lever_pipe.lever.rewards import reward_function
from lever_pipe.lever.selector.decoding import draw, gumbel
from lever_pipe.lever.selector.embeddings import EmbeddingTable, FrozenSelector, scores_of
from lever_pipe.lever.selector.network import PointerSelector
from lever_pipe.lever.training.draws import SampledSelections
from lever_pipe.lever.training.groups import Groups, batches
from lever_pipe.lever.training.loop import Step, Updates, logged, policy_entropy
from lever_pipe.lever.trajectories import trajectories_of
from lever_pipe.losses.advantages import (
    batch_advantages,
    centred_advantages,
    group_advantages,
    leave_one_out_advantages,
)
from lever_pipe.losses.kl import divergence_of_draws, kl_policy_to_reference, selection_divergence
from lever_pipe.losses.on_policy import on_policy_terms
from lever_pipe.losses.reduction import group_has_spread, masked
from lever_pipe.losses.schedules import cosine, progress_of
from lever_pipe.losses.sequence import ended_selections, net_rewards, step_log_probs, step_logits
from lever_pipe.lvlms.asking.prompts import PromptIds, Wording
from lever_pipe.lvlms.protocol import Lvlm


class ScoredSelection(NamedTuple):
    """Scores of the LVLM's answer with one selection."""

    reward: float
    accuracy: float
    """VQA accuracy of its answer, in [0, 1]."""


ScoreFunction = Callable[[Sequence[PromptIds]], list[ScoredSelection]]
"""Answers prompts and rewards the answers: one result for each selection, in order."""


class BatchResult(NamedTuple):
    """One batch of an epoch: its number, the distinct prompts since the epoch began, its metrics and its samples."""

    step: int
    prompts: int
    values: dict[str, float]
    sampled: SampledSelections


class EpochSettings(NamedTuple):
    """The settings of an epoch."""

    of_preset: OnPolicy
    epoch: int
    kl_beta: float
    """Weight of the divergence from the reference."""
    clips: bool = True
    """Whether the ratio is clipped; REINFORCE does not clip it."""

    @property
    def clip_epsilon(self) -> float | None:
        """Return the bound on the ratio's distance from 1; None without one."""
        return self.of_preset.clip_epsilon if self.clips else None


def on_policy_epoch(
    updates: Updates,
    reference: FrozenSelector,
    table: EmbeddingTable,
    groups: Groups,
    score_selections: ScoreFunction,
    given: EpochSettings,
    generator: torch.Generator,
) -> Iterator[BatchResult]:
    """Sample batch by batch, take `settings.updates` steps on each, and yield the metrics of its first step.

    The policy of the preceding steps samples a batch. The stream of random numbers does not depend on the training:
    runs of several betas share their noise and, as long as their policies agree, their prompts. Of `groups` only the
    queries and pools are used, not the stored selections.
    """
    settings = given.of_preset
    order = batches(len(groups), settings.batch_queries, generator, most=settings.queries)
    final = settings.learning_rate * settings.final_learning_rate_share
    policy, prompts = updates.module, set[PromptIds]()
    for number, rows in enumerate(order):
        progress = progress_of(given.epoch, number, len(order), settings.horizon_epochs)
        updates.optimiser.learning_rate = cosine(settings.learning_rate, final, progress)
        queries, first = groups.take(rows.to(groups.queries.device)), number * settings.batch_queries
        sampled = draw_groups(policy, table, queries, score_selections, settings, generator, first=first)
        prompts.update(sampled.prompts)
        # The first update reuses the sampling policy's logits, so that its ratio is exactly 1.
        batch, scores, advantages = sampled.groups, sampled.scores, advantages_of(sampled.groups, settings)
        anchor = reference.scores(batch, may_stop=True)
        for update in range(settings.updates):
            step = on_policy_step(sampled, advantages, scores, anchor, given)
            updates.take(step, len(batch))
            if update == 0:
                yield BatchResult(number, len(prompts), step.values, sampled)
            if update + 1 < settings.updates:
                scores = table.scores(policy, batch, may_stop=True)


def draw_groups(
    policy: PointerSelector,
    table: EmbeddingTable,
    queries: Groups,
    score_selections: ScoreFunction,
    settings: OnPolicy,
    generator: torch.Generator,
    *,
    first: int = 0,
) -> SampledSelections:
    """Return selections sampled from the policy without replacement, with their rewards.

    The queries of an epoch take the configured lengths in turn, starting at index `first` for this batch. The order of
    queries is random, so each length is equally likely. For a policy that may stop, the length is an upper bound, and
    each demonstration has a price.
    """
    device, longest = queries.queries.device, max(settings.shots)
    encoded = table.encoded(policy.eval(), queries)
    outcomes = policy.outcomes(encoded)
    noise = gumbel((len(queries), settings.group, longest, outcomes), generator).to(device)
    selections = draw(policy, encoded, noise)
    turns = range(first, first + len(queries))
    most = torch.tensor([settings.shots[turn % len(settings.shots)] for turn in turns], device=device)
    lengths, taken = ended_selections(selections, most, queries.pools.shape[1])
    prompts = prompts_of(queries, selections, lengths)
    verdicts = torch.tensor(score_selections(prompts), dtype=torch.float32, device=device)
    rewards, accuracies = verdicts.view(len(queries), settings.group, len(ScoredSelection._fields)).unbind(dim=-1)
    if policy.head.stops:
        rewards = net_rewards(rewards, lengths, price=settings.stop_price)
    groups = Groups(queries.queries, queries.pools, selections, rewards, torch.ones_like(rewards, dtype=torch.bool))
    scores = scores_of(policy, encoded, selections, may_stop=True)
    log_probs = masked(step_log_probs(scores.detach(), selections), taken).sum(dim=-1)
    return SampledSelections(prompts, groups, lengths, taken, accuracies, log_probs, scores)


def prompts_of(queries: Groups, selections_BGS: Tensor, lengths_BG: Tensor) -> list[PromptIds]:
    """Return the query and the train ids of every sampled selection, queries outermost."""
    positions = selections_BGS.clamp(max=queries.pools.shape[1] - 1)  # the end (K) is not a pool position
    train_ids = queries.pools[:, None].expand(-1, selections_BGS.shape[1], -1).gather(2, positions)
    return [
        (ExampleId(query), tuple(ExampleId(i) for i in ids[:length]))
        for query, group, lengths in zip(queries.queries.tolist(), train_ids.tolist(), lengths_BG.tolist(), strict=True)
        for ids, length in zip(group, lengths, strict=True)
    ]


def scored_by_lvlm(
    prompts: Sequence[PromptIds],
    *,
    train: Sequence[Example],
    model: Lvlm,
    wording: Wording,
    reward: Reward,
    rule: Normalisation = "when_they_disagree",
) -> list[ScoredSelection]:
    """Return reward and VQA accuracy of the LVLM's answer with each selection; equal prompts are answered once."""
    # Sorted, so that the order of requests does not depend on the order of sampling.
    distinct, reward_of = sorted(set(prompts)), reward_function(reward)
    anywhere = PoolPosition(0)  # the reward does not depend on pool positions
    proposals = [
        Proposal(query_id=query, pointer=(anywhere,) * len(ids), pointer_global=ids, gen_method="on_policy")
        for query, ids in distinct
    ]
    answered = trajectories_of(proposals, train, model, wording, rule)
    verdicts = {
        prompt: ScoredSelection(reward_of(t), t.vqa_acc_score) for prompt, t in zip(distinct, answered, strict=True)
    }
    return [verdicts[prompt] for prompt in prompts]


def advantages_of(groups: Groups, settings: OnPolicy) -> Tensor:
    """Return the advantages `[B, G]` of sampled selections, by the configured rule."""
    rewards, valid = groups.rewards, groups.valid
    match settings.advantages:
        case "standardised":
            limits = {"std_floor": settings.advantage_std_floor, "clamp": settings.advantage_clamp}
            return group_advantages(rewards, valid, **limits)
        case "centred":
            return centred_advantages(rewards, valid)
        case "leave_one_out":
            return leave_one_out_advantages(rewards, valid)
        case "batch":
            return batch_advantages(rewards, valid)


def on_policy_step(
    sampled: SampledSelections, advantages: Tensor, scores: Tensor, anchor: Tensor, given: EpochSettings
) -> Step:
    """Return the loss of a sampled batch and its metrics, given the logits of policy and reference."""
    batch, settings, clip_epsilon = sampled.groups, given.of_preset, given.clip_epsilon
    stops = scores.shape[-1] > batch.pools.shape[1]
    # Mask the logits of policy and reference after a selection's end, so that these steps add no divergence.
    met = sampled.taken[..., None]
    logits, anchor_logits = (
        masked(all_steps, met.expand_as(all_steps))
        for all_steps in (step_logits(scores, batch.selections), step_logits(anchor, batch.selections))
    )
    log_probs = masked(step_log_probs(scores, batch.selections), sampled.taken).sum(dim=-1)
    if settings.kl_form == "exact":
        divergences = selection_divergence(logits, anchor_logits)
    else:
        anchored = masked(step_log_probs(anchor, batch.selections), sampled.taken).sum(dim=-1)
        draws = (log_probs, sampled.log_probs, anchored, batch.valid)
        divergences = divergence_of_draws(
            *draws, form=settings.kl_form, clip_epsilon=clip_epsilon, clip_high=settings.clip_high
        )
    terms = on_policy_terms(
        log_probs_BG=log_probs,
        behaviour_log_probs_BG=sampled.log_probs,
        advantages_BG=advantages,
        divergences_BG=divergences,
        valid_BG=batch.valid,
        clip_epsilon=clip_epsilon,
        clip_high=settings.clip_high,
        kl_beta=given.kl_beta,
    )
    per_step = kl_policy_to_reference(logits.detach(), anchor_logits)
    return Step(
        terms.total,
        {
            **logged(terms, given.kl_beta),
            "kl_exact": float(per_step[sampled.taken].mean()),
            "entropy": float(policy_entropy(scores.detach())),
            "reward": float(batch.rewards.mean()),
            "accuracy": 100 * float(sampled.accuracies.mean()),
            "gradient_share_hard": float(group_has_spread(sampled.accuracies, batch.valid).float().mean()),
            **({"shots": float(sampled.lengths.float().mean())} if stops else {}),
        },
    )
