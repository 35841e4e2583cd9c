"""Policies without training: rankings of a pool from similarity, chance or the annotations."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from lever_pipe.base.errors import UnknownMemberError
from lever_pipe.base.records import Example, Pool
from lever_pipe.metrics.vqa_accuracy import vqa_accuracy

Similarities = dict[str, NDArray[np.float32]]  # `image`, `question` -> [K]


def rank_by_similarity(baseline: str, similarities: Similarities) -> NDArray[np.int64]:
    """Return the pool positions from most to least similar; ties keep pool order."""
    weights = {"similar_image": (1, 0), "similar_question": (0, 1), "similar_both": (1, 1)}
    if baseline not in weights:
        raise UnknownMemberError(
            f"a baseline: zero_shot, random-<draw>, oracle or {', '.join(weights)}",
            found=f"'{baseline}'",
            do="Name one of them.",
        )
    image, question = weights[baseline]
    score = image * similarities["image"] + question * similarities["question"]
    return np.argsort(-score, kind="stable")


def rank_by_annotations(query: Example, candidates: Sequence[Example], similarities: Similarities) -> NDArray[np.int64]:
    """Return the pool positions as the oracle ranks them; it reads the query's own annotations.

    First by the VQA accuracy that the demonstration's answer would earn, then by equal question type, then by
    similarity of image and question. No policy without the annotations can be expected to do better; what the pool
    does not hold bounds the oracle too.
    """
    accuracy, same_type = _by_annotations(query, candidates)
    similarity = similarities["image"] + similarities["question"]
    return np.lexsort((-similarity, ~same_type, -accuracy))


def best_by_annotations(query: Example, candidates: Sequence[Example]) -> NDArray[np.bool_]:
    """Return which candidates `[K]` the annotations rank first, before similarity decides; none if no answer earns."""
    accuracy, same_type = _by_annotations(query, candidates)
    best = (accuracy > 0) & (accuracy == accuracy.max())
    of_type: NDArray[np.bool_] = best & same_type
    return of_type if of_type.any() else best


def _by_annotations(query: Example, candidates: Sequence[Example]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    accuracy = np.array([vqa_accuracy(candidate.answer, query.answers) for candidate in candidates])
    same_type = np.array([candidate.question_type == query.question_type for candidate in candidates])
    return np.round(accuracy, 6), same_type


def holds_exact_demonstration(query: Example, candidates: Sequence[Example]) -> bool:
    """Tell whether the pool has a demonstration of the query's type whose answer earns at least half."""
    return any(
        c.question_type == query.question_type and vqa_accuracy(c.answer, query.answers) >= 0.5 for c in candidates
    )


def pool_similarities(
    pool: Pool, train: dict[str, NDArray[np.float32]], queries: dict[str, NDArray[np.float32]]
) -> Similarities:
    """Return the cosines of a query's image and question with those of its candidates, each `[K]`."""
    rows = np.array(pool.candidates)
    return {part: train[part][rows] @ queries[part][pool.query_id] for part in ("image", "question")}
