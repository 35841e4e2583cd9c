"""Agents behind a local server: scripted ones, compared with the same script as a policy's tokens."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import pytest
from agent_doubles import CODEC, TASKS, player_of, scripted
from endpoint_double import Act, Double, completion, hang_up, judgement, send, serve
from trained_world import CODE, N_TEST, world

from lever_pipe.base import storage
from lever_pipe.base.chat import Connection, UnreadableError, completion_of
from lever_pipe.base.errors import TrainingError
from lever_pipe.experiment.agent_evaluation import AgentEvaluation
from lever_pipe.experiment.environment import AgentExecution, Environment, Simulator
from lever_pipe.experiment.job_runtime import Runtime
from lever_pipe.experiment.served_agents import EvaluateServedConfig, ServedAgent
from lever_pipe.intention.agent.rollout import EpisodeRequest, Player
from lever_pipe.intention.agent.served import ServedPlayer, load_served, served_turn
from lever_pipe.intention.codecs.hf import TOOL_NAME, opening
from lever_pipe.intention.codecs.protocol import AgentTurn, ToolCall
from lever_pipe.intention.records import DialogueRow, EpisodeRow, EvaluationRow, Task
from lever_pipe.stages.agent_evaluation import evaluate_served

Script = list[Sequence[str]]
"""Of each turn the questions that it asks; none closes the episode, `BROKEN` cannot be read."""
BROKEN = ("broken",)
SLOTS = sorted({detail.description for task in TASKS for detail in task.missing_details})
REQUESTS = [EpisodeRequest(task, i, 0, (0, "test", i, 0)) for i, task in enumerate(TASKS)]


def scripts() -> dict[str, Script]:
    """Return for each task nine turns of one or three questions about one or two slots, at random."""
    rng = np.random.default_rng(7)

    def turn() -> Sequence[str]:
        if rng.random() < 0.06:
            return [(), BROKEN][int(rng.integers(2))]
        questions = [
            rng.choice(SLOTS, size=rng.integers(1, 3), replace=False) for _ in range(rng.choice([1, 1, 1, 1, 3]))
        ]
        return [f"what about {' and '.join(slots)}" for slots in questions]

    return {task.id: [turn() for _ in range(9)] for task in TASKS}


def tokens_of(turn: Sequence[str]) -> list[int]:
    """Return a turn in the form of the policy with the same script."""
    if turn == BROKEN:
        return [CODEC.words.index("</tool_call>"), *CODEC.end_ids]
    calls = [CODEC.call(ToolCall("action", question)) for question in turn]
    return [token for call in calls for token in call[:-1]] + calls[0][-1:] if calls else CODEC.closing()


def message_of(turn: Sequence[str], *, in_text: bool = False) -> dict[str, Any]:
    """Return a turn in a server's form, its calls as calls or within the text."""
    calls = [{"name": TOOL_NAME, "arguments": {"choice": "action", "content": question}} for question in turn]
    if turn == BROKEN:
        return {"tool_calls": [{"id": "c", "function": {"name": TOOL_NAME, "arguments": "{"}}]}
    if in_text or not calls:
        return {"content": "Let me see." + "".join(f"<tool_call>{json.dumps(call)}</tool_call>" for call in calls)}
    written = [{"name": call["name"], "arguments": json.dumps(call["arguments"])} for call in calls]
    return {"content": None, "tool_calls": [{"id": f"c{i}", "function": call} for i, call in enumerate(written)]}


def body(message: dict[str, Any], **choice: Any) -> bytes:
    usage = {"prompt_tokens": 11, "completion_tokens": 3}
    return json.dumps({"choices": [{"message": message, **choice}], "usage": usage}).encode()


def acting(turns_of: Callable[[dict[str, Any]], Sequence[str]], **how: bool) -> Act:
    """Answer each request with the turn from `turns_of`."""
    return lambda handler, request, released: send(body(message_of(turns_of(request), **how)))(
        handler, request, released
    )


