"""Untrained baseline policies: rankings of a pool by similarity, diversity, words, chance or the annotations."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from lever_pipe.base.errors import UnknownNameError
from lever_pipe.base.records import Example, Normalisation, Pool
from lever_pipe.metrics.vqa_accuracy import vqa_accuracy

Similarities = dict[str, NDArray[np.float32]]  # `image`, `question` -> [K]
Embeddings = dict[str, NDArray[np.float32]]  # `image`, `question` -> [N, D], unit vectors

FILTERED = 16
"""Candidates that MMICES keeps for their images."""
MMR_RELEVANCE = 0.5
"""Weight of relevance against redundancy."""
DPP_SCALE = 0.1
"""Divides relevance in the quality of a candidate: the smaller, the less diversity counts (OpenICL's default)."""
_UNSPACED = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\p{Tibetan}"
_WORD = rf"[{_UNSPACED}]\p{{M}}*|[\w--[{_UNSPACED}]]+"
OWN_SHARE = 1e-6
"""Added to each candidate's similarity to itself, so that a copy of a selected candidate has a nonzero volume."""


def rank_by_similarity(baseline: str, similarities: Similarities) -> NDArray[np.int64]:
    """Return the pool positions from most to least similar; ties keep pool order.

    * `similar_image` is known as RICES in the literature; `vote` has the demonstrations of `similar_both`.
    * `mmices`: the `FILTERED` nearest images in the order of their questions, then the others (Chen 2023, MMICES).
    """
    weights = {"similar_image": (1, 0), "similar_question": (0, 1), "similar_both": (1, 1), "vote": (1, 1)}
    if baseline == "mmices":
        by_image = np.argsort(-similarities["image"], kind="stable")
        nearest, others = by_image[:FILTERED], by_image[FILTERED:]
        return np.concatenate([nearest[np.argsort(-similarities["question"][nearest], kind="stable")], others])
    if baseline not in weights:
        raise UnknownNameError(
            f"a baseline: zero_shot, random-<draw>, oracle, bm25, mmices, mmr, dpp or {', '.join(weights)}",
            found=f"'{baseline}'",
            do="Name one of them.",
        )
    # Both parts are cosines, so they add up without scaling.
    image, question = weights[baseline]
    score = image * similarities["image"] + question * similarities["question"]
    return np.argsort(-score, kind="stable")


def rank_by_mmr(
    relevance_K: NDArray[np.float64], alike_KK: NDArray[np.float64], size: int, weight: float = MMR_RELEVANCE
) -> list[int]:
    """Return `size` pool positions by maximal marginal relevance, best first; ties keep pool order.

    argmax_i  w r_i - (1 - w) max_{j chosen} s_ij

    Args:
        relevance_K: r, of each candidate to the query.
        alike_KK: s, of the candidates to each other.
        size: number of picks.
        weight: w in [0, 1]; 1 ranks by relevance alone.

    Source: Carbonell 1998 (MMR)
    """
    picks: list[int] = []
    for _ in range(size):
        redundancy = alike_KK[:, picks].max(axis=1) if picks else 0.0
        score = weight * relevance_K - (1 - weight) * redundancy
        score[picks] = -np.inf
        picks.append(int(score.argmax()))
    return picks


def rank_by_dpp(
    relevance_K: NDArray[np.float64], alike_KK: NDArray[np.float64], size: int, scale: float = DPP_SCALE
) -> list[int]:
    """Return `size` pool positions by greedy MAP of a determinantal point process, best first.

    argmax_i  log det L_{chosen + i} - log det L_{chosen},   L_ij = q_i s_ij q_j,   q_i = exp(r_i / (2 scale))

    Args:
        relevance_K: r, of each candidate to the query.
        alike_KK: s, positive semidefinite, of the candidates to each other.
        size: number of picks.
        scale: of relevance.

    Source: Chen 2018 (Fast Greedy MAP Inference for DPP), Ye 2023 (CEIL)
    """
    # Subtracting the maximum scales all qualities equally and keeps exp from overflowing.
    quality = np.exp((relevance_K - relevance_K.max()) / (2 * scale))
    kernel = quality[:, None] * (alike_KK + OWN_SHARE * np.eye(len(quality))) * quality
    rows = np.zeros((size, len(quality)))  # of the Cholesky factor of the picked candidates, one a pick
    gains, picks = kernel.diagonal().copy(), list[int]()
    for step in range(size):
        pick = int(gains.argmax())
        rows[step] = (kernel[pick] - rows[:step, pick] @ rows[:step]) / np.sqrt(gains[pick])
        gains -= rows[step] ** 2
        picks.append(pick)
        gains[picks] = -np.inf
    return picks


def bm25_over(questions: Sequence[str]) -> Callable[[str], NDArray[np.float32]]:
    """Return a function that scores all these questions against a new one by their common words.

    It is Lucene's form of BM25 with the usual k1 = 1.5 and b = 0.75. Every word counts (see `words_in`). A question
    without words scores 0 against every other.

    Source: Robertson 1994 (BM25), Lu 2024 (bm25s)
    """
    import bm25s  # imported here, because it loads scipy.sparse, which no other baseline needs

    documents = [words_in(question) for question in questions]
    nothing = np.zeros(len(documents), dtype=np.float32)
    if not any(documents):  # bm25s fails on an empty vocabulary
        return lambda _: nothing
    index = bm25s.BM25(method="lucene", k1=1.5, b=0.75)
    index.index(documents, show_progress=False)

    def scores(question: str) -> NDArray[np.float32]:
        words = words_in(question)
        values: NDArray[np.float32] = index.get_scores(words) if words else nothing
        return values

    return scores


def words_in(text: str) -> list[str]:
    """Return the words of a text in lower case, one-character words included.

    In scripts without spaces between words, each character counts as a word.
    """
    import regex  # supports Unicode scripts and treats vowel signs as parts of words

    return list(map(str, regex.findall(_WORD, text.lower(), regex.VERSION1)))


def rank_by_annotations(
    query: Example,
    candidates: Sequence[Example],
    similarities: Similarities,
    rule: Normalisation = "when_they_disagree",
) -> NDArray[np.int64]:
    """Return the pool positions in the oracle's order; it reads the query's own annotations.

    The order is by the VQA accuracy that the demonstration's answer would earn, then by equal question type, then by
    similarity of image and question. No policy without the annotations can be expected to do better. The oracle is
    limited to the candidates of the pool too.
    """
    accuracy, same_type = _by_annotations(query, candidates, rule)
    similarity = similarities["image"] + similarities["question"]
    return np.lexsort((-similarity, ~same_type, -accuracy))


def best_by_annotations(
    query: Example, candidates: Sequence[Example], rule: Normalisation = "when_they_disagree"
) -> NDArray[np.bool_]:
    """Return the mask `[K]` of the candidates that the annotations rank first (before similarity), if any earns."""
    accuracy, same_type = _by_annotations(query, candidates, rule)
    best = (accuracy > 0) & (accuracy == accuracy.max())
    of_type: NDArray[np.bool_] = best & same_type
    return of_type if of_type.any() else best


def _by_annotations(
    query: Example, candidates: Sequence[Example], rule: Normalisation
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    earned = (vqa_accuracy(each.answer, query.answers, normalise_references=rule) for each in candidates)
    accuracy = np.fromiter(earned, dtype=np.float64, count=len(candidates))
    same_type = np.array([candidate.question_type == query.question_type for candidate in candidates])
    # Rounded, so that accuracies that differ only in the last bits count as ties.
    return np.round(accuracy, 6), same_type


def holds_exact_demonstration(
    query: Example, candidates: Sequence[Example], rule: Normalisation = "when_they_disagree"
) -> bool:
    """Return whether the pool has a demonstration of the query's type whose answer earns at least half."""
    return any(
        c.question_type == query.question_type
        and vqa_accuracy(c.answer, query.answers, normalise_references=rule) >= 0.5
        for c in candidates
    )


def pool_similarities(pool: Pool, train: Embeddings, queries: Embeddings) -> Similarities:
    """Return the cosines `[K]` between a query and its candidates, for images and for questions."""
    rows = np.array(pool.candidates)
    return {part: train[part][rows] @ queries[part][pool.query_id] for part in ("image", "question")}


def relevance_and_likeness(
    similarities: Similarities, candidates: Embeddings
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the mean of both cosines: candidates to the query `[K]`, and to each other `[K, K]`."""
    relevance = np.mean([similarities[part].astype(np.float64) for part in similarities], axis=0)
    # The product of two concatenations of unit vectors is the sum of both cosines.
    vectors = np.concatenate([candidates[part].astype(np.float64) for part in similarities], axis=1)
    return relevance, vectors @ vectors.T / len(similarities)
