from __future__ import annotations

import fcntl
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from endpoint_double import judgement, say, send, serve
from intention_cases import env_of, task_of

from lever_pipe.base.errors import RecordError, SimulatorError
from lever_pipe.experiment.agent_config import AgentExecution, Connection, Endpoint, Simulator
from lever_pipe.intention.environment import StepResult, load_simulator
from lever_pipe.intention.simulators._cassette import Cassette, request_hash
from lever_pipe.intention.simulators._prompted import UnreadableError
from lever_pipe.intention.simulators.protocol import UserSimulator

KEYS = [request_hash({"messages": [i]}) for i in range(100)]
TASK = task_of(3, 2, 1)
QUESTIONS = ("budget?", "when?", "how long?")


def load(kind: str, cassette: Path, url: str = "", **endpoint: Any) -> UserSimulator:
    connection = Connection(base_url=url, retries=1, backoff_seconds=0.0, timeout_seconds=60.0)
    config = Simulator(kind=kind, endpoint=Endpoint(**endpoint))
    return load_simulator(config, AgentExecution(connection=connection, cassette=str(cassette)))


def episode(user: UserSimulator) -> list[StepResult]:
    env = env_of(TASK, user)
    return [env.step("action", question) for question in QUESTIONS if not env.done]


def server_script() -> list[Any]:
    replies = [json.dumps({"response": f"reply {i}"}) for i in range(3)]
    judgements = [judgement(), judgement(1), judgement(0, 1)]
    return [say(words) for pair in zip(replies, judgements, strict=True) for words in pair]


def test_a_recorded_episode_is_replayed_without_any_server(tmp_path: Path) -> None:
    tape = tmp_path / "deep" / "tape.jsonl"
    with serve(send(b"", status=500), *server_script()) as double:
        recorded = episode(load("record", tape, double.url))
    assert [result.reward for result in recorded] == [0.0, 0.7, 0.8]
    user = load("replay", tape)
    assert episode(user) == recorded
    assert (user.counts.requests, user.counts.failures) == (6, 0)
    assert len(tape.read_text().splitlines()) == 6


def test_recording_again_asks_only_what_is_unknown(tmp_path: Path) -> None:
    tape = tmp_path / "tape.jsonl"
    with serve(*server_script()) as double:
        first = episode(load("record", tape, double.url))
        again = load("record", tape, double.url)
        assert episode(again) == first
        assert again.counts.requests == 6
    assert len(double.requests) == 6


def test_failures_are_not_recorded(tmp_path: Path) -> None:
    tape = tmp_path / "tape.jsonl"
    with serve(always=say('{"response": ""}')) as double:
        user = load("record", tape, double.url)
        assert not user.reply(TASK, "q", (), ()).ok
    assert (user.counts.failures, user.counts.malformed) == (1, 2)
    assert tape.read_text() == ""


@pytest.mark.parametrize("change", [{"model": "other"}, {"temperature": 0.5}, {"max_tokens": 7}])
def test_replay_refuses_what_was_never_asked(tmp_path: Path, change: dict[str, Any]) -> None:
    tape = tmp_path / "tape.jsonl"
    with serve(*server_script()) as double:
        episode(load("record", tape, double.url))
    assert load("replay", tape).reply(TASK, "budget?", (), ()).ok
    with pytest.raises(SimulatorError, match=r"tape\.jsonl: .*hash [0-9a-f]{64}\. Record the cassette"):
        load("replay", tape, **change).reply(TASK, "budget?", (), ())
    with pytest.raises(SimulatorError, match="hash"):
        load("replay", tape).reply(TASK, "another question", (), ())


def test_the_server_is_no_part_of_a_request(tmp_path: Path) -> None:
    tape = tmp_path / "tape.jsonl"
    with serve(*server_script()) as double:
        episode(load("record", tape, double.url))
    assert double.url not in tape.read_text()
    assert load("record", tape, "http://127.0.0.1:1/elsewhere").reply(TASK, "budget?", (), ()).ok