def config_of(
    environment: Environment = Environment(max_turns=4), limit: float = 0.05, **agent: Any
) -> EvaluateServedConfig:
    return EvaluateServedConfig(
        agent=ServedAgent(**{"name": "agent", "model": "m", **agent}),
        temperature=0.7,
        environment=environment,
        simulator=Simulator(kind="rule", failure_limit=limit),
        evaluation=AgentEvaluation(test_samples=2),
    )


def execution_of(url: str, **values: Any) -> AgentExecution:
    connection = Connection(base_url=url, backoff_seconds=0.0, timeout_seconds=60.0, concurrency=4, **values)
    return AgentExecution(served={"agent": connection})


def player_at(double: Double, environment: Environment) -> ServedPlayer:
    return load_served(config_of(environment), execution_of(double.url))


@pytest.mark.parametrize("in_text", [False, True], ids=["calls", "calls in the text"])
@pytest.mark.parametrize("execute_last_turn", [False, True])
def test_a_served_agent_is_played_as_a_policy_that_says_the_same(execute_last_turn: bool, in_text: bool) -> None:
    """Every reward, end and uncovered detail of forty random dialogues equals the tokens' rollout."""
    rules = Environment(max_turns=5, execute_last_turn=execute_last_turn)
    unique = {opening(request.task)[1]["content"]: request for request in REQUESTS}
    known, requests = scripts(), list(unique.values())
    own = {name: [tokens_of(turn) for turn in turns] for name, turns in known.items()}
    room = {"max_context": 512, "max_new_tokens": 64}
    policy: Player = player_of(scripted(own, [r.task for r in requests]), environment=rules, **room)

    def turn_of(request: dict[str, Any]) -> Sequence[str]:
        _, task, *turns = request["messages"]
        return known[unique[task["content"]].task.id][sum(message["role"] == "assistant" for message in turns)]

    with serve(always=acting(turn_of, in_text=in_text)) as double:
        found = player_at(double, rules).play(requests, greedy=True)
    wanted = policy.play(requests, greedy=True)
    played = [(e.rewards, e.end, e.coverage, e.ceiling, e.results) for e in found.episodes]
    assert played == [(e.rewards, e.end, e.coverage, e.ceiling, e.results) for e in wanted.episodes]
    assert {"complete", "closed", "malformed", "turns"} <= {e.end for e in found.episodes}
    assert max(len(e.rewards) for e in found.episodes) == 5
    counts = found.counts.values()
    assert counts["multi_call_turns"] >= wanted.counts.multi_call_turns > 0
    assert counts["agent_requests"] == len(double.requests) == sum(len(e.rewards) for e in found.episodes)
    assert (counts["prompt_tokens"], counts["completion_tokens"]) == tuple(n * len(double.requests) for n in (11, 3))
    assert [e.n_agent_tokens for e in found.episodes] == [3 * len(e.rewards) for e in found.episodes]


def test_what_was_said_goes_back_with_an_answer_to_each_call_and_its_reward() -> None:
    with serve(always=acting(lambda request: ["what about budget", "what about date"])) as double:
        player_at(double, Environment(max_turns=4)).play(REQUESTS[:1])
    first, second = double.requests[:2]
    assert first["tools"][0]["function"]["name"] == TOOL_NAME
    assert (first["model"], first["temperature"], first["tool_choice"], first["max_tokens"]) == ("m", 0.7, "auto", 2048)
    assert second["messages"][:2] == first["messages"] == opening(TASKS[0])
    turn, *answers = second["messages"][2:]
    assert [call["id"] for call in turn["tool_calls"]] == [m["tool_call_id"] for m in answers] == ["c0", "c1"]
    assert [("Reward: " in m["content"]) for m in answers] == [False, True]


def evaluated(out: Path, config: EvaluateServedConfig, execution: AgentExecution) -> None:
    files = {name: out / f"{name}.jsonl" for name in ("evaluations", "episodes", "dialogues")}
    evaluate_served(
        test_tasks=world() / "test.jsonl",
        **files,
        config=config,
        runtime=Runtime(agent=execution.model_dump_json(), code=CODE),
    )


