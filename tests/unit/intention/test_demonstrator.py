from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from intention_cases import task_of

from lever_pipe.base.errors import DataError
from lever_pipe.experiment.agent_config import AgentExecution, Environment, Simulator, SyntheticTasks, WarmStart
from lever_pipe.intention.agent.warm_start import Demonstration, Demonstrator
from lever_pipe.intention.codecs.word import WordCodec
from lever_pipe.intention.environment import ceiling
from lever_pipe.intention.lexicon import RELEVANT
from lever_pipe.intention.simulators import rule
from lever_pipe.intention.sources import synthetic

CODEC = WordCodec.of_world()
TASKS = synthetic.read(SyntheticTasks(n_train=300)).train
NEVER: dict[str, Any] = {"irrelevant": 0.0, "double": 0.0, "early_stop": 0.0}


def demonstrator(*, max_context: int = 256, environment: dict[str, Any] | None = None, **rates: float) -> Demonstrator:
    user = rule.load(Simulator(kind="rule"), AgentExecution())
    return Demonstrator(
        CODEC,
        user,
        Environment(**({"max_turns": 8} | (environment or {}))),
        WarmStart(**rates),
        max_context=max_context,
    )


def held(maker: Demonstrator, n: int = 300, seed: int = 0) -> list[Demonstration]:
    rng = np.random.default_rng(seed)
    return [maker.hold(TASKS[i % len(TASKS)], rng) for i in range(n)]


def turns_of(demonstration: Demonstration) -> list[str]:
    """Return the demonstrator's turns in words."""
    turns: list[list[str]] = []
    for i, (token, mine) in enumerate(zip(demonstration.tokens, demonstration.is_agent, strict=True)):
        if mine and not demonstration.is_agent[i - 1]:
            turns.append([])
        if mine:
            turns[-1].append(CODEC.words[token])
    return [" ".join(turn) for turn in turns]


def test_a_perfect_demonstrator_asks_once_for_each_hidden_slot() -> None:
    for task, demonstration in zip(TASKS, held(demonstrator(**NEVER)), strict=True):
        assert demonstration.reward == pytest.approx(ceiling(task, Environment()), abs=1e-9)
        hidden = [f"<tool_call> action what about {d.description} </tool_call> <im_end>" for d in task.missing_details]
        assert sorted(turns_of(demonstration)) == sorted(hidden)


def test_one_who_always_stops_says_nothing_else() -> None:
    for demonstration in held(demonstrator(**NEVER | {"early_stop": 1.0}), 5):
        assert turns_of(demonstration) == ["all set <im_end>"]
        assert demonstration.reward == 0


def test_one_who_always_doubles_asks_for_two_relevant_slots_unless_it_draws_one_twice() -> None:
    n_named: Counter[int] = Counter()
    for task, demonstration in zip(TASKS, held(demonstrator(**NEVER | {"double": 1.0})), strict=True):
        for turn in turns_of(demonstration):
            named = turn.removeprefix("<tool_call> action what about ").split(" </tool_call>")[0].split(" and ")
            assert set(named) <= set(RELEVANT[task.category])
            n_named[len(named)] += 1
    assert set(n_named) == {1, 2}
    # One of five slots is the first one: a fifth of the turns, give or take four standard errors of 600 turns.
    assert n_named[1] / n_named.total() == pytest.approx(0.2, abs=0.07)


def test_what_is_answered_stands_between_the_turns_and_is_not_the_agents() -> None:
    for demonstration in held(demonstrator(), 50):
        told = " ".join(
            CODEC.words[t] for t, mine in zip(demonstration.tokens, demonstration.is_agent, strict=True) if not mine
        )
        assert told.count("<im_start> user") == 1
        assert told.count("<im_start> environment") == len(turns_of(demonstration)) - 1
        assert "<tool_call>" not in told


def test_the_default_demonstrations_leave_room_to_learn() -> None:
    # Published prototype: 1.86 a dialogue, 59 tokens. The standard error of 2,000 dialogues is 0.02 and 0.6.
    demonstrations = held(demonstrator(), 2000)
    assert np.mean([each.reward for each in demonstrations]) == pytest.approx(1.85, abs=0.08)
    assert np.mean([len(each.tokens) for each in demonstrations]) == pytest.approx(58.5, abs=2.5)


@pytest.mark.parametrize(("execute_last_turn", "reward"), [(False, 0.0), (True, 1.0)])
def test_the_last_turn_is_executed_only_where_the_environment_says_so(execute_last_turn: bool, reward: float) -> None:
    environment = {"max_turns": 1, "execute_last_turn": execute_last_turn}
    demonstration = demonstrator(environment=environment, **NEVER).hold(
        task_of(3, category="travel"), np.random.default_rng(0)
    )
    assert demonstration.reward == reward
    assert len(turns_of(demonstration)) == 1


def test_a_hidden_reward_is_not_shown() -> None:
    tokens = {
        CODEC.words[t] for each in held(demonstrator(environment={"show_reward": False}), 20) for t in each.tokens
    }
    assert "reward" not in tokens


@pytest.mark.parametrize("max_context", [32, 40, 60])
def test_no_demonstration_outgrows_the_context(max_context: int) -> None:
    lengths = [len(each.tokens) for each in held(demonstrator(max_context=max_context), 200)]
    assert max(lengths) <= max_context
    assert max(lengths) > max_context - 9  # a turn that asks for two slots has 9 tokens


def test_a_context_without_room_for_a_turn_is_one_clear_line() -> None:
    with pytest.raises(DataError, match=r"task 't': expected room for a turn .* found 12 of .*max_context=14 tokens"):
        demonstrator(max_context=14).hold(task_of(3, category="travel"), np.random.default_rng(0))


def test_equal_streams_give_equal_demonstrations() -> None:
    assert held(demonstrator(), 20) == held(demonstrator(), 20)
    assert held(demonstrator(), 20) != held(demonstrator(), 20, seed=1)


def test_another_world_is_one_clear_line() -> None:
    with pytest.raises(DataError, match=r"task 't': expected a category of the embedded world; found 'Gardening'"):
        demonstrator().hold(task_of(3, category="Gardening"), np.random.default_rng(0))
