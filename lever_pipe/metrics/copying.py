"""What an answer owes to the answers that its prompt shows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from lever_pipe.metrics.vqa_accuracy import normalise_answer


def vote(shown: Sequence[str]) -> str:
    """Return the most frequent of the demonstrations' answers, compared as the benchmark does; of equals the first.

    Without a demonstration it is empty, which no reference equals.

    Source: Baldassini 2024 (What Makes Multimodal In-Context Learning Work?)
    """
    counts = Counter(normalise_answer(answer) for answer in shown)
    return max(shown, key=lambda answer: counts[normalise_answer(answer)], default="")


def copied_at(answer: str, shown: Sequence[str]) -> list[int]:
    """Return the ranks, from 1, of the demonstrations whose answer is this one, compared as the benchmark does."""
    said = normalise_answer(answer)
    return [rank for rank, of in enumerate(shown, start=1) if normalise_answer(of) == said]
