"""Log-probabilities of ordered selections without repeats (Plackett-Luce).

P(tau | q) = prod_s softmax(score_s with tau_1 .. tau_(s-1) masked)[tau_s], under teacher forcing.

Scores come in two ranks: [B, K], one ranking for all steps of all selections, or [B, G, S, K], the logits of each step
where they depend on the picks before it. A policy that may end a selection itself has one outcome more, K.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lever_pipe.base.shapes import require_shapes, shaped
from lever_pipe.losses.reduction import masked

MASKED_SCORE = -100.0
"""Logit of a candidate that is already chosen. The published network uses this finite number, not
minus infinity: the lost mass is below e^-80 for its scores in [-10, 10], and every gradient stays
finite."""


@shaped
def mask_chosen(scores_BGSK: Tensor, selections_BGS: Tensor) -> Tensor:
    """Return the scores with `MASKED_SCORE` at every candidate chosen at an earlier step.

    Args:
        scores_BGSK: [B, G, S, K] logits of each step, already divided by the temperature.
        selections_BGS: [B, G, S] pool positions in 0..K-1, first pick first (int64).

    Source: Plackett 1975
    """
    chosen_before_BGSK = torch.zeros_like(scores_BGSK, dtype=torch.bool, memory_format=torch.contiguous_format)
    shots = selections_BGS.shape[-1]
    for step in range(1, shots):
        picks_BGS1 = selections_BGS[:, :, step - 1, None, None].expand(-1, -1, shots - step, -1)
        chosen_before_BGSK[:, :, step:].scatter_(-1, picks_BGS1, value=True)
    return scores_BGSK.masked_fill(chosen_before_BGSK, MASKED_SCORE)


def first_step_logits(scores: Tensor) -> Tensor:
    """Return the logits of the first pick, [B, K]: nothing is chosen before it, so all selections share them.

    Args:
        scores: [B, K] or [B, G, S, K].

    Source: this project
    """
    return scores if scores.dim() == 2 else scores[:, 0, 0]


def step_logits(scores: Tensor, selections_BGS: Tensor) -> Tensor:
    """Return the logits of every step under teacher forcing, [B, G, S, K].

    logit_s = scores with the picks of the steps before s set to `MASKED_SCORE`.

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

    log_softmax(logit_s), the softmax running over all K entries, masked ones included.

    Args:
        scores: [B, K] or [B, G, S, K] logits of the pool, already divided by the temperature.
        selections_BGS: [B, G, S] pool positions, first pick first (int64).
        valid_BG: [B, G] bool, false for padding of groups of unequal size. A padded row may hold
            any number (such as -1); its log-probabilities are those of some other selection.

    Source: Plackett 1975
    """
    if valid_BG is not None:
        selections_BGS = torch.where(valid_BG[..., None], selections_BGS, 0)
        if scores.dim() == 4:
            scores = masked(scores, valid_BG[..., None, None])
    return step_logits(scores, selections_BGS).log_softmax(dim=-1)


def picked_log_probs(outcome_log_probs_BGSK: Tensor, selections_BGS: Tensor, valid_BG: Tensor | None = None) -> Tensor:
    """Return what `outcome_log_probs` say of the picks, [B, G, S]; 0 and without gradient at padding.

    Source: this project
    """
    if valid_BG is None:
        return outcome_log_probs_BGSK.gather(-1, selections_BGS[..., None]).squeeze(-1)
    legal_BGS = torch.where(valid_BG[..., None], selections_BGS, 0)
    picked_BGS = outcome_log_probs_BGSK.gather(-1, legal_BGS[..., None]).squeeze(-1)
    return masked(picked_BGS, valid_BG[..., None])


def step_log_probs(scores: Tensor, selections_BGS: Tensor, valid_BG: Tensor | None = None) -> Tensor:
    """Return the log-probability of every pick given the picks before it, [B, G, S].

    Arguments and errors are those of `outcome_log_probs`; padding has 0, which carries no gradient.

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
    """How far selections go that end by their own outcome or at a bound."""

    lengths: Tensor
    """[B, G] int64: candidates picked, at least 0."""
    taken: Tensor
    """[B, G, S] bool: the steps that were drawn, that which ends the selection included."""


@shaped
def ended_selections(selections_BGS: Tensor, most_B: Tensor, stop: int) -> EndedSelections:
    """Return the length of each selection and the steps that its log-probability sums over.

    n = min(steps before the first `stop`, most);  taken_s = s < min(n + 1, most),  s from 0

    A selection that reaches `most` ends without a further outcome, so its end costs no log-probability. What stands
    behind an end is padding: it was not drawn, and counts for nothing.

    Args:
        selections_BGS: [B, G, S] outcomes, first first (int64).
        most_B: [B] bound on the candidates of a query's selections, in 0..S.
        stop: the outcome that ends a selection; a number that does not occur where none can.

    Source: this project
    """
    goes_on_BGS = (selections_BGS != stop).cumprod(dim=-1)
    lengths_BG = torch.minimum(goes_on_BGS.sum(dim=-1), most_B[:, None])
    steps_S = torch.arange(selections_BGS.shape[-1], device=selections_BGS.device)
    return EndedSelections(lengths_BG, steps_S < torch.minimum(lengths_BG + 1, most_B[:, None])[..., None])


@shaped
def net_rewards(rewards_BG: Tensor, lengths_BG: Tensor, *, price: float) -> Tensor:
    """Return what answers are worth after their demonstrations are paid for, R - price n, [B, G].

    Under it a policy gradient teaches to stop where the next demonstration adds less than its price.

    Args:
        rewards_BG: [B, G] rewards of the answers with these selections.
        lengths_BG: [B, G] candidates in each.
        price: of one candidate, at least 0.

    Raises:
        ValueError: the price is negative.

    Source: this project
    """
    if not price >= 0:
        raise ValueError(f"price must be at least 0, got {price}")
    return rewards_BG - price * lengths_BG.to(rewards_BG.dtype)
