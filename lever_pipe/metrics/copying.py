"""Comparison of an answer with the answers of the prompt's demonstrations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from lever_pipe.metrics.vqa_accuracy import normalise_answer


def vote(answers: Sequence[str]) -> str:
    """Return the demonstrations' most frequent answer, normalized as in the benchmark; the first one if several tie.

    Without demonstrations the result is empty, which equals no reference.

    Source: Baldassini 2024 (What Makes Multimodal In-Context Learning Work?)
    """
    counts = Counter(normalise_answer(text) for text in answers)
    return max(answers, key=lambda answer: counts[normalise_answer(answer)], default="")


def copied_at(answer: str, answers: Sequence[str]) -> list[int]:
    """Return the ranks, from 1, of the demonstrations with the same answer, normalized as in the benchmark."""
    target = normalise_answer(answer)
    return [rank for rank, text in enumerate(answers, start=1) if normalise_answer(text) == target]
