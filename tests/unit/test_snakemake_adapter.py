"""A rule's plain call starts as a fork; whatever else a shell could read in a command starts as Snakemake starts it."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import import_module
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from snakemake.shell import shell

from lever_pipe.runtime.forks import Job
from lever_pipe.runtime.snakemake_adapter import PREFIX, Call, call_in, start_calls_by

PLAIN = "python -m lever_pipe train --spec '{\"a\": 1}' 'x=a b/~c' --threads 1 > log.txt 2>&1"


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Call]:
    """Put an own way to start in Snakemake's place, and return what came to it."""
    module = import_module("snakemake.shell")
    monkeypatch.setattr(module, "sp", subprocess)
    calls: list[Call] = []

    def start(call: Call, environment: Any) -> Job:
        assert environment["OMP_NUM_THREADS"] == "1"
        calls.append(call)
        job = Job()
        job.has_started(os.getpid())
        job.has_ended(len(call.words) % 2)
        return job

    start_calls_by(start)
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])  # noqa: PTH120
    monkeypatch.setenv("PATH", path)
    return calls


def test_a_plain_call_is_started_and_its_status_counts(started: list[Call]) -> None:
    shell("python -m lever_pipe train x > log.txt 2>&1")
    with pytest.raises(subprocess.CalledProcessError):  # of a job with an odd number of words
        shell("python -m lever_pipe train --spec '{{\"a\": 1}}' > 'a log' 2>&1")
    assert started == [Call(["train", "x"], "log.txt"), Call(["train", "--spec", '{"a": 1}'], "a log")]


@pytest.mark.parametrize(
    "command",
    [
        PLAIN.replace("> log", ">> log"),
        PLAIN.replace(" 2>&1", ""),
        PLAIN + "; true",
        PLAIN.replace("--threads 1", "--threads $(nproc)"),
        PLAIN.replace("--threads 1", "--threads $N"),
        PLAIN.replace("--threads 1", "*"),
        PLAIN.replace("--threads 1", "| tee x"),
        PLAIN.replace("'x=a b/~c'", "~/x"),
        "nice " + PLAIN,
        "A=1 " + PLAIN,
        PLAIN.replace("lever_pipe", "lever_pipe_x"),
        PLAIN.replace("python", "python3"),
        PLAIN.replace("'x=a", "x=a"),
        "true",
        "",
    ],
)
def test_anything_else_is_left_to_the_shell(command: str) -> None:
    assert call_in(PREFIX + " " + command) is None


def test_an_edited_command_runs_in_the_shell(started: list[Call]) -> None:
    shell("true; true")
    with pytest.raises(subprocess.CalledProcessError):
        shell("false")
    assert not started


@given(st.lists(st.text(st.characters(min_codepoint=32, exclude_categories=["Cs"]), max_size=8), max_size=4))
def test_words_come_back_as_a_shell_reads_them(words: list[str]) -> None:
    import shlex

    command = f"{PREFIX} {shlex.join(['python', '-m', 'lever_pipe', *words])} > 'a b' 2>&1"
    assert call_in(command) == Call(words, "a b")
