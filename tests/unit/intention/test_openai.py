from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from endpoint_double import (
    Act,
    chat_body,
    completion,
    hang,
    hang_up,
    judgement,
    send,
    serve,
)
from intention_cases import env_of, task_of

from lever_pipe.base.chat import Chat, Connection, find_access, pause_of
from lever_pipe.base.errors import ConfigError, ServerError
from lever_pipe.experiment.environment import AgentExecution, Endpoint, Simulator
from lever_pipe.experiment.studies import parse_experiment
from lever_pipe.intention.codecs.protocol import ToolCall
from lever_pipe.intention.environment import load_simulator, step_all
from lever_pipe.intention.simulators.openai import PromptedUser

KEY = "sk-not-a-real-key"
TASK = task_of(3, 2, 1)
REPLY = json.dumps({"thought": "t", "response": "A small budget."})


def user_of(url: str, naps: list[float] | None = None, **values: Any) -> PromptedUser:
    connection = Connection(**({"base_url": url, "timeout_seconds": 60.0, "retries": 2, "concurrency": 4} | values))
    chat = Chat(find_access(connection, {}), connection, sleep=(naps if naps is not None else []).append)
    return PromptedUser(chat, Endpoint(), leak_details=False)


def counts_of(user: PromptedUser) -> tuple[int, int, int, int]:
    counts = user.counts
    return counts.requests, counts.failures, counts.retries, counts.malformed


def test_a_question_is_answered_and_judged_by_two_requests() -> None:
    with serve(completion(REPLY), completion(judgement(1, 0))) as double:
        user = user_of(double.url)
        env = env_of(TASK, user)
        result = env.step("action", "What is your budget, and when?")
    assert (result.feedback, result.reward, result.covered) == ("A small budget.", 0.8, (1, 0))
    assert counts_of(user) == (2, 0, 0, 0)
    first = double.requests[0]
    assert first["path"] == "/v1/chat/completions"
    assert (first["model"], first["temperature"], first["max_tokens"]) == ("Qwen3-32B", 0.0, 2048)
    assert "What is your budget, and when?" in first["messages"][0]["content"]


