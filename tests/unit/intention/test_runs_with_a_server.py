"""Training against a server on this machine: its answers may be worth nothing, and its key stands in no file."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest
from endpoint_double import Act, hang, say, send, serve
from trained_world import train_here, training

from lever_pipe.base.chat import Connection
from lever_pipe.base.errors import TrainingError

# Read as a reply and as a judgement alike.
ANSWER = json.dumps(
    {"response": "budget is low", "analysis": "a", "is_task_related": True, "covered_detail_indices": [0]}
)
ONE_STEP = {"steps": 1, "prompts": 2, "group": 2, "minibatches": 1, "evaluation": {"every": 1, "samples": 1}}


def train(run: Path, *, url: str, **values: Any) -> None:
    config = training(**ONE_STEP)  # type: ignore[arg-type]
    asking = config.model_copy(update={"simulator": config.simulator.model_copy(update={"kind": "openai"})})
    connection = Connection(**{"base_url": url, "backoff_seconds": 0.0, "timeout_seconds": 60.0, **values})
    train_here(run, asking, connection=connection)


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


KEY = "sk-a-key-of-no-one"


def holding(folder: Path) -> list[Path]:
    """Return the files below a folder in which the key stands."""
    return [path for path in folder.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()]


def test_no_file_and_no_log_line_of_a_run_holds_the_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MY_KEY", KEY)
    caplog.set_level(logging.DEBUG)
    with serve(always=say(ANSWER)) as double:
        train(tmp_path / "run", url=double.url, api_key_variable="MY_KEY")
    assert double.headers[0]["authorization"] == f"Bearer {KEY}"
    assert (tmp_path / "run" / "run.json").is_file()
    assert holding(tmp_path) == []
    assert KEY not in caplog.text