def asking_in_turn(request: dict[str, Any]) -> Sequence[str]:
    """Ask for a slot chosen by the number of turns, plus the seed if there is one."""
    return [f"what about {SLOTS[(len(request['messages']) + request.get('seed', 0)) % len(SLOTS)]}"]


def test_an_evaluation_has_a_row_for_each_decoding_and_the_greedy_dialogues(tmp_path: Path) -> None:
    with serve(always=acting(asking_in_turn)) as double:
        evaluated(tmp_path / "a", config_of(), execution_of(double.url))
    rows = storage.read_rows(tmp_path / "a" / "evaluations.jsonl", EvaluationRow)
    assert [(row.step, row.split, row.checkpoint, row.mode, row.n_samples) for row in rows] == [
        (0, "test", "last", "greedy", 1),
        (0, "test", "last", "sampled", 2),
    ]
    for row in rows:
        assert row.values["completion_tokens"] == 3 * row.values["agent_requests"] > 0
    sampled = {request["seed"] for request in double.requests if "seed" in request}
    assert len(sampled) == 2 * N_TEST
    greedy = [row for row in storage.read_rows(tmp_path / "a" / "episodes.jsonl", EpisodeRow) if row.mode == "greedy"]
    dialogues = storage.read_rows(tmp_path / "a" / "dialogues.jsonl", DialogueRow)
    assert [row.task_id for row in dialogues] == [row.task_id for row in greedy]
    assert all(turn.calls for row in dialogues for turn in row.turns)
    with serve(always=acting(asking_in_turn)) as alone:
        evaluated(tmp_path / "e", config_of(modes=["greedy"]), execution_of(alone.url))
    assert rows[0].values["agent_requests"] == len(alone.requests)
    assert {request["temperature"] for request in alone.requests} == {0.0}
    assert storage.read_rows(tmp_path / "e" / "evaluations.jsonl", EvaluationRow) == rows[:1]


def test_a_served_user_is_asked_as_often_at_one_time_as_its_server_bears() -> None:
    """Each of the agent's sixteen places would ask it by itself."""
    lock, now, most = Lock(), [0], [0]

    def reply(handler: Any, request: dict[str, Any], released: Any) -> None:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        released.wait(0.02)
        with lock:
            now[0] -= 1
        completion(json.dumps({"response": "Yes."}) if "covered_detail" not in str(request) else judgement(0))(
            handler, request, released
        )

    with serve(always=acting(lambda request: ["when"])) as agent, serve(always=reply) as user:
        own = {"base_url": user.url, "concurrency": 2}
        served = {"agent": Connection(base_url=agent.url, concurrency=16)}
        config = config_of(Environment(max_turns=2)).model_copy(update={"simulator": Simulator(kind="openai")})
        player = load_served(config, AgentExecution(connection=Connection(**own), served=served))
        assert len(player.play(REQUESTS[:16]).episodes) == 16
    assert most == [2]


@pytest.mark.parametrize(
    "act", [send(b"<html>Bad gateway</html>"), completion(7), send(b"{}", status=500), send(b"no", status=400), hang_up]
)
def test_a_server_that_answers_nonsense_ends_the_evaluation_in_one_line(tmp_path: Path, act: Act) -> None:
    with serve(always=act) as double, pytest.raises(TrainingError) as caught:
        evaluated(tmp_path, config_of(), execution_of(double.url, retries=1))
    message = str(caught.value)
    assert "\n" not in message
    n = f"{N_TEST} of {N_TEST}"
    assert f"expected at most 5.0% of the requests to served agent 'agent' to fail; found {n} failed" in message
    assert "the last problem: " in message
    assert "intention.simulator.failure_limit" in message
    assert not (tmp_path / "evaluations.jsonl").exists()


