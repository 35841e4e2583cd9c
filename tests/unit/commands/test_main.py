from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from builders import embedding_arrays

from lever_pipe.__main__ import TOOLS, main
from lever_pipe.base import storage
from lever_pipe.base.provenance import stages
from lever_pipe.base.records import EpochMetrics
from lever_pipe.experiment.selector import InitialiseSelectorConfig, Selector
from lever_pipe.runtime.command_words import ConfiguredCommand, SnakemakeCommand

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
    assert main(["stage", "initialise_selector", *words(tmp_path), "--spec", spec]) == 0
    row = storage.read_row(tmp_path / "metrics", EpochMetrics)
    assert str(row.policy) == "preset~p/init/seed~3"
    assert all((tmp_path / name).exists() for name in FILES)


def test_an_unknown_stage_is_suggested(capsys: pytest.CaptureFixture[str]) -> None:
    assert "Did you mean 'initialise_selector'?" in problem(capsys, "stage", "initialize_selector", "--spec", "{}")
    assert "Did you mean 'compare'?" in problem(capsys, "compar")
    assert "List them all: lever-pipe --help" in problem(capsys, "initialise_selector", "--spec", "{}")


def test_help_lists_the_tools_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(f"\n  {name} " in text for name in TOOLS)
    assert not any(name in text for name in stages())


def test_a_shell_completes_tools_and_options() -> None:
    words = {"lever-pipe co": "1", "lever-pipe release --li": "2"}
    found = []
    for text, position in words.items():
        asked = {"_LEVER_PIPE_COMPLETE": "bash_complete", "COMP_WORDS": text, "COMP_CWORD": position}
        call = [Path(sys.executable).with_name("lever-pipe")]
        found.append(subprocess.run(call, env=os.environ | asked, capture_output=True, text=True, check=False).stdout)
    assert found == ["plain,compare\nplain,convert\n", "plain,--license\n"]


def test_an_option_may_have_several_values_as_for_snakemake() -> None:
    @click.command(cls=ConfiguredCommand)
    @click.argument("what")
    def command(what: str, **words: Any) -> tuple[str, Any]:
        return what, words

    def given(*words: str) -> Any:
        return command.main(list(words), standalone_mode=False)

    configured = {"configfile": (Path("a"), Path("b")), "config": ("x=1", "y=2")}
    assert given("e12", "--configfile", "a", "b", "--config", "x=1", "y=2") == ("e12", configured)
    with pytest.raises(click.BadOptionUsage):
        given("e12", "--config")


def test_words_for_snakemake_pass_unchanged() -> None:
    @click.command(cls=SnakemakeCommand)
    @click.option("--json", is_flag=True)
    def command(json: bool, words: tuple[str, ...]) -> tuple[bool, tuple[str, ...]]:
        return json, words

    words = ["--configfile", "a", "b", "-j4", "-np", "--", "target", "--json"]
    assert command.main([*words[:3], "--json", *words[3:]], standalone_mode=False) == (True, tuple(words))


def test_missing_unknown_and_repeated_files_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = words(tmp_path, "manifest", "metrics")
    text = problem(capsys, "stage", "initialise_selector", *given, "colour=x", "selector=y", "--spec", SPEC)
    assert "initialise_selector: expected the files embeddings, start, selector, optimiser, metrics, manifest;" in text
    assert "missing ['manifest', 'metrics'], unknown ['colour'], repeated ['selector']" in text
    assert "expected name=path; found 'x'" in problem(capsys, "stage", "initialise_selector", "x", "--spec", SPEC)


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
    text = problem(capsys, "stage", "initialise_selector", *words(tmp_path), "--spec", spec)
    assert text.startswith("ConfigError: ")
    assert message in text


def test_a_problem_inside_a_stage_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = problem(capsys, "stage", "initialise_selector", *words(tmp_path), "--spec", SPEC)
    assert text.startswith(f"RecordError: {tmp_path}/embeddings: expected a file; found none.")
    assert text.count("\n") == 1
    assert not (tmp_path / "selector").exists()


def test_a_stage_that_fails_leaves_no_manifest_next_to_files_of_two_calls(tmp_path: Path) -> None:
    storage.write_arrays(tmp_path / "embeddings", embedding_arrays(4))
    call = ["stage", "initialise_selector", *words(tmp_path), "--spec", SPEC]
    assert main(call) == 0
    assert main([*call, "colour=x"]) == 2
    assert (tmp_path / "manifest").exists(), "a mistaken call touches nothing"
    (tmp_path / "embeddings").write_bytes(b"")
    assert main(call) == 2
    assert not (tmp_path / "manifest").exists()
