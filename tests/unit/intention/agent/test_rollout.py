from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from agent_doubles import CODEC, TASKS, ChattyPolicy, chatty, log_probs_of, player_of, rule_user, scripted

from lever_pipe.base.chat import RequestCounts
from lever_pipe.base.errors import DataError
from lever_pipe.experiment.environment import Environment
from lever_pipe.intention.agent.rollout import Episode, EpisodeRequest, Rollouts
from lever_pipe.intention.records import EndReason, MissingDetail, Task
from lever_pipe.intention.simulators.protocol import Exchange, Judgement, UserReply


def task_of(*slots: str, name: str = "t", request: str = "task : travel .") -> Task:
    importances = (3, 2, 2, 2, 1)
    details = tuple(
        MissingDetail(description=slot, importance=importances[i], options=("low", "high"))  # type: ignore[arg-type]
        for i, slot in enumerate(slots)
    )
    return Task(id=name, category="travel", task=request, missing_details=details)


def ids(text: str) -> list[int]:
    return [CODEC.words.index(word) for word in text.split()]


def ask(*slots: str) -> str:
    return f"<tool_call> action what about {' and '.join(slots)} </tool_call>"


END = " <im_end>"
CLOSE = "all set <im_end>"
TRAVEL = task_of("budget", "date", "place")


def requests_of(tasks: Sequence[Task], n_samples: int = 1, seed: int = 0) -> list[EpisodeRequest]:
    return [
        EpisodeRequest(task, index, sample, (seed, "test", index, sample))
        for index, task in enumerate(tasks)
        for sample in range(n_samples)
    ]


def roll(model: Any, requests: Sequence[EpisodeRequest], *, greedy: bool = False, **options: Any) -> Rollouts:
    return player_of(model, **options).play(requests, greedy=greedy)


def play(*turns: str, task: Task = TRAVEL, **options: Any) -> Episode:
    """Return the one episode with these turns."""
    policy = scripted({task.id: [ids(turn) for turn in turns]}, [task])
    (episode,) = roll(policy, requests_of([task]), **options).episodes
    return episode


def words_of(tokens: Sequence[int]) -> str:
    return " ".join(CODEC.words[token] for token in tokens)


# --- the contents of an episode


def test_an_episode_holds_the_whole_dialogue() -> None:
    episode = play(ask("budget") + END, ask("date", "people") + END, CLOSE)
    assert words_of(episode.tokens) == (
        "<im_start> user task : travel . <im_end> <im_start> assistant "
        "<tool_call> action what about budget </tool_call> <im_end> "
        "<im_start> environment budget is low reward 1.0 <im_end> <im_start> assistant "
        "<tool_call> action what about date and people </tool_call> <im_end> "
        "<im_start> environment date is low reward 0.7 <im_end> <im_start> assistant "
        "all set <im_end>"
    )
    assert episode.n_prompt == 9
    assert episode.rewards == [1.0, 0.7, 0.0]
    assert (episode.end, episode.coverage, episode.ceiling) == ("closed", pytest.approx(2 / 3), 2.4)


def test_the_mask_marks_exactly_what_was_sampled() -> None:
    turns = [ask("budget") + END, ask("date", "people") + END, CLOSE]
    episode = play(*turns)
    assert len(episode.tokens) == len(episode.is_agent) == len(episode.turn)
    sampled = [token for token, mine in zip(episode.tokens, episode.is_agent, strict=True) if mine]
    assert sampled == ids(" ".join(turns))
    assert [turn for turn in episode.turn if turn >= 0] == [0] * 7 + [1] * 9 + [2] * 3
    assert [turn >= 0 for turn in episode.turn] == episode.is_agent
    assert len(episode.log_probs) == 7 + 9 + 3


# --- how it ends


class Failing:
    """A user that is late, or fails with its n-th reply."""

    concurrency = 1

    def __init__(self, *, fails_at: int = 0, is_remote: bool = False) -> None:
        self.counts = RequestCounts()
        self.is_remote = is_remote
        self._fails_at = fails_at

    def reply(self, task: Task, question: str, history: Sequence[Exchange], covered: Sequence[int]) -> UserReply:
        self.counts.add(requests=1)
        ok = len(history) + 1 != self._fails_at
        self.counts.add(failures=not ok)
        return UserReply("asked", ok=ok)

    def judge(self, task: Task, question: str, history: Sequence[Exchange], remaining: tuple[int, ...]) -> Judgement:
        self.counts.add(requests=1)
        return Judgement((0,), related=True)


