from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lever_pipe.report.page.series import split_outside_brackets


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("a; b", ["a", "b"]),
        ("a (b; c); d", ["a (b; c)", "d"]),
        ("a (b (c; d); e); f", ["a (b (c; d); e)", "f"]),
        ("a（b; c); d", ["a（b; c)", "d"]),
        ("a", ["a"]),
        ("a (b; c", ["a (b; c"]),
    ],
)
def test_items_keep_their_brackets(text: str, parts: list[str]) -> None:
    assert split_outside_brackets("; ", text) == parts


@given(st.text("ab;() "))
def test_joining_gives_the_text_back(text: str) -> None:
    assert "; ".join(split_outside_brackets("; ", text)) == text
