from __future__ import annotations

import pytest

from lever_pipe.metrics.answer_cut import cut_answer


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (" motocross", "motocross"),
        ("motocross Question: what", "motocross"),
        ("red\nAnswer: blue", "red"),
        ("red Short answer: blue", "red"),
        ("red, blue Question", "red"),
        ("1,000 dollars", "1,000 dollars"),
        ("red Question, blue", "red"),
        ("red Answer x Question y", "red"),
        ("the question", "the question"),
        ("Question:", ""),
        ("Shortbread", ""),
        ("", ""),
    ],
)
def test_cut_answer(text: str, expected: str) -> None:
    assert cut_answer(text) == expected
