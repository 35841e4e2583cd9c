from __future__ import annotations

import pytest
from intention_cases import task_of

from lever_pipe.intention.lexicon import SLOTS
from lever_pipe.intention.simulators.rule import RuleUser

TASK = task_of(3, 2, 1)  # hides budget, date, duration, all `low`


@pytest.mark.parametrize(
    ("question", "covered", "text", "uncovers"),
    [
        ("what about date", (), "date is low", (1,)),
        ("duration and budget", (), "budget is low , duration is low", (0, 2)),
        ("what about size", (), "no need", ()),
        ("what about place", (), "no need", ()),  # stated in the request
        ("hello there", (), "what", ()),
        ("budgets or date?", (), "what", ()),  # exact words only
        ("what about budget", (0,), "asked", ()),
        ("budget and date", (0,), "date is low", (1,)),
        ("budget and size", (0,), "no need", ()),
    ],
)
def test_the_user_knows_slots_by_their_word(
    question: str, covered: tuple[int, ...], text: str, uncovers: tuple[int, ...]
) -> None:
    user = RuleUser()
    remaining = tuple(i for i in range(3) if i not in covered)
    assert user.reply(TASK, question, (), covered).text == text
    judgement = user.judge(TASK, question, (), remaining)
    assert tuple(remaining[p] for p in judgement.indices) == uncovers
    assert judgement.ok
    assert judgement.related == any(slot in question.split() for slot in SLOTS)
    assert (user.counts.requests, user.counts.failures) == (2, 0)