FOREVER = [ask("people") + END] * 8
LATE = {"user": Failing(is_remote=True), "environment": Environment(max_turns=8, step_timeout_seconds=1e-9)}
ENDS: list[tuple[EndReason, list[str], list[float], dict[str, Any]]] = [
    ("complete", [ask(slot) + END for slot in ("budget", "date", "place")], [1.0, 0.7, 0.7], {}),
    ("closed", [ask("budget") + END, CLOSE], [1.0, 0.0], {}),
    ("closed", ["<im_end>"], [0.0], {}),
    ("malformed", [ask("budget") + END, "<tool_call> action what about date <im_end>"], [1.0, 0.0], {}),
    ("length", [ask("budget") + END, " ".join(["about"] * 12)], [1.0, 0.0], {}),
    ("length", [ask("budget")], [0.0], {"max_new_tokens": 6}),  # a whole call without the end of its turn
    ("turns", FOREVER, [0.0] * 8, {}),
    ("failed", [ask("budget") + END] * 2, [1.0, 0.0], {"user": Failing(fails_at=2)}),
    ("timeout", [ask("budget") + END], [0.0], LATE),
    # Prompt 9, call 7, feedback 10: a context of 26 is full.
    ("context", [ask("budget") + END], [1.0], {"max_context": 26}),
    # With a limit of 27, one token remains for the next turn.
    ("context", [ask("budget") + END, "<tool_call>"], [1.0, 0.0], {"max_context": 27}),
]


@pytest.mark.parametrize(("end", "turns", "rewards", "options"), ENDS)
def test_every_end(end: EndReason, turns: list[str], rewards: list[float], options: dict[str, Any]) -> None:
    episode = play(*turns, **options)
    assert episode.end == end
    assert episode.rewards == rewards
    assert sum(episode.is_agent) == len(" ".join(turns).split())
    assert len(episode.tokens) <= options.get("max_context", 256)
    assert episode.is_agent[-1], "what nobody reads is not told"


@pytest.mark.parametrize(("execute_last_turn", "rewards"), [(False, [0.0, 0.0]), (True, [0.0, 1.0])])
def test_the_last_turn_is_executed_only_where_the_settings_say_so(
    execute_last_turn: bool, rewards: list[float]
) -> None:
    turns = [ask("people") + END, ask("budget") + END]
    environment = Environment(max_turns=2, execute_last_turn=execute_last_turn)
    user = rule_user()
    episode = play(*turns, user=user, environment=environment)
    assert (episode.rewards, episode.end) == (rewards, "turns")
    assert user.counts.requests == 2 * (1 + execute_last_turn)


def test_a_prompt_without_room_for_the_agent_is_one_clear_line() -> None:
    long = task_of("budget", request="task : travel" + " , size low" * 3 + " .")  # 9 tokens and 9 more
    with pytest.raises(DataError, match="task 't'"):
        play(CLOSE, task=long, max_context=18)
    assert play(CLOSE, task=long, max_context=19).end == "context"


# --- many dialogues at once


def uneven() -> tuple[list[Task], dict[str, list[list[int]]]]:
    """Return tasks whose prompts, turns and numbers of turns all differ; every dialogue ends by closing."""
    slots = ("budget", "date", "place", "people")
    tasks = [
        task_of(*slots, "style", name=f"t{i}", request="task : travel" + " , size low" * i + " .") for i in range(5)
    ]
    script = {
        f"t{i}": [*[ids(ask(*[slots[k], "tool"][: 1 + (i + k) % 2]) + END) for k in range(i)], ids(CLOSE)]
        for i in range(5)
    }
    return tasks, script


def test_no_token_is_read_twice() -> None:
    tasks, script = uneven()
    policy = scripted(script, tasks)
    rollouts = roll(policy, requests_of(tasks))
    counts = rollouts.counts
    # Everything but the last token of each dialogue, because no token follows it.
    n_tokens = sum(len(episode.tokens) - 1 for episode in rollouts.episodes)
    assert counts.prefill_tokens + counts.decode_tokens == sum(policy.read) == n_tokens
    # A turn of all running dialogues needs one forward pass for each token of its longest speech.
    longest = [max(len(turns[k]) for turns in script.values() if k < len(turns)) for k in range(5)]
    assert longest == [9, 9, 9, 9, 3]
    assert counts.forwards == len(policy.read) == sum(longest)
    n_sampled = sum(sum(episode.is_agent) for episode in rollouts.episodes)
    n_turns = sum(len(episode.rewards) for episode in rollouts.episodes)
    assert counts.decode_tokens == n_sampled - n_turns


# --- a real network


@pytest.fixture(scope="module")
def policy() -> ChattyPolicy:
    return chatty()


@pytest.fixture(scope="module")
def dialogues(policy: ChattyPolicy) -> Rollouts:
    return roll(policy, requests_of(TASKS[:8], n_samples=4))


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_behaviour_log_probs_are_those_of_a_plain_forward_pass(policy: ChattyPolicy, temperature: float) -> None:
    # The published bound for float32; the cache sums in another order than the plain pass.
    for episode in roll(policy, requests_of(TASKS[:8], n_samples=3), temperature=temperature).episodes:
        assert episode.log_probs == pytest.approx(log_probs_of(policy, episode, temperature), abs=1e-4)


def contents(episodes: Sequence[Episode]) -> dict[tuple[int, int], tuple[Any, ...]]:
    return {(e.index, e.sample): (e.tokens, e.is_agent, e.turn, e.rewards, e.end, e.coverage) for e in episodes}


@pytest.mark.parametrize("batch", [1, 32])
def test_an_episode_does_not_depend_on_its_company(policy: ChattyPolicy, dialogues: Rollouts, batch: int) -> None:
    requests = requests_of(TASKS[:8], n_samples=4)
    assert contents(roll(policy, requests[::-1], batch=batch).episodes) == contents(dialogues.episodes)
