"""A key that is in the environment for a run against a server stands in nothing that the run leaves behind."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from endpoint_double import say, send, serve
from test_runs_with_a_server import ANSWER, train

from lever_pipe.base.errors import ConfigError, TrainingError
from lever_pipe.experiment.studies import parse_experiment
from lever_pipe.runtime import snapshot

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
    assert double.headers[0]["Authorization"] == f"Bearer {KEY}"
    assert (tmp_path / "run" / "run.json").is_file()
    assert holding(tmp_path) == []
    assert KEY not in caplog.text


def test_a_server_that_says_the_key_back_gets_it_into_no_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MY_KEY", KEY)
    caplog.set_level(logging.DEBUG)
    with (
        serve(always=send(KEY.encode(), status=500, **{"X-Key": KEY})) as double,
        pytest.raises(TrainingError) as ended,
    ):
        train(tmp_path, url=double.url, api_key_variable="MY_KEY", retries=0)
    assert KEY not in str(ended.value)
    assert holding(tmp_path) == []
    assert KEY not in caplog.text


@pytest.mark.parametrize("url", [f"https://{KEY}@host/v1", f"https://me:{KEY}@host/v1", f"ftp://host/v1?key={KEY}"])
def test_an_address_with_a_secret_is_refused_unseen_before_a_snapshot_holds_it(url: str) -> None:
    of = {"base_url": url}
    for key, execution in ((r"connection\.", {"connection": of}), (r"served\.gpt\.", {"served": {"gpt": of}})):
        with pytest.raises(ConfigError, match=rf"{key}base_url: must hold no name, password or query") as refusal:
            parse_experiment({"intention": {"execution": execution}})
        assert KEY not in str(refusal.value)


def test_a_snapshot_names_the_variable_and_not_its_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", KEY)
    monkeypatch.chdir(tmp_path)
    experiment = parse_experiment({"intention": {"execution": {"connection": {"api_key_variable": "MY_KEY"}}}})
    snakefile = tmp_path / "Snakefile"
    snakefile.write_text("")
    monkeypatch.setenv(snapshot.VARIABLE, "")
    snapshot.freeze(experiment.model_dump(mode="json"), {}, snakefile=snakefile)
    kept = [path for path in tmp_path.rglob("*") if path.is_file() and b"MY_KEY" in path.read_bytes()]
    assert kept
    assert holding(tmp_path) == []
