from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from intention_cases import ScriptedUser, env_of, judged, task_of

from lever_pipe.experiment.environment import Environment, ImportanceReward, Simulator
from lever_pipe.intention.codecs.protocol import ToolCall
from lever_pipe.intention.environment import IntentionEnv, step_all, turn_reward
from lever_pipe.intention.simulators.protocol import Exchange, Judgement, UserReply

FAILED = Judgement((), related=False, ok=False)


@pytest.mark.parametrize(
    ("importances", "settings_", "reward"),
    [
        # Base 1.0, 0.7 or 0.4 of the most important detail, less 0.2 for each further one, never below 0.
        *(([importance], {}, base) for importance, base in ((3, 1.0), (2, 0.7), (1, 0.4))),
        ([2, 2], {}, 0.5),
        ([3, 2, 1], {}, 0.6),
        ([1] * 3, {}, 0.0),
        ([1] * 9, {}, 0.0),
        ([], {}, 0.0),
        ([3], {"step_penalty": 0.01}, 0.99),
        ([], {"step_penalty": 0.01}, 0.0),  # limited to [0, 1]
        ([], {"step_penalty": 0.01, "normalise_rewards": False}, -0.01),
        ([3], {"reward_scale": 2.0}, 1.0),
        ([3], {"reward_scale": 2.0, "normalise_rewards": False}, 2.0),
        ([2, 1], {"reward_scale": 2.0, "normalise_rewards": False}, 1.0),  # 2 (0.7 - 0.2)
        ([3, 3], {"multi_detail_penalty": 0.0}, 1.0),
        ([1, 2], {"importance_reward": ImportanceReward(low=0.1, medium=0.9)}, 0.7),
    ],
)
def test_a_turn_pays_by_the_published_table_and_as_configured(
    importances: list[int], settings_: dict[str, Any], reward: float
) -> None:
    assert turn_reward(importances, Environment(**settings_)) == reward  # exactly: tenths are the floats that print so


def test_covered_details_leave_the_list_and_positions_count_what_remains() -> None:
    user = ScriptedUser(judged(1), judged(1), judged(0))
    env = env_of(task_of(3, 2, 1), user)
    first, second = env.step("action", "a"), env.step("action", "b")
    assert (first.covered, first.reward, env.coverage) == ((1,), 0.7, 2 / 3)
    assert (second.covered, second.reward) == ((2,), 0.4)
    assert not second.done
    assert env.step("action", "c").done
    assert [remaining for _, _, remaining in user.asked] == [(0, 1, 2), (0, 2), (0,)]
    assert user.asked[1][1] == (Exchange("a", "yes"),)


@pytest.mark.parametrize(
    ("choice", "content", "question"),
    [
        ("action", "when?", "when?"),
        ("answer", "when?", "when?"),
        ("search", "when?", "[search] when?"),
    ],
)
def test_marks_are_removed_as_published(choice: str, content: str, question: str) -> None:
    user = ScriptedUser()
    env_of(task_of(3), user).step(choice, content)
    assert user.asked[0][0] == question


def test_what_the_judge_names_out_of_range_or_off_topic_covers_nothing() -> None:
    env = env_of(task_of(3, 2), ScriptedUser(judged(5, -1, 2), judged(0, related=False)))
    assert env.step("action", "a").reward == 0.0
    assert env.step("action", "b").reward == 0.0
    assert env.coverage == 0.0


def test_a_detail_named_twice_counts_once_unless_the_bug_is_on() -> None:
    assert env_of(task_of(3, 2), ScriptedUser(judged(0, 0))).step("action", "a").reward == 1.0
    with_bug = env_of(task_of(3, 2), ScriptedUser(judged(0, 0)), count_duplicates=True)
    result = with_bug.step("action", "a")
    assert (result.reward, result.covered, with_bug.coverage) == (0.8, (0,), 0.5)