BROKEN: dict[str, tuple[Act, bool]] = {  # the failure, and whether an unreadable answer arrived
    "500": (send(b"oops", status=500), False),
    "half a JSON": (send(chat_body("x")[:-7]), True),
    "no content": (completion(None), True),
    "a broken-off object": (completion('{"analysis": "a", "covered_'), True),
    "hang up": (hang_up, False),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_answer_is_asked_for_again_counted_and_never_a_zero(name: str) -> None:
    act, is_malformed = BROKEN[name]
    naps: list[float] = []
    with serve(always=act) as double:
        user = user_of(double.url, naps, backoff_seconds=0.5)
        result = user.judge(TASK, "q", (), (0, 1, 2))
    assert (result.ok, result.indices) == (False, ())
    assert counts_of(user) == (1, 1, 2, 3 if is_malformed else 0)
    assert len(double.requests) == 3
    assert naps == [0.5, 1.0]
    assert user.counts.last_error


def replied(content: str | None, reason: str = "stop", **message: Any) -> Act:
    choice = {"message": {"role": "assistant", "content": content, **message}, "finish_reason": reason}
    return send(json.dumps({"choices": [choice]}).encode())


UNUSABLE: dict[str, Act] = {
    "a closed thought": replied("<think>They ask for a budget. Say little.</think>A small one."),
    "a thought that the limit cut": replied("<think>They ask for a budget.", "length"),
    "a sentence that the limit cut": replied("I would like to spend about", "length"),
    "an object that the limit cut": replied('{"thought": "t", "response": "About"} and', "length"),
    "only a thought": replied(None, "length", reasoning="They ask"),
    "a marker in the prompt": replied("They ask for a budget.</think>A small one."),
    "a refusal": replied(None, refusal="I cannot play a person."),
    "a filter": replied("I am", "content_filter"),
    "an abort": replied("A small", "abort"),
}


@pytest.mark.parametrize("name", UNUSABLE)
def test_an_unusable_reply_is_asked_for_again_and_then_no_word_of_the_user(name: str) -> None:
    with serve(UNUSABLE[name], completion(REPLY)) as double:
        user = user_of(double.url)
        assert user.reply(TASK, "q", (), ()) == ("A small budget.", True)
    assert counts_of(user) == (1, 0, 1, 1)
    with serve(always=UNUSABLE[name]) as double:
        user = user_of(double.url)
        assert not user.reply(TASK, "q", (), ()).ok
        assert not user.judge(TASK, "q", (), (0,)).ok
    assert counts_of(user) == (2, 2, 4, 6)


def test_a_thought_before_the_reply_is_stripped_where_the_connection_says_so() -> None:
    thought = "<think>As {a, b}.</think>"
    with serve(completion(thought + REPLY), completion(thought + judgement(1))) as double:
        user = user_of(double.url, strip_thoughts=True)
        assert user.reply(TASK, "q", (), ()) == ("A small budget.", True)
        assert user.judge(TASK, "q", (), (0, 1)).indices == (1,)


def busy(status: int = 429, **headers: str) -> Act:
    return send(b"{}", status=status, **headers)


@pytest.mark.parametrize(
    ("acts", "naps"),
    [
        ([busy()] * 4, [0.5, 1.0, 2.0, 4.0]),
        ([busy(**{"Retry-After": "20"})] * 2, [20.0, 20.0]),
        ([busy(**{"Retry-After": "150"})], [150.0]),  # the client of OpenAI gives up above 120 s
        ([busy(**{"retry-after-ms": "1500", "Retry-After": "2"})], [1.5]),
        ([busy(**{"Retry-After": "soon"}), busy(**{"Retry-After": "nan"})], [0.5, 1.0]),
        ([busy(503, **{"Retry-After": "7"})], [7.0]),
        ([busy(), send(b"", status=500), busy()], [0.5, 0.5, 0.5]),  # failures count by themselves
    ],
)
def test_a_rate_limit_is_waited_for_as_the_server_says(acts: list[Act], naps: list[float]) -> None:
    slept: list[float] = []
    with serve(*acts, completion(REPLY)) as double:
        user = user_of(double.url, slept, retries=1)
        assert user.reply(TASK, "q", (), ()).ok
    assert slept == naps
    assert counts_of(user) == (1, 0, len(naps), 0)


def test_the_patience_with_a_busy_server_ends_and_is_not_spent_twice() -> None:
    naps: list[float] = []
    acts = [busy(**{"Retry-After": "40"})] * 4
    with serve(*acts, completion(REPLY), busy(), completion(REPLY)) as double:
        user = user_of(double.url, naps, patience_seconds=100)
        assert not user.reply(TASK, "q", (), ()).ok  # two pauses; a third would take more than 100 s
        assert not user.reply(TASK, "q", (), ()).ok  # no answer since, so no pause
        assert user.reply(TASK, "q", (), ()).ok
        assert user.reply(TASK, "q", (), ()).ok
    assert naps == [40.0, 40.0, 0.5]
    assert counts_of(user) == (4, 2, 3, 0)
    assert user.counts.last_error.startswith("HTTP 429")


def test_a_silent_server_is_given_up_in_time() -> None:
    with serve(always=hang) as double:
        user = user_of(double.url, timeout_seconds=0.3, retries=0)
        assert not user.judge(TASK, "q", (), (0, 1, 2)).ok
    assert counts_of(user) == (1, 1, 0, 0)
    assert user.counts.last_error == "no answer in time"


@pytest.mark.parametrize(
    ("status", "remedy"),
    [(401, "valid key"), (403, "access"), (404, "model's name"), (307, "redirect"), (405, "lead")],
)
def test_a_server_that_refuses_stops_the_run_with_one_line(status: int, remedy: str) -> None:
    elsewhere = {"Location": "http://192.0.2.1/v1"}
    with serve(always=send(KEY.encode(), status=status, **elsewhere)) as double:
        user = user_of(double.url)
        with pytest.raises(ServerError, match=f"HTTP {status}.*{remedy}") as caught:
            step_all([(env_of(TASK, user), [ToolCall("action", "q")]) for _ in range(8)])
    assert KEY not in str(caught.value)


def test_the_key_travels_in_its_header_and_stands_nowhere_else(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("MY_KEY", f"{KEY}\n")  # as read from a file
    with serve(completion(REPLY), always=send(KEY.encode(), status=500)) as double:
        connection = Connection(base_url=double.url, api_key_variable="MY_KEY", retries=0)
        user = load_simulator(Simulator(), AgentExecution(connection=connection))
        assert user.reply(TASK, "q", (), ()).text == "A small budget."
        user.reply(TASK, "q", (), ())
    assert double.headers[0]["authorization"] == f"Bearer {KEY}"
    texts = [caplog.text, user.counts.last_error, repr(vars(user)), repr(find_access(connection)), repr(connection)]
    assert not any(KEY in text for text in texts)
    assert "Authorization" not in json.dumps(double.requests)


def test_a_key_that_no_header_can_hold_is_refused_unseen() -> None:
    connection = Connection(base_url="http://127.0.0.1:1/v1")
    with pytest.raises(ServerError, match=r"OPENAI_API_KEY.*not shown") as caught:
        find_access(connection, {"OPENAI_API_KEY": f"{KEY}\r\nX-Evil: 1"})
    assert KEY not in str(caught.value)


def test_no_address_at_all_is_one_clear_line() -> None:
    with pytest.raises(ServerError, match=r"base_url .*OPENAI_BASE_URL"):
        load_simulator(Simulator(), AgentExecution())


@pytest.mark.parametrize(
    "url",
    [
        "127.0.0.1:8000/v1",
        "http://127.0.0.1:0/v1",
        "http://127.0.0.1/v1?key=secret",
        "http://me:secret@127.0.0.1/v1",
    ],
)
def test_an_address_that_is_none_is_refused_wherever_it_stands(url: str) -> None:
    for key, execution in (("connection", {"base_url": url}), ("served.gpt", {"gpt": {"base_url": url}})):
        with pytest.raises(ConfigError, match=rf"intention\.execution\.{key}\.base_url: must") as refusal:
            parse_experiment({"intention": {"execution": {key.partition(".")[0]: execution}}})
        assert "secret" not in str(refusal.value)
    with pytest.raises(ServerError, match="OPENAI_BASE_URL: ") as caught:
        find_access(Connection(), {"OPENAI_BASE_URL": url})
    assert "secret" not in str(caught.value)


def test_a_proxy_of_the_environment_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://192.0.2.1:3128")
    monkeypatch.delenv("no_proxy", raising=False)
    with serve(completion(REPLY)) as double:
        assert user_of(double.url).reply(TASK, "q", (), ()).ok


def test_a_user_without_a_temperature_is_sent_none() -> None:
    with serve(completion(REPLY)) as double:
        connection = Connection(base_url=double.url, token_limit_field="max_completion_tokens")
        config = Simulator(endpoint=Endpoint(temperature=None))
        assert load_simulator(config, AgentExecution(connection=connection)).reply(TASK, "q", (), ()).ok
    assert double.requests[0].keys() == {"model", "messages", "max_completion_tokens", "path"}


def test_a_date_to_wait_for_is_understood() -> None:
    headers = {"retry-after": "Wed, 21 Oct 2026 07:28:00 GMT"}
    assert pause_of(headers, 1792567680.0 - 90) == 90.0
    assert pause_of(headers, 1792567680.0 + 90) == 0.0


def test_a_request_that_starves_next_to_others_takes_no_patience_from_them() -> None:
    """Another request is answered during its first pause."""
    naps: list[float] = []
    first, last = ([busy(**{"Retry-After": seconds})] for seconds in ("40", "70"))
    with serve(*first, completion(REPLY), *last, busy(), completion(REPLY)) as double:
        connection = Connection(base_url=double.url, timeout_seconds=60.0, patience_seconds=100)

        def sleep(seconds: float) -> None:
            naps.append(seconds)
            if len(naps) == 1:
                assert user.reply(TASK, "q", (), ()).ok

        user = PromptedUser(Chat(find_access(connection, {}), connection, sleep=sleep), Endpoint(), leak_details=False)
        assert not user.reply(TASK, "q", (), ()).ok
        assert user.reply(TASK, "q", (), ()).ok
    assert naps == [40.0, 0.5]


def test_a_pause_beyond_all_patience_is_not_begun() -> None:
    naps: list[float] = []
    with serve(always=busy(**{"Retry-After": "198300"})) as double:
        user = user_of(double.url, naps)
        assert not user.reply(TASK, "q", (), ()).ok
    assert (naps, len(double.requests)) == ([], 1)
    assert "Retry-After: 198300 s" in user.counts.last_error
