from __future__ import annotations

import json
from pathlib import Path

import pytest
from builders import embedding_arrays

from lever_pipe.__main__ import main
from lever_pipe.base import storage
from lever_pipe.base.records import EpochMetrics
from lever_pipe.experiment.selector import InitialiseSelectorConfig, Selector

FILES = ("embeddings", "selector", "optimiser", "metrics", "manifest")
CONFIG = InitialiseSelectorConfig(preset="p", selector=Selector(width=8), seed=3)
SPEC = CONFIG.model_dump_json()


def words(folder: Path, *leave_out: str) -> list[str]:
    return [f"{name}={folder / name}" for name in FILES if name not in leave_out]


def problem(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Return the one message that a refused call prints."""
    assert main(arguments) == 2
    text = capsys.readouterr().err
    assert "Traceback" not in text
    assert text.endswith("\n")
    return text


@pytest.mark.parametrize("wrap", [False, True], ids=["config alone", "spec of the workflow"])
def test_a_stage_runs_as_the_workflow_calls_it(tmp_path: Path, wrap: bool) -> None:
    storage.write_arrays(tmp_path / "embeddings", embedding_arrays(4))
    spec = json.dumps({"code": "x", "config": json.loads(SPEC)}) if wrap else SPEC
    assert main(["initialise_selector", *words(tmp_path), "--spec", spec]) == 0
    row = storage.read_row(tmp_path / "metrics", EpochMetrics)
    assert str(row.policy) == "preset~p/init/seed~3"
    assert all((tmp_path / name).exists() for name in FILES)


def test_an_unknown_stage_is_suggested(capsys: pytest.CaptureFixture[str]) -> None:
    text = problem(capsys, "initialize_selector", "--spec", "{}")
    assert text.startswith("ConfigError: expected a tool (doctor, plan, ")
    assert "found 'initialize_selector'. Did you mean 'initialise_selector'?" in text
    assert "Did you mean 'compare'?" in problem(capsys, "compar")
    assert "List them all: lever-pipe --help" in problem(capsys, "zzz", "--spec", "{}")
    assert "or a stage; found '--spec'" in problem(capsys, "--spec", "{}", "score_answers")


def test_missing_unknown_and_repeated_files_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = words(tmp_path, "manifest", "metrics")
    text = problem(capsys, "initialise_selector", *given, "colour=x", "selector=y", "--spec", SPEC)
    assert "initialise_selector: expected the files embeddings, start, selector, optimiser, metrics, manifest;" in text
    assert "missing ['manifest', 'metrics'], unknown ['colour'], repeated ['selector']" in text
    assert "expected name=path; found 'x'" in problem(capsys, "initialise_selector", "x", "--spec", SPEC)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("{", "initialise_selector --spec: expected a JSON object; found "),
        ("[]", "initialise_selector --spec: expected a JSON object; found list."),
        ('{"preset": "p", "sed": 3}', "sed: unknown key. Did you mean 'seed'?"),
        ("{}", "3 problems"),
    ],
)
def test_a_malformed_spec_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str], spec: str, message: str) -> None:
    text = problem(capsys, "initialise_selector", *words(tmp_path), "--spec", spec)
    assert text.startswith("ConfigError: ")
    assert message in text


def test_a_problem_inside_a_stage_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = problem(capsys, "initialise_selector", *words(tmp_path), "--spec", SPEC)
    assert text.startswith(f"RecordError: {tmp_path}/embeddings: expected a file; found none.")
    assert text.count("\n") == 1
    assert not (tmp_path / "selector").exists()


def test_a_stage_that_fails_leaves_no_manifest_next_to_files_of_two_calls(tmp_path: Path) -> None:
    storage.write_arrays(tmp_path / "embeddings", embedding_arrays(4))
    call = ["initialise_selector", *words(tmp_path), "--spec", SPEC]
    assert main(call) == 0
    assert main([*call, "colour=x"]) == 2
    assert (tmp_path / "manifest").exists(), "a mistaken call touches nothing"
    (tmp_path / "embeddings").write_bytes(b"")
    assert main(call) == 2
    assert not (tmp_path / "manifest").exists()
