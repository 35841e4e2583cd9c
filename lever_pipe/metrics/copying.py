"""What an answer owes to the answers that its prompt shows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from lever_pipe.metrics.vqa_accuracy import normalise_answer


def vote(answers: Sequence[str]) -> str:
    """Return the most frequent of the demonstrations' answers, compared as the benchmark does; of equals the first.

    Without a demonstration it is empty, which no reference equals.

    Source: Baldassini 2024 (What Makes Multimodal In-Context Learning Work?)
    """
    counts = Counter(normalise_answer(text) for text in answers)
    return max(answers, key=lambda answer: counts[normalise_answer(answer)], default="")


def copied_at(answer: str, answers: Sequence[str]) -> list[int]:
    """Return the ranks, from 1, of the demonstrations whose answer is this one, compared as the benchmark does."""
    target = normalise_answer(answer)
    return [rank for rank, text in enumerate(answers, start=1) if normalise_answer(text) == target]
