"""Gallery and dialogues: rows in reading order, answers in the colour of what they earn, every text escaped."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from lever_pipe.report.catalogue import Voice
from lever_pipe.report.page import pages

VOICE = Voice("en")
BLOCKS = Path("lever_pipe/report/templates/blocks.html.j2").read_text(encoding="utf-8")
SAMPLES = pages.environment(pages.Frame({"blocks": BLOCKS}, "", ""), VOICE).get_template("blocks").module


def row(answer: str, accuracy: float) -> dict[str, Any]:
    shown = {"id": 1, "question": "what <is> it?", "answer": "red"}
    return {"answer": answer, "accuracy": accuracy, "demonstrations": [shown]}


def test_a_question_shows_each_policy_in_order_and_colours_its_answer() -> None:
    rows = {"oracle": row("a", 1.0), "rce": row("b", 0.0), "grpo": row("<c>", 0.3)}
    question = {"question": "who?", "references": ["a", "d"], "rows": rows}
    text = str(SAMPLES.gallery({"questions": [question]}))
    assert re.findall(r"<dt>(\w+)</dt>", text) == ["RCE", "GRPO", "oracle"]
    assert re.findall(r'<span class="said (\w+)">([^<]*)</span>', text) == [
        ("no", "b"),
        ("open", "&lt;c&gt;"),
        ("yes", "a"),
    ]
    assert "a, d" in text
    assert "what &lt;is&gt; it?" in text


def test_a_dialogue_marks_what_a_reply_uncovered() -> None:
    turns = [
        {"said": "", "calls": [{"content": "what about <date>"}], "reply": "date is high", "uncovered": ["date"]},
        {"said": "hm", "calls": [], "reply": "", "uncovered": []},
    ]
    told = {"turns": turns, "reward": 1.0}
    task = {"request": "a trip", "hidden": [{"text": "date"}], "ceiling": 2.5, "dialogues": {"a": told, "b": told}}
    text = str(SAMPLES.dialogues({"tasks": [task]}))
    assert text.count('<span class="yes">date is high</span>') == 2
    assert "what about &lt;date&gt;" in text
    assert "<li>hm</li>" in text
    assert "1 of 2.5" in text
