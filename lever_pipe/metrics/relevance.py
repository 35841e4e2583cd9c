"""Similarity of a wrong answer to its references: word overlap and edit similarity."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from lever_pipe.metrics.vqa_accuracy import normalise_answer


@dataclass(frozen=True, slots=True)
class Relevance:
    """Similarities of a prediction to its nearest references, each in [0, 1]."""

    token_f1: float
    edit_similarity: float
    score: float
    """The larger of the two similarities."""


def token_f1(prediction: str, reference: str) -> float:
    """Return the F1 of the normalized words of two answers, in [0, 1].

    2 p r / (p + r) over bags of words; 1 if both are empty, 0 if only one is.

    Source: Rajpurkar 2016 (token F1)
    """
    predicted, expected = normalise_answer(prediction).split(), normalise_answer(reference).split()
    if not predicted or not expected:
        return float(predicted == expected)
    n_common = (Counter(predicted) & Counter(expected)).total()
    return 2 * n_common / (len(predicted) + len(expected))


def edit_similarity(prediction: str, reference: str) -> float:
    """Return the similarity of the normalized characters of two answers, in [0, 1].

    2 M / T, with M characters in matching blocks and T characters in both texts; 1 if both are empty.
    The search for blocks is greedy, so the order of the two texts may change the value a little.

    Source: Ratcliff 1988
    """
    texts = normalise_answer(prediction), normalise_answer(reference)
    return SequenceMatcher(None, *texts, autojunk=False).ratio()


def relevance(prediction: str, references: Sequence[str]) -> Relevance:
    """Return the largest token F1 and the largest edit similarity over the references, and the larger of both.

    The two maxima may belong to different references. Without references all three are 0.

    Source: Lever-Plus published code
    """
    distinct = sorted(set(references))  # references often repeat, and matching blocks are slow to find
    best_f1 = max((token_f1(prediction, text) for text in distinct), default=0.0)
    best_edit = max((edit_similarity(prediction, text) for text in distinct), default=0.0)
    return Relevance(best_f1, best_edit, max(best_f1, best_edit))