def test_a_failure_within_the_limit_is_counted_and_its_episode_lost(tmp_path: Path) -> None:
    """The server never answers the first task; means are over the others."""
    (lost, *others) = storage.read_rows(world() / "test.jsonl", Task)

    def act(handler: Any, request: dict[str, Any], released: Any) -> None:
        is_lost = request["messages"][1]["content"] == opening(lost)[1]["content"]
        (send(b"", status=500) if is_lost else acting(asking_in_turn))(handler, request, released)

    with serve(always=act) as double:
        evaluated(tmp_path, config_of(limit=0.5), execution_of(double.url, retries=2))
    (greedy, sampled) = storage.read_rows(tmp_path / "evaluations.jsonl", EvaluationRow)
    episodes = storage.read_rows(tmp_path / "episodes.jsonl", EpisodeRow)
    assert [(row.task_id, row.rewards) for row in episodes if row.end == "failed"] == [(lost.id, ())] * 3
    for row, n in ((greedy, 1), (sampled, 2)):
        assert (row.values["agent_failures"], row.values["agent_retries"], row.values["tasks_lost"]) == (n, 2 * n, 1)
        own = [sum(e.rewards) for e in episodes if e.mode == row.mode and e.task_id != lost.id]
        assert row.values["reward"] == pytest.approx(sum(own) / (n * len(others)))


MESSAGE = {"content": "a", "tool_calls": None}
PARSED = {"choice": "answer", "content": "q"}


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        (MESSAGE | {"content": "That is all."}, "closed"),
        (MESSAGE | {"content": None}, "empty"),
        (MESSAGE | {"content": " \n"}, "empty"),
        (MESSAGE | {"content": "<think>Nothing is open.</think>"}, "empty"),
        (MESSAGE | {"content": "<think>Nothing is"}, "empty"),
        (MESSAGE | {"content": None, "reasoning": "Nothing is open."}, "empty"),
        (MESSAGE | {"content": None, "refusal": "I cannot help with that."}, "refused"),
        (message_of(["a"]) | {"refusal": None}, "call"),
        (MESSAGE | {"content": "<tool_call>{"}, "malformed"),
        (MESSAGE | {"tool_calls": []}, "closed"),
        *((MESSAGE | {"tool_calls": [{"id": "c", "function": of}]}, "malformed") for of in (
            {"name": "other", "arguments": '{"choice": "action", "content": "q"}'},
            {"name": TOOL_NAME, "arguments": '{"choice": "dance", "content": "q"}'},
            {"name": TOOL_NAME, "arguments": '{"choice": "action"}'},
            {"name": TOOL_NAME, "arguments": "[" * 5000},
            {"name": TOOL_NAME},
        )),
        (MESSAGE | {"tool_calls": [{"function": {"name": TOOL_NAME, "arguments": PARSED}}]}, "call"),
        *((MESSAGE | of, None) for of in (
            {"content": 3}, {"content": [{"type": "text"}]}, {"tool_calls": 3}, {"tool_calls": ["x"]},
            {"tool_calls": [{"function": "x"}]}, {"tool_calls": {"a": 1}}, {"reasoning_content": [1]},
            {"reasoning": {"a": 1}},
            {"content": "\ud800"},
        )),
    ],
)  # fmt: skip
def test_a_message_is_a_turn_or_nonsense(message: dict[str, Any], kind: str | None) -> None:
    if kind is None:
        with pytest.raises(UnreadableError):
            served_turn(completion_of(body(message)))
        return
    assert served_turn(completion_of(body(message))).turn.kind == kind