@pytest.mark.parametrize("replies", [(), (UserReply("hm", ok=False),)])
def test_a_user_that_gives_up_ends_the_episode_and_says_so(replies: tuple[UserReply, ...]) -> None:
    env = env_of(task_of(3, 2), ScriptedUser(FAILED, replies=replies))
    result = env.step("action", "a")
    assert (result.failed, result.done, result.reward, result.timed_out) == (True, True, 0.0, False)


def test_silent_failures_go_on_unseen() -> None:
    user = ScriptedUser(FAILED, judged(0), replies=(UserReply("hm", ok=False),))
    env = env_of(task_of(3, 2), user, silent_failures=True)
    result = env.step("action", "a")
    assert (result.failed, result.done, result.reward, result.feedback) == (False, False, 0.0, "hm")
    assert env.step("action", "b").reward == 1.0


def test_a_turn_over_its_time_ends_the_episode() -> None:
    ticks = iter([0.0, 30.0, 30.0, 100.0, 131.0])
    user = ScriptedUser(judged(0), judged(0))
    env = IntentionEnv(task_of(3, 2), user, Environment(), Simulator(kind="rule"), clock=lambda: next(ticks))
    assert env.step("action", "a").timed_out is False  # 30 s are within 30 s
    late = env.step("action", "b")
    assert (late.timed_out, late.done, late.reward, late.failed) == (True, True, 0.0, False)
    assert len(user.asked) == 1  # a late reply is not judged


def calls(*contents: str) -> list[ToolCall]:
    return [ToolCall("action", content) for content in contents]


def test_a_turn_that_ends_the_episode_drops_its_further_calls() -> None:
    user = ScriptedUser(judged(0))
    (turn,) = step_all([(env_of(task_of(3), user), calls("a", "b", "c"))])
    assert (turn.done, turn.reward, len(user.asked)) == (True, 1.0, 1)


IMPORTANCES = st.lists(st.sampled_from([1, 2, 3]), min_size=1, max_size=9)
JUDGEMENTS = st.lists(
    st.builds(
        lambda indices, related: judged(*indices, related=related),
        st.lists(st.integers(-2, 10), max_size=4),
        st.booleans(),
    ),
    max_size=20,
)
SETTINGS = st.fixed_dictionaries(
    {
        "max_turns": st.integers(1, 10),
        "step_penalty": st.sampled_from([0.0, 0.01, 0.3]),
        "multi_detail_penalty": st.sampled_from([0.0, 0.2, 1.0]),
        "reward_scale": st.sampled_from([0.5, 1.0, 3.0]),
        "normalise_rewards": st.booleans(),
    }
)


@settings(max_examples=200)
@given(IMPORTANCES, JUDGEMENTS, SETTINGS, st.booleans())
def test_every_episode_keeps_its_bounds(
    importances: list[int], judgements: list[Judgement], environment: dict[str, Any], duplicates: bool
) -> None:
    env = env_of(task_of(*importances), ScriptedUser(*judgements), environment=environment, count_duplicates=duplicates)
    total, steps, remaining = 0.0, 0, set(env.remaining)
    while not env.done:
        result = env.step("action", "q")
        steps += 1
        total += result.reward
        if environment["normalise_rewards"]:
            assert 0.0 <= result.reward <= 1.0
        assert set(result.covered) == remaining - set(env.remaining)
        remaining = set(env.remaining)
        assert env.coverage == pytest.approx(1 - len(remaining) / len(importances), abs=1e-12)  # rounding of a ratio
    assert steps <= environment["max_turns"]
    assert total <= env.ceiling + 1e-9  # sums of rounded tenths


def test_of_several_calls_only_the_last_counts_with_the_bug() -> None:
    env = env_of(task_of(3, 2, 1), ScriptedUser(judged(0), judged(1)), last_call_only=True)
    (turn,) = step_all([(env, calls("a", "b"))])
    assert (turn.reward, env.coverage) == (0.4, 2 / 3)