def test_the_first_answer_counts_for_all_who_record(tmp_path: Path) -> None:
    one, other = (Cassette(tmp_path / "t", is_writable=True) for _ in range(2))
    one.keep(KEYS[0], "first")
    other.keep(KEYS[0], "second")
    assert other.read(KEYS[0], str) == "first"
    assert Cassette(tmp_path / "t", is_writable=False).read(KEYS[0], str) == "first"


def test_many_writers_tear_nothing(tmp_path: Path) -> None:
    path = tmp_path / "t"
    writers = [Cassette(path, is_writable=True) for _ in range(4)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda i: writers[i % 4].keep(KEYS[i // 4], f"answer {i} " + "x" * 5000), range(400)))
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert sorted(line["request"] for line in lines) == sorted(KEYS)
    final = Cassette(path, is_writable=False)
    known = {line["request"]: line["response"] for line in lines}
    assert all(final.read(key, str) == known[key] for key in KEYS)
    for writer in writers:
        assert all(writer.read(key, str) == known[key] for key in KEYS if key in writer)


def test_a_torn_last_line_is_dropped_by_the_next_writer(tmp_path: Path) -> None:
    path = tmp_path / "t"
    Cassette(path, is_writable=True).keep(KEYS[0], "a\u2028b\nc")
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:20])
    assert Cassette(path, is_writable=False).read(KEYS[0], str) == "a\u2028b\nc"
    Cassette(path, is_writable=True).keep(KEYS[1], "next")
    assert path.read_bytes().startswith(whole)
    assert len(path.read_bytes().splitlines()) == 2
    assert Cassette(path, is_writable=False).read(KEYS[1], str) == "next"


def test_a_writer_waits_for_another_process(tmp_path: Path) -> None:
    path = tmp_path / "t"
    cassette = Cassette(path, is_writable=True)
    writer = Thread(target=cassette.keep, args=(KEYS[0], "answer"))
    with path.open("rb") as handle:  # a lock belongs to the open file, so that this one stands for another process
        fcntl.flock(handle, fcntl.LOCK_EX)
        writer.start()
        writer.join(0.2)  # longer than an append takes; a writer that waits passes whatever the machine's pace
        assert writer.is_alive()
    writer.join()
    assert Cassette(path, is_writable=False).read(KEYS[0], str) == "answer"


@pytest.mark.parametrize(
    "line",
    [
        "",
        "[]",
        "half",
        '{"request": "x", "response": "y"}',
        json.dumps({"request": KEYS[1]}),
        '{"request": 1, "response": 2}',
    ],
)
def test_a_line_that_is_no_take_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "t"
    Cassette(path, is_writable=True).keep(KEYS[0], "a")
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(RecordError, match=r"/t:2: expected a request's hash"):
        Cassette(path, is_writable=False)


def test_a_missing_cassette_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(
        SimulatorError,
        match=r"none\.jsonl: expected a cassette; found No such file.*kind: record, of .* or of the served",
    ):
        load("replay", tmp_path / "none.jsonl")
    with pytest.raises(SimulatorError, match="expected a cassette"):
        load("record", tmp_path, "http://127.0.0.1:1/v1")  # a folder


def test_an_answer_that_can_no_longer_be_read_is_named(tmp_path: Path) -> None:
    def refuse(text: str) -> str:
        raise UnreadableError("a reply without words")

    cassette = Cassette(tmp_path / "t", is_writable=True)
    cassette.keep(KEYS[0], "")
    with pytest.raises(SimulatorError, match=f"a reply without words to the request with hash {KEYS[0]}"):
        cassette.read(KEYS[0], refuse)


def test_a_full_disk_is_no_failure_of_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Cassette, key: str, response: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Cassette, "_append", full)
    with serve(*server_script()) as double:
        user = load("record", tmp_path / "t", double.url)
        with pytest.raises(SimulatorError, match="No space left on device"):
            user.reply(TASK, "budget?", (), ())
    assert user.counts.failures == 0