def test_a_turn_that_the_limit_cuts_is_one_of_length_and_thoughts_go_back() -> None:
    for message in (MESSAGE, message_of(["whole"]), message_of(BROKEN)):
        assert served_turn(completion_of(body(message, finish_reason="length"))).turn == AgentTurn((), "length")
    for name in ("reasoning_content", "reasoning"):
        thinking = served_turn(completion_of(body(MESSAGE | {name: "Hm <tool_call>"})))
        assert (thinking.turn.kind, thinking.message["content"]) == ("closed", "<think>Hm <tool_call></think>a")
    both = served_turn(completion_of(body(MESSAGE | {"reasoning_content": None, "reasoning": "Hm"})))
    assert both.message["content"] == "<think>Hm</think>a"
    bare = served_turn(completion_of(b'{"choices": [{"message": {"content": "a"}}]}'))
    assert (bare.prompt_tokens, bare.completion_tokens) == (0, 0)


REFUSAL = {"content": None, "refusal": "I cannot help with that."}
CLOSED = {"content": "That is all."}
ENDINGS: dict[str, tuple[Act, str]] = {
    "a refusal": (send(body(REFUSAL, finish_reason="stop")), "refused"),
    "a gateway's refusal": (send(body({"content": ""}, finish_reason="refusal")), "refused"),
    "a filter": (send(body({"content": None}, finish_reason="content_filter")), "filtered"),
    "a filter behind words": (send(body({"content": "I am"}, finish_reason="content_filter")), "filtered"),
    "a filter as an error": (send(body({"content": ""}, finish_reason="content_filter"), status=400), "filtered"),
    "a filter of the prompt": (
        send(json.dumps({"error": {"message": "filtered", "code": "content_filter"}}).encode(), status=400),
        "filtered",
    ),
    "an empty reply": (send(body({"content": ""}, finish_reason="stop")), "empty"),
}


@pytest.mark.parametrize("name", ENDINGS)
def test_a_refusal_a_filter_and_an_empty_reply_are_ends_of_their_own_and_counted(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The agent asks once, then the case's ending follows; the other tasks end by a closing turn."""
    act, end = ENDINGS[name]
    (struck, *_) = storage.read_rows(world() / "test.jsonl", Task)

    def acts(handler: Any, request: dict[str, Any], released: Any) -> None:
        is_struck = request["messages"][1]["content"] == opening(struck)[1]["content"]
        if len(request["messages"]) == 2:
            acting(asking_in_turn)(handler, request, released)
        else:
            (act if is_struck else send(body(CLOSED)))(handler, request, released)

    with serve(always=acts) as double:
        evaluated(tmp_path, config_of(modes=["greedy"]), execution_of(double.url))
    (row,) = storage.read_rows(tmp_path / "evaluations.jsonl", EvaluationRow)
    ends = {e.task_id: e.end for e in storage.read_rows(tmp_path / "episodes.jsonl", EpisodeRow)}
    assert ends.pop(struck.id) == end
    assert end not in ends.values()
    counted = {name: row.values[f"agent_{name}"] for name in ("refused", "filtered", "empty")}
    assert counted == dict.fromkeys(counted, 0.0) | {end: 1.0}
    assert row.values[f"end_{end}"] == pytest.approx(1 / N_TEST)
    assert sum(value for name, value in row.values.items() if name.startswith("end_")) == pytest.approx(1)
    assert (row.values["agent_failures"], row.values["tasks_lost"]) == (0, 0)
    assert f"ended by the reply: {end} 1" in caplog.text


def test_a_reply_that_the_server_broke_off_is_asked_for_again() -> None:
    broken = send(body({"content": "That"}, finish_reason="abort"))
    with serve(broken, always=send(body(CLOSED))) as double:
        (episode,) = player_at(double, Environment(max_turns=4)).play(REQUESTS[:1]).episodes
    assert (episode.end, len(double.requests)) == ("closed", 2)


def test_an_agent_without_a_temperature_is_sent_none_in_either_decoding(tmp_path: Path) -> None:
    with serve(always=send(body(CLOSED))) as double:
        config = config_of(temperature=None)
        evaluated(tmp_path, config, execution_of(double.url, token_limit_field="max_completion_tokens"))
    assert not any(request.keys() & {"temperature", "max_tokens"} for request in double.requests)
    assert all(request["max_completion_tokens"] == 2048 for request in double.requests)
