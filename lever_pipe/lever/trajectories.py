"""RL data from proposed selections: LVLM answers, scored, grouped and counted."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

from pydantic import ValidationError

from lever_pipe.base.errors import RecordError
from lever_pipe.base.records import Example, Normalisation, Pool, Proposal, RlGroup, RlQuery, Trajectory
from lever_pipe.base.sums import sum_in_order
from lever_pipe.lvlms.protocol import Lvlm, references_of, request_of
from lever_pipe.metrics.relevance import relevance
from lever_pipe.metrics.vqa_accuracy import cut_answer, normalise_answer, vqa_accuracy

if TYPE_CHECKING:
    from lever_pipe.experiment.rl_data import Balance
    from lever_pipe.lvlms.asking.prompts import Wording

_accuracy, _relevance = cache(vqa_accuracy), cache(relevance)  # many selections of a query get the same answer
LEAST = 2
"""Minimum number of groups in RL data: one to train, one to validate."""


def trajectories_of(
    proposals: Sequence[Proposal],
    train: Sequence[Example],
    model: Lvlm,
    wording: Wording,
    rule: Normalisation = "when_they_disagree",
) -> list[Trajectory]:
    """Return each proposal of a train query with the LVLM's answer and its scores."""
    requests = [request_of(train[p.query_id], [train[i] for i in p.pointer_global], wording) for p in proposals]
    return [
        score_trajectory(proposal, train[proposal.query_id], reply.text, reply.answer_log_probs, rule)
        for proposal, reply in zip(proposals, model.run(requests), strict=True)
    ]


def score_trajectory(
    proposal: Proposal,
    query: Example,
    text: str,
    log_probs: Sequence[float],
    rule: Normalisation = "when_they_disagree",
) -> Trajectory:
    """Return a proposal with the LVLM's answer `text` and the scores that rewards use.

    `vqa_gt_prob` is the expected VQA accuracy over the distinct reference answers, with the probability of each
    answer's real tokens and the end of the turn; `log_probs` has one natural logarithm for each of `references_of`.
    """
    answer = cut_answer(text)
    accuracy = _accuracy(answer, query.answers, normalise_references=rule)
    similarity = _relevance(answer, query.answers)
    expected = sum_in_order(
        _accuracy(reference, query.answers, normalise_references=rule) * math.exp(log_prob)
        for reference, log_prob in zip(references_of(query), log_probs, strict=True)
    )
    return Trajectory(
        **proposal.model_dump(),
        vqa_raw_generation=text,
        vqa_pred_answer=answer,
        vqa_correct=int(accuracy > 0),
        vqa_acc_score=accuracy,
        vqa_gt_prob=round(expected, 6),  # the last bits depend on the batch composition
        vqa_gt_logprob=round(log_probs[0], 5),  # of the displayed answer, the first of `references_of`
        vqa_rel_token_f1=similarity.token_f1,
        vqa_rel_edit_sim=similarity.edit_similarity,
        vqa_rel_score=similarity.score,
        vqa_eval_mode="vqaEval",
        eval_split_used="train",
        eval_failed=False,
    )


def make_group(query: Example, pool: Pool, trajectories: Sequence[Trajectory]) -> RlGroup:
    """Return one line of the RL data."""
    block = RlQuery(
        query_id=query.example_id,
        question_id=query.question_id,
        image_id=query.image_id,
        question=query.question,
        gt_answers_raw=query.answers,
        gt_answers_norm=tuple(normalise_answer(answer) for answer in query.answers),
    )
    try:
        return RlGroup(query=block, candidate_pool_ids=pool.candidates, pointer_candidates=tuple(trajectories))
    except ValidationError as error:
        raise RecordError(
            f"trajectories of query {query.example_id}: expected selections from its pool",
            found=str(error.errors(include_url=False)[0]["msg"]),
            do="Rebuild the proposals and their answers from these pools.",
        ) from None


def keep_balanced(
    groups: Sequence[RlGroup], balance: Balance | None, *, source: str
) -> tuple[list[RlGroup], dict[str, int]]:
    """Return the groups with a share of positive trajectories within the bounds, and the counts of all groups.

    Both bounds are inclusive. With None, all groups are kept and there are no counts.

    Source: Lever-Plus published code (VQAv2)
    """
    if balance is None:
        return list(groups), {}
    shares = [statistics.fmean(row.vqa_correct for row in group.pointer_candidates) for group in groups]
    selected = [group for group, share in zip(groups, shares, strict=True) if balance.low <= share <= balance.high]
    counts = {
        "balance_kept": len(selected),
        "balance_rejected_low": sum(share < balance.low for share in shares),
        "balance_rejected_high": sum(share > balance.high for share in shares),
    }
    if len(selected) < LEAST:
        raise RecordError(
            f"{source}: expected at least {LEAST} queries with {balance.low:g} to {balance.high:g} of their "
            "trajectories positive: some train, some validate",
            found=", ".join(f"{name.removeprefix('balance_')} {count}" for name, count in counts.items()),
            do="Widen rl_data.balance, or raise rl_data.n_queries or the number of proposals.",
        )
    return selected, counts


def summarise(groups: Sequence[RlGroup]) -> dict[str, int | float]:
    """Return summary statistics of RL data as one flat mapping, shares in percent.

    Positive means `vqa_correct`. The reward is the published summary's, correctness plus accuracy: 0, 1.6 or 2 on
    OK-VQA. `one_accuracy_queries` have no reward difference and so no policy gradient;
    `duplicate_selections` counts repeats of one ordered selection within a query; `accuracy_<a>` counts the
    trajectories of each accuracy level.
    """
    rows = [trajectory for group in groups for trajectory in group.pointer_candidates]
    sizes = [len(group.pointer_candidates) for group in groups]
    positives = [sum(t.vqa_correct for t in group.pointer_candidates) for group in groups]
    with_positive = sum(n > 0 for n in positives)
    all_positive = sum(0 < n == size for n, size in zip(positives, sizes, strict=True))
    rewards = [t.vqa_correct + t.vqa_acc_score for t in rows] or [0.0]
    levels = Counter(round(trajectory.vqa_acc_score, 4) for trajectory in rows)
    return {
        "queries": len(groups),
        "trajectories": len(rows),
        "traj_per_query": _rounded(statistics.fmean(sizes or [0])),
        "traj_min": min(sizes, default=0),
        "traj_max": max(sizes, default=0),
        "positive_trajectories": sum(positives),
        "positive_pct": _percent(sum(positives), len(rows)),
        "queries_with_positive": with_positive,
        "queries_with_positive_pct": _percent(with_positive, len(groups)),
        "all_negative_queries": len(groups) - with_positive,
        "all_positive_queries": all_positive,
        "mixed_queries": with_positive - all_positive,
        "one_accuracy_queries": sum(len({t.vqa_acc_score for t in g.pointer_candidates}) == 1 for g in groups),
        "duplicate_selections": len(rows) - sum(len({t.pointer for t in g.pointer_candidates}) for g in groups),
        "mean_accuracy": _rounded(statistics.fmean([t.vqa_acc_score for t in rows] or [0.0])),
        "mean_reward": _rounded(statistics.fmean(rewards)),
        "reward_std": _rounded(statistics.pstdev(rewards)),
        **{f"accuracy_{level:g}": count for level, count in sorted(levels.items())},
    }


def _percent(part: int, whole: int) -> float:
    return _rounded(100 * part / whole) if whole else 0.0


def _rounded(value: float) -> float:
    return round(value, 6)
