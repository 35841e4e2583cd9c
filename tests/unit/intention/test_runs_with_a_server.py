"""Training against a local server: its answers may be worthless, and no file contains its key."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from endpoint_double import completion, serve
from trained_world import train_here, training

from lever_pipe.base.chat import Connection

# Read both as a reply and as a judgement.
ANSWER = json.dumps(
    {"response": "budget is low", "analysis": "a", "is_task_related": True, "covered_detail_indices": [0]}
)
ONE_STEP = {"steps": 1, "prompts": 2, "group": 2, "minibatches": 1, "evaluation": {"every": 1, "samples": 1}}


def train(run: Path, *, url: str, **values: Any) -> None:
    config = training(**ONE_STEP)  # type: ignore[arg-type]
    asking = config.model_copy(update={"simulator": config.simulator.model_copy(update={"kind": "openai"})})
    connection = Connection(**{"base_url": url, "backoff_seconds": 0.0, "timeout_seconds": 60.0, **values})
    train_here(run, asking, connection=connection)


KEY = "sk-a-key-of-no-one"


def holding(folder: Path) -> list[Path]:
    """Return the files below a folder that contain the key."""
    return [path for path in folder.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()]


def test_no_file_and_no_log_line_of_a_run_holds_the_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MY_KEY", KEY)
    caplog.set_level(logging.DEBUG)
    with serve(always=completion(ANSWER)) as double:
        train(tmp_path / "run", url=double.url, api_key_variable="MY_KEY")
    assert double.headers[0]["authorization"] == f"Bearer {KEY}"
    assert (tmp_path / "run" / "run.json").is_file()
    assert holding(tmp_path) == []
    assert KEY not in caplog.text
