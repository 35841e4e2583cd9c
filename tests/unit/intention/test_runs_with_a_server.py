"""Training against a server on this machine: what it answers may be kept and replayed, or be worth nothing."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from endpoint_double import Act, hang, say, send, serve
from trained_world import CODE, evaluation_of, files_of, measured, read_run, training, world

from lever_pipe.base import contents, storage
from lever_pipe.base.errors import SimulatorError, TrainingError
from lever_pipe.base.records import RunCard
from lever_pipe.experiment.agent_config import AgentExecution, Connection
from lever_pipe.experiment.agent_stage_configs import TrainAgentConfig
from lever_pipe.experiment.run_card import carry_out
from lever_pipe.experiment.stage_configs import Runtime
from lever_pipe.stages.evaluate_agent import evaluate_agent
from lever_pipe.stages.train_agent import train_agent

# Read as a reply and as a judgement alike.
ANSWER = json.dumps(
    {"response": "budget is low", "analysis": "a", "is_task_related": True, "covered_detail_indices": [0]}
)
ONE_STEP = {"steps": 1, "prompts": 2, "group": 2, "minibatches": 1, "evaluation": {"every": 1, "samples": 1}}


def asking(kind: str) -> TrainAgentConfig:
    config = training(**ONE_STEP)  # type: ignore[arg-type]
    return config.model_copy(update={"simulator": config.simulator.model_copy(update={"kind": kind})})


def train(
    run: Path, kind: str, *, url: str = "", tape: Path | None = None, is_input: bool = False, **values: Any
) -> None:
    connection = Connection(**{"base_url": url, "backoff_seconds": 0.0, "timeout_seconds": 60.0, **values})
    agent = AgentExecution(connection=connection, cassette=str(tape or "")).model_dump_json()
    files = {**files_of(run), "cassette": (tape,) if tape and is_input else ()}
    carry_out(train_agent, **files, config=asking(kind), runtime=Runtime(agent=agent, code=CODE))  # type: ignore[arg-type]


def test_a_recorded_run_is_replayed_and_its_cassette_is_an_input(tmp_path: Path) -> None:
    tape = tmp_path / "tape.jsonl"
    with serve(always=say(ANSWER)) as double:
        train(tmp_path / "recorded", "record", url=double.url, tape=tape)
    train(tmp_path / "replayed", "replay", tape=tape, is_input=True)
    recorded, replayed = read_run(tmp_path / "recorded"), read_run(tmp_path / "replayed")
    assert measured(replayed.metrics) == measured(recorded.metrics)
    assert replayed[1:] == recorded[1:]
    assert replayed.metrics[0].values["reward_max"] > 0
    card = storage.read_row(tmp_path / "replayed" / "run.json", RunCard)
    assert card.inputs["cassette[0]"] == contents.digest(tape)
    run = tmp_path / "replayed"
    held_out: dict[str, Any] = {"test_tasks": world() / "val.jsonl", "last": run / "last", "best": run / "last"}
    outputs = {"evaluations": run / "e.jsonl", "episodes": run / "p.jsonl", "dialogues": run / "d.jsonl"}
    with pytest.raises(SimulatorError, match="expected the recorded answer to every request"):
        evaluate_agent(
            **{**held_out, "test_tasks": world() / "test.jsonl"},
            done=run / "done.json",
            cassette=(tape,),
            **outputs,
            config=evaluation_of(asking("replay")),
            runtime=Runtime(code=CODE),
        )


@pytest.mark.parametrize(
    ("act", "values", "unreadable"),
    [
        (send(b"oops", status=500), {"retries": 1}, False),
        (send(b"<html><body>Bad gateway</body></html>", kind="text/html"), {"retries": 1}, True),
        (send(b'{"choices": [{"mess'), {"retries": 1}, True),
        (hang, {"retries": 0, "timeout_seconds": 0.2}, False),
    ],
    ids=["500", "HTML", "half a JSON", "hanging"],
)
def test_a_server_that_answers_nothing_ends_the_run_in_one_line(
    tmp_path: Path, act: Act, values: dict[str, Any], unreadable: bool
) -> None:
    with serve(always=act) as double, pytest.raises(TrainingError) as caught:
        train(tmp_path, "openai", url=double.url, **values)
    message = str(caught.value)
    assert "\n" not in message
    found = re.search(
        r"^greedy evaluation of split val at step 0: expected at most 5\.0% of .*; found (\d+) of (\d+) failed after"
        r" (\d+) retries, 0 turns out of time, (\d+) unreadable answers; the last fault: .*step_timeout_seconds",
        message,
    )
    assert found, message
    n_failures, n_requests, n_retries, n_unreadable = map(int, found.groups())
    assert n_failures == n_requests > 0
    assert n_retries == values["retries"] * n_requests
    assert n_unreadable == (n_requests + n_retries if unreadable else 0)
    assert len(double.requests) == n_requests + n_retries
    assert not (tmp_path / "done.json").exists()
