from __future__ import annotations

import pytest
from intention_cases import task_of

from lever_pipe.base.errors import SimulatorError
from lever_pipe.experiment.agent_config import AgentExecution, Simulator
from lever_pipe.intention.environment import load_simulator
from lever_pipe.intention.lexicon import SLOTS, VALUES
from lever_pipe.intention.records import MissingDetail
from lever_pipe.intention.simulators.protocol import Exchange
from lever_pipe.intention.simulators.rule import RuleUser

TASK = task_of(3, 2, 1)  # hides budget, date, duration, all `low`
HISTORY = (Exchange("what about budget", "budget is low"),)


@pytest.mark.parametrize(
    ("question", "covered", "said", "uncovers"),
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
    question: str, covered: tuple[int, ...], said: str, uncovers: tuple[int, ...]
) -> None:
    user = RuleUser()
    remaining = tuple(i for i in range(3) if i not in covered)
    assert user.reply(TASK, question, (), covered).text == said
    judgement = user.judge(TASK, question, (), remaining)
    assert tuple(remaining[p] for p in judgement.indices) == uncovers
    assert judgement.ok
    assert judgement.related == any(slot in question.split() for slot in SLOTS)
    assert (user.counts.requests, user.counts.failures) == (2, 0)


def test_a_judge_that_always_misses_credits_nothing_while_the_user_still_answers() -> None:
    user = load_simulator(Simulator(kind="rule", judge_miss=1.0), AgentExecution())
    assert user.judge(TASK, "what about date", (), (0, 1, 2)).indices == ()
    assert user.reply(TASK, "what about date", (), ()).text == "date is low"


def test_a_noisy_user_names_another_value() -> None:
    user = load_simulator(Simulator(kind="rule", reply_noise=1.0), AgentExecution())
    slot, _, value = user.reply(TASK, "what about date", (), ()).text.split()
    assert slot == "date"
    assert value in set(VALUES) - {"low"}
    assert user.judge(TASK, "what about date", (), (0, 1, 2)).indices == (1,)


def test_stress_is_drawn_by_task_question_and_history_alone() -> None:
    def missed(order: range, history: tuple[Exchange, ...] = ()) -> dict[int, bool]:
        user = RuleUser(judge_miss=0.5)
        return {i: not user.judge(task_of(3, name=f"t{i}"), "what about budget", history, (0,)).indices for i in order}

    forward = missed(range(200))
    assert missed(range(199, -1, -1)) == forward
    assert missed(range(200), HISTORY) != forward
    # 200 fair draws: five standard deviations of 7 round 100.
    assert 65 <= sum(forward.values()) <= 135


def test_a_task_of_another_world_is_refused() -> None:
    foreign = TASK.model_copy(
        update={"missing_details": (MissingDetail(description="Type of diabetes", importance=2),)}
    )
    with pytest.raises(SimulatorError, match=r"plays the embedded tasks only.*Type of diabetes.*synthetic"):
        RuleUser().reply(foreign, "what about date", (), ())
