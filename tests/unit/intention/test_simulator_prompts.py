from __future__ import annotations

import re

import pytest
from intention_cases import task_of

from lever_pipe.base.chat import UnreadableError
from lever_pipe.intention.records import MissingDetail
from lever_pipe.intention.simulators.openai import (
    judge_prompt,
    read_judgement,
    read_reply,
    reply_prompt,
)

TASK = task_of(3, 2).model_copy(
    update={
        "task": "Plan a $10 party for {me}.",
        "missing_details": (
            MissingDetail(description="Number of guests", importance=3, inquiry="How many come?", options=("eleven",)),
            MissingDetail(description="Kind of music", importance=2),
        ),
    }
)


def test_the_user_is_not_told_what_is_hidden_unless_the_bug_is_on() -> None:
    prompt = reply_prompt(TASK, "How many?", (), leak_details=False)
    assert "Plan a $10 party for {me}." in prompt
    assert "How many?" in prompt
    assert not re.search("guests|music|eleven|importance", prompt)
    leaking = reply_prompt(TASK, "How many?", (), leak_details=True)
    assert "Number of guests" in leaking
    assert "eleven" in leaking


def test_the_judge_sees_what_remains_numbered_from_zero() -> None:
    prompt = judge_prompt(TASK, "q", (), (1,), leak_details=False)
    assert "0. [MEDIUM] Kind of music\n" in prompt
    assert "guests" not in prompt
    both = judge_prompt(TASK, "q", (), (0, 1), leak_details=False)
    assert "0. [HIGH] Number of guests (such as: How many come?)\n1. [MEDIUM] Kind of music\n" in both


@pytest.mark.parametrize(
    ("words", "indices", "related"),
    [
        ('{"is_task_related": true, "covered_detail_indices": [0, 2]}', (0, 2), True),
        ('Sure!\n```json\n{"is_task_related": true, "covered_detail_indices": [1]}\n```', (1,), True),
        ('{"covered_detail_indices": ["1", "x", 2, -1, 1.0, null, [0], true, "²", ""]}', (1, 2), True),
        ('{"covered_detail_indices": [1, 1]}', (1, 1), True),  # the environment decides about repeats
        ('{"covered_detail_indices": "0"}', (), True),
        ('{"covered_detail_indices": {"0": 1}}', (), True),
        ("{}", (), True),
        ('{"is_task_related": false, "covered_detail_indices": [0]}', (), False),
        ('{"covered_detail_indices": [123456789012345678901234567890]}', (), True),
    ],
)
def test_a_judgement_is_read_by_the_published_rules(words: str, indices: tuple[int, ...], related: bool) -> None:
    judgement = read_judgement(words)
    assert judgement == (indices, related, True)


@pytest.mark.parametrize("words", ["", "no idea", "[0]", "{", "}{", '{"a": 1} or {"a": 2}', '{"a": [0', "{'a': 1}"])
def test_a_judgement_that_cannot_be_read_is_no_empty_one(words: str) -> None:
    with pytest.raises(UnreadableError):
        read_judgement(words)


@pytest.mark.parametrize(
    ("words", "reply"),
    [
        ('{"thought": "t", "response": " About ten. "}', "About ten."),
        ('<think>hm</think> {"response": "Ten."}', "Ten."),
        ("About ten people.", "About ten people."),
    ],
)
def test_a_reply_is_the_field_or_the_plain_words(words: str, reply: str) -> None:
    assert read_reply(words) == reply


@pytest.mark.parametrize(
    "words",
    ["", "  ", '{"thought": "they ask for the hidden', '{"thought": "t"}', '{"response": 3}', '{"response": ""}'],
)
def test_a_reply_that_breaks_off_shows_no_thought(words: str) -> None:
    with pytest.raises(UnreadableError):
        read_reply(words)
