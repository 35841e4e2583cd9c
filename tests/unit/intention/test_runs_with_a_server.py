"""Training against a server on this machine: what it answers may be worth nothing."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from endpoint_double import Act, hang, send, serve
from trained_world import CODE, files_of, training

from lever_pipe.base.errors import TrainingError
from lever_pipe.experiment.agent_config import AgentExecution, Connection
from lever_pipe.experiment.run_card import carry_out
from lever_pipe.experiment.stage_configs import Runtime
from lever_pipe.stages.agent_training import train_agent

# Read as a reply and as a judgement alike.
ANSWER = json.dumps(
    {"response": "budget is low", "analysis": "a", "is_task_related": True, "covered_detail_indices": [0]}
)
ONE_STEP = {"steps": 1, "prompts": 2, "group": 2, "minibatches": 1, "evaluation": {"every": 1, "samples": 1}}


def train(run: Path, *, url: str, **values: Any) -> None:
    config = training(**ONE_STEP)  # type: ignore[arg-type]
    asking = config.model_copy(update={"simulator": config.simulator.model_copy(update={"kind": "openai"})})
    connection = Connection(**{"base_url": url, "backoff_seconds": 0.0, "timeout_seconds": 60.0, **values})
    agent = AgentExecution(connection=connection).model_dump_json()
    carry_out(train_agent, **files_of(run), config=asking, runtime=Runtime(agent=agent, code=CODE))  # type: ignore[arg-type]


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
        train(tmp_path, url=double.url, **values)
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
