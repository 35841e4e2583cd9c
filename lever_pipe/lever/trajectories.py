"""From proposed selections to trajectories: what the LVLM answers with them, scored."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

from pydantic import ValidationError

from lever_pipe.base.errors import RecordError
from lever_pipe.base.records import Example, ExampleId, Pool, Proposal, RlGroup, RlQuery, Trajectory
from lever_pipe.lvlms.asking.prompts import Prompter
from lever_pipe.lvlms.protocol import Lvlm, LvlmRequest
from lever_pipe.metrics.answer_cut import cut_answer
from lever_pipe.metrics.relevance import Relevance, relevance
from lever_pipe.metrics.vqa_accuracy import normalise_answer, vqa_accuracy


def references_of(query: Example) -> tuple[str, ...]:
    """Return the distinct answers whose probability is asked for: the shown one first, then by first mention."""
    return tuple(dict.fromkeys([query.answer, *query.answers]))


def request_of(query: Example, demonstrations: Sequence[ExampleId], prompter: Prompter) -> LvlmRequest:
    """Return the prompt, to be answered, with all references.

    The last bits of a score depend on what is scored beside it, and the ledger keeps what came first: were less asked
    for one purpose than for another, values would depend on the order of jobs.
    """
    return LvlmRequest(prompter(query, demonstrations), references_of(query))


def trajectories_of(
    proposals: Sequence[Proposal], train: Sequence[Example], model: Lvlm, prompter: Prompter
) -> list[Trajectory]:
    """Return each proposal of a train query with the LVLM's answer and its scores."""
    requests = [request_of(train[p.query_id], p.pointer_global, prompter) for p in proposals]
    return [
        score_trajectory(proposal, train[proposal.query_id], reply.text, reply.answer_log_probs)
        for proposal, reply in zip(proposals, model.run(requests), strict=True)
    ]


def score_trajectory(proposal: Proposal, query: Example, text: str, log_probs: Sequence[float]) -> Trajectory:
    """Return a proposal with the LVLM's answer `text` and the scores that rewards are made of.

    `vqa_gt_prob` is the expected VQA accuracy over the distinct reference answers, with the probability of each
    answer's real tokens and the end of the turn.

    Args:
        proposal: the selection.
        query: its question and annotators' answers.
        text: raw generation.
        log_probs: one natural log-probability for each of `references_of(query)`.
    """
    answer = cut_answer(text)
    accuracy = _accuracy(answer, query.answers)
    similarity = _relevance(answer, query.answers)
    expected = sum(
        _accuracy(reference, query.answers) * math.exp(log_prob)
        for reference, log_prob in zip(references_of(query), log_probs, strict=True)
    )
    return Trajectory(
        **proposal.model_dump(),
        vqa_raw_generation=text,
        vqa_pred_answer=answer,
        vqa_correct=int(accuracy > 0),
        vqa_acc_score=accuracy,
        vqa_gt_prob=round(expected, 6),  # the last bits depend on batch composition
        vqa_gt_logprob=round(log_probs[0], 5),
        vqa_rel_token_f1=similarity.token_f1,
        vqa_rel_edit_sim=similarity.edit_similarity,
        vqa_rel_score=similarity.score,
        vqa_eval_mode="vqaEval",
        eval_split_used="train",
        eval_failed=False,
    )


def make_group(query: Example, pool: Pool, trajectories: Sequence[Trajectory]) -> RlGroup:
    """Return one line of the RL data.

    Raises:
        RecordError: a selection that the pool does not hold.
    """
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
    except ValidationError as fault:
        raise RecordError(
            f"trajectories of query {query.example_id}: expected selections from its pool",
            found=str(fault.errors(include_url=False)[0]["msg"]),
            do="Rebuild the proposals and their answers from these pools.",
        ) from None


@cache
def _accuracy(answer: str, answers: tuple[str, ...]) -> float:
    return vqa_accuracy(answer, answers)


@cache
def _relevance(answer: str, answers: tuple[str, ...]) -> Relevance:
    return relevance(answer, answers)
