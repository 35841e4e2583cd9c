"""Accuracies of answers: a score per question and shot count, and a cell per sample count and shot count."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np

from lever_pipe.base.errors import RecordError
from lever_pipe.base.policy_names import PolicyName
from lever_pipe.base.records import Cell, Example, ExampleId, Normalisation, QuestionScore, SubsetScore
from lever_pipe.base.seeding import generator
from lever_pipe.metrics.vqa_accuracy import vqa_accuracy

Demonstrations = tuple[ExampleId, ...]
PromptKey = tuple[str, str, Demonstrations]


def score_questions(
    queries: Sequence[Example],
    chosen: Mapping[ExampleId, Demonstrations],
    answers: Mapping[tuple[ExampleId, Demonstrations], str],
    shots: Sequence[int],
    *,
    files: tuple[str, str],
    normalise_references: Normalisation = "when_they_disagree",
) -> tuple[list[QuestionScore], dict[int, list[PromptKey]]]:
    """Return the score of every query at every shot count, and the prompts by shot count, both in query order.

    Args:
        queries: N queries.
        chosen: the policy's ordered demonstrations for each query; k shots are the first k.
        answers: the LVLM's answer to every prompt.
        shots: shot counts.
        files: the sources of `chosen` and `answers`, for error messages.
        normalise_references: rule of VQA accuracy.

    Raises:
        RecordError: a query has no selection, or a prompt has no answer.

    Source: this project
    """
    absent = [query.example_id for query in queries if query.example_id not in chosen]
    if absent:
        raise RecordError(
            f"{files[0]}: expected a selection for each of {len(queries)} queries",
            found=f"none for {len(absent)}, first {absent[:5]}",
            do="Rebuild the selections from the pools of these queries.",
        )
    scores: list[QuestionScore] = []
    keys: dict[int, list[PromptKey]] = {}
    for k in shots:
        for query in queries:
            demonstrations = chosen[query.example_id][:k]
            answer = answers.get((query.example_id, demonstrations))
            if answer is None:
                raise RecordError(
                    f"{files[1]}: expected an answer to query {query.example_id} with {list(demonstrations)}",
                    found="none",
                    do="Rerun answer_prompts for this batch.",
                )
            accuracy = _accuracy(answer, query.answers, normalise_references)
            scores.append(QuestionScore(query_id=query.example_id, shots=k, accuracy=accuracy))
            keys.setdefault(k, []).append((query.image_digest, query.question, demonstrations))
    return scores, keys


def build_cells(
    policy: PolicyName,
    scores: Sequence[QuestionScore],
    keys: Mapping[int, Sequence[PromptKey]],
    *,
    samples: Sequence[int],
    n_random_subsets: int,
    seed: int,
) -> list[Cell]:
    """Return one cell per sample count and shot count: the prefix in question-id order and random subsets.

    The random subsets depend only on the seed and the sizes, so that all policies have the same subsets.

    Args:
        policy: the policy of the cells.
        scores: scores of N queries at every shot count, as `score_questions` returns them.
        keys: prompts of the queries by shot count.
        samples: sample counts, at most N.
        n_random_subsets: number of random subsets per cell.
        seed: seed of the random subsets.

    Raises:
        RecordError: a sample count is larger than the number of queries.

    Source: this project
    """
    most = min(map(len, keys.values()), default=0)
    if max(samples, default=0) > most:
        raise RecordError(
            f"evaluation.samples: expected at most {most}, the queries with a readable image",
            found=str(max(samples)),
            do="Lower evaluation.samples or complete the data.",
        )
    built: list[Cell] = []
    for count in samples:
        for shots, prompts in keys.items():
            values = np.array([score.accuracy for score in scores if score.shots == shots])
            subsets = {"prefix": np.arange(count)}
            for draw in range(n_random_subsets):
                # A stream per size and draw: other sample counts of a configuration do not change a subset.
                stream = generator(seed, "subset", count, draw)
                subsets[f"random-{draw}"] = stream.permutation(len(values))[:count]
            rows = tuple(
                SubsetScore(
                    subset=name,
                    accuracy=round(100 * float(values[chosen].mean()), 6),
                    n_questions=len(chosen),
                    n_distinct_prompts=len({prompts[i] for i in chosen.tolist()}),
                )
                for name, chosen in subsets.items()
            )
            built.append(Cell(policy=policy, samples=count, shots=shots, subsets=rows))
    return built


# Policies and shot counts share many answers to the same question.
@cache
def _accuracy(answer: str, answers: tuple[str, ...], normalise_references: Normalisation) -> float:
    return vqa_accuracy(answer, answers, normalise_references=normalise_references)
