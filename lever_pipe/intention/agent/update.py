"""One optimiser update: a mini-batch of lessons in micro-batches, one gradient, one step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from lever_pipe.base.optimiser import AdamW, require_finite
from lever_pipe.experiment.agent_config import AgentArm, AgentGrpo
from lever_pipe.intention.agent.arithmetic import Arithmetic
from lever_pipe.intention.agent.lessons import Lesson
from lever_pipe.intention.agent.scoring import cut, score
from lever_pipe.losses.tokens import AgentTerms, agent_terms

SHARES = ("pg_loss", "kl_loss", "loss", "clip_fraction", "dual_clip_fraction")


def update(
    policy: Any,
    optimiser: AdamW,
    lessons: Sequence[Lesson],
    *,
    arm: AgentArm,
    grpo: AgentGrpo,
    pad_id: int,
    arithmetic: Arithmetic,
    learning_rate: float,
) -> dict[str, float]:
    """Take one step on a mini-batch and return what it measured.

    Every term is a sum over tokens divided by the agent's tokens in the mini-batch, so the cut into
    micro-batches changes the step by no more than rounding.

    Returns:
        `SHARES` as means over those tokens, `ratio_max`, `grad_norm` before clipping and `grad_clipped` (0 or 1).

    Raises:
        TrainingError: a loss or a gradient is not finite; the policy is left as it was.
    """
    n_tokens = max(1, sum(len(lesson.places) for lesson in lessons))
    for parameter in policy.parameters():
        parameter.grad = None
    sums = dict.fromkeys(SHARES, 0.0)
    ratio_max = 0.0
    with _recomputing(policy):
        for indices in cut([len(lesson.tokens) for lesson in lessons], grpo.micro_batch):
            with arithmetic.context():
                terms = _terms(policy, [lessons[i] for i in indices], arm, grpo, pad_id, n_tokens)
            terms.total.backward()  # type: ignore[no-untyped-call]
            shares = terms.policy, terms.penalty, terms.total, terms.clipped / n_tokens, terms.dual_clipped / n_tokens
            for name, share in zip(SHARES, shares, strict=True):
                sums[name] += float(share.detach())
            ratio_max = max(ratio_max, float(terms.ratio_max))
    norm = float(nn.utils.clip_grad_norm_(policy.parameters(), grpo.max_gradient_norm))
    clipped = float(norm > grpo.max_gradient_norm)
    values = {**sums, "ratio_max": ratio_max, "grad_norm": norm, "grad_clipped": clipped}
    require_finite(values, do="Lower grpo.learning_rate or the arm's own; the run goes on from its last checkpoint.")
    optimiser.learning_rate = learning_rate
    optimiser.step()
    return values


def _terms(
    policy: Any, lessons: Sequence[Lesson], arm: AgentArm, grpo: AgentGrpo, pad_id: int, n_tokens: int
) -> AgentTerms:
    scored = score(
        policy,
        [lesson.tokens for lesson in lessons],
        [lesson.places for lesson in lessons],
        pad_id=pad_id,
        temperature=grpo.temperature,
        entropies=arm.entropy > 0,
    )
    return agent_terms(
        log_probs_BT=scored.log_probs[None],
        behaviour_log_probs_BT=_row([lesson.behaviour for lesson in lessons], policy.device),
        reference_log_probs_BT=_row([lesson.reference for lesson in lessons], policy.device),
        entropies_BT=None if scored.entropies is None else scored.entropies[None],
        advantages_BT=_row([lesson.advantages for lesson in lessons], policy.device),
        mask_BT=torch.ones_like(scored.log_probs[None], dtype=torch.bool),
        n_tokens=n_tokens,
        clip_low=grpo.clip_low,
        clip_high=grpo.clip_high,
        dual_clip=grpo.dual_clip,
        kl=arm.kl,
        entropy=arm.entropy,
    )


def _row(parts: Sequence[Tensor], device: torch.device) -> Tensor:
    """Return the values of several episodes as one row [1, n]."""
    return torch.cat(list(parts))[None].to(device)


@contextmanager
def _recomputing(policy: Any) -> Iterator[None]:
    """Put a policy that recomputes its activations into training mode, the only one in which it does."""
    policy.train(policy.is_activation_checkpointing)
    try:
        yield
    finally:
        policy.eval()
