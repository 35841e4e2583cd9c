from __future__ import annotations

import logging

import pytest

from lever_pipe.base import progress
from lever_pipe.base.progress import Progress


def test_a_log_gets_lines_now_and_then_and_a_last_one(caplog: pytest.LogCaptureFixture, monkeypatch) -> None:
    clock = iter([0.0, 1.0, 20.0, 20.0, 21.0, 30.0])  # made, too soon, shown, noted, too soon, closed
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    with caplog.at_level(logging.INFO), Progress(10, "answer prompts") as shown:
        shown.advance()
        shown.advance(4)
        shown.advance(5)
    assert caplog.messages == [
        "answer prompts: 5 of 10 in 20 s, about 20 s to go",
        "answer prompts: 10 of 10 in 30 s",
    ]
