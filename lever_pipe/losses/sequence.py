"""Log-probabilities of ordered selections without repeats (Plackett-Luce).

P(tau | q) = prod_s softmax(score_s with tau_1 .. tau_(s-1) masked)[tau_s], under teacher forcing.

Scores have one of two shapes: [B, K], one ranking for all steps of all selections, or [B, G, S, K], separate logits for
each step, which depend on the previous picks. A policy that can end a selection has an additional outcome, K.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lever_pipe.base.shapes import require_shapes, shaped
from lever_pipe.losses.reduction import masked

MASKED_SCORE = -100.0
"""Logit of a candidate that is already chosen. The published network uses this finite number instead of minus infinity:
for its scores in [-10, 10], the lost probability is below e^-80, and every gradient stays finite."""


@shaped
def mask_chosen(scores_BGSK: Tensor, selections_BGS: Tensor) -> Tensor:
    """Return the scores with `MASKED_SCORE` at every candidate chosen at an earlier step.

    Args:
        scores_BGSK: [B, G, S, K] logits of each step, already divided by the temperature.
        selections_BGS: [B, G, S] pool positions in 0..K-1, first pick first (int64).

    Source: Plackett 1975
    """
    # Contiguous, because `scores_BGSK` may be an expanded view, in which cells share memory.
    chosen_before_BGSK = torch.zeros_like(scores_BGSK, dtype=torch.bool, memory_format=torch.contiguous_format)
    shots = selections_BGS.shape[-1]
    for step in range(1, shots):
        picks_BGS1 = selections_BGS[:, :, step - 1, None, None].expand(-1, -1, shots - step, -1)
        chosen_before_BGSK[:, :, step:].scatter_(-1, picks_BGS1, value=True)
    return scores_BGSK.masked_fill(chosen_before_BGSK, MASKED_SCORE)


def first_step_logits(scores: Tensor) -> Tensor:
    """Return the logits of the first pick, [B, K], which all selections share because nothing is chosen before.

    Args:
        scores: [B, K] or [B, G, S, K].

    Source: this project
    """
    return scores if scores.dim() == 2 else scores[:, 0, 0]


def step_logits(scores: Tensor, selections_BGS: Tensor) -> Tensor:
    """Return the logits of every step under teacher forcing, [B, G, S, K].

    logit_s = scores with `MASKED_SCORE` at the picks of the steps before s.

    Args:
        scores: [B, K] or [B, G, S, K] logits of the pool, already divided by the temperature.
        selections_BGS: [B, G, S] pool positions in 0..K-1, first pick first (int64).

    Source: Plackett 1975
    """
    if scores.dim() == 4:
        return mask_chosen(scores, selections_BGS)
    require_shapes(scores_BK=scores, selections_BGS=selections_BGS)
    return mask_chosen(scores[:, None, None, :].expand(*selections_BGS.shape, -1), selections_BGS)


@shaped
def outcome_log_probs(scores: Tensor, selections_BGS: Tensor, valid_BG: Tensor | None = None) -> Tensor:
    """Return the log-probabilities of all outcomes of every step under teacher forcing, [B, G, S, K].

    log_softmax(logit_s) over all K entries, including masked ones.

    Args:
        scores: [B, K] or [B, G, S, K] logits of the pool, already divided by the temperature.
        selections_BGS: [B, G, S] pool positions, first pick first (int64).
        valid_BG: [B, G] bool, false for padding of groups of unequal size. A padded row may contain any number (such
            as -1); its log-probabilities have no meaning.

    Source: Plackett 1975
    """
    if valid_BG is not None:
        # `scatter_` needs valid indices at padding too.
        selections_BGS = torch.where(valid_BG[..., None], selections_BGS, 0)
        if scores.dim() == 4:
            scores = masked(scores, valid_BG[..., None, None])
    return step_logits(scores, selections_BGS).log_softmax(dim=-1)


def picked_log_probs(outcome_log_probs_BGSK: Tensor, selections_BGS: Tensor, valid_BG: Tensor | None = None) -> Tensor:
    """Return the log-probabilities of the picks from `outcome_log_probs`, [B, G, S]; 0 without gradient at padding.

    Source: this project
    """
    if valid_BG is None:
        return outcome_log_probs_BGSK.gather(-1, selections_BGS[..., None]).squeeze(-1)
    legal_BGS = torch.where(valid_BG[..., None], selections_BGS, 0)
    picked_BGS = outcome_log_probs_BGSK.gather(-1, legal_BGS[..., None]).squeeze(-1)
    return masked(picked_BGS, valid_BG[..., None])


def step_log_probs(scores: Tensor, selections_BGS: Tensor, valid_BG: Tensor | None = None) -> Tensor:
    """Return the log-probability of every pick given the picks before it, [B, G, S].

    Arguments and errors are the same as in `outcome_log_probs`; 0 without gradient at padding.

    Source: Plackett 1975
    """
    return picked_log_probs(outcome_log_probs(scores, selections_BGS, valid_BG), selections_BGS, valid_BG)


def selection_log_probs(scores: Tensor, selections_BGS: Tensor, valid_BG: Tensor | None = None) -> Tensor:
    """Return log P(selection | query), [B, G]: the sum over steps of `step_log_probs`.

    Args:
        scores: [B, K] or [B, G, S, K] logits of the pool, already divided by the temperature.
        selections_BGS: [B, G, S] pool positions, first pick first (int64).
        valid_BG: [B, G] bool, false for padding (log-probability 0, no gradient).

    Source: Luce 1959
    """
    return step_log_probs(scores, selections_BGS, valid_BG).sum(dim=-1)


class EndedSelections(NamedTuple):
    """Lengths and steps of selections that end by a `stop` outcome or at a bound."""

    lengths: Tensor
    """[B, G] int64, number of picked candidates, at least 0."""
    taken: Tensor
    """[B, G, S] bool, the sampled steps, including the step that ends the selection."""


@shaped
def ended_selections(selections_BGS: Tensor, most_B: Tensor, stop: int) -> EndedSelections:
    """Return the length of each selection and the steps of its log-probability.

    n = min(steps before the first `stop`, most);  taken_s = s < min(n + 1, most),  s from 0

    A selection with `most` candidates ends without a `stop` outcome, so its end has no log-probability. Steps after the
    end are padding: they were not sampled and do not count.

    Args:
        selections_BGS: [B, G, S] outcomes in their order (int64).
        most_B: [B] maximum number of candidates in a query's selections, in 0..S.
        stop: the outcome that ends a selection; a number that does not occur if selections cannot end early.

    Source: this project
    """
    goes_on_BGS = (selections_BGS != stop).cumprod(dim=-1)  # 1 before the first `stop`, 0 from it on
    lengths_BG = torch.minimum(goes_on_BGS.sum(dim=-1), most_B[:, None])
    steps_S = torch.arange(selections_BGS.shape[-1], device=selections_BGS.device)
    return EndedSelections(lengths_BG, steps_S < torch.minimum(lengths_BG + 1, most_B[:, None])[..., None])


@shaped
def net_rewards(rewards_BG: Tensor, lengths_BG: Tensor, *, price: float) -> Tensor:
    """Return the rewards minus the price of the demonstrations, R - price n, [B, G].

    With these rewards, a policy gradient teaches to stop if the next demonstration adds less than its price.

    Args:
        rewards_BG: [B, G] rewards of the answers with these selections.
        lengths_BG: [B, G] number of candidates in each selection.
        price: price of one candidate, at least 0.

    Raises:
        ValueError: the price is negative.

    Source: this project
    """
    if not price >= 0:
        raise ValueError(f"price must be at least 0, got {price}")
    return rewards_BG - price * lengths_BG.to(rewards_BG.dtype)
