"""The executors start jobs as Snakemake would, and run none that is made already."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lever_pipe.runtime.reruns import skip

HERE, REPOSITORY = Path(__file__).parents[1], Path(__file__).parents[3]
SNAKEFILE = """
from lever_pipe.runtime import forks

rule all:
    input: "done"

rule plain:
    log: "{word}.log"
    output: "{word}.made"
    shell: "python -m lever_pipe {wildcards.word} a > {log:q} 2>&1"

rule other:
    output: "done"
    shell: "touch {output}"

onstart:
    forks.FROM_JOB = 1
    forks.fork_calls(["forked_calls"])
    server = forks.server_for(dict(os.environ, OMP_NUM_THREADS="1"))
    assert forks._servers["1"].until_ready(600)
"""


def test_a_job_that_is_made_is_reported_and_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    completed, other = SimpleNamespace(name="made"), SimpleNamespace(name="other")
    reported: list[Any] = []
    executor = SimpleNamespace(report_job_success=lambda info: reported.append(info.job))
    assert skip.report_completed(executor, [completed, other]) == [completed, other], "another workflow"
    monkeypatch.setattr(skip, "_conditions", [])
    skip.skip_if(lambda job: job is completed)
    assert skip.report_completed(executor, [completed, other]) == [other]
    assert reported == [completed]


def snakemake(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    (folder / "Snakefile").write_text(SNAKEFILE)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = os.environ | {"PATH": path, "PYTHONPATH": f"{REPOSITORY}:{HERE}", "REPLY": "forked"}
    command = [sys.executable, "-m", "snakemake", "--cores", "1", "--executor", "local", *words]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_a_plain_call_is_forked_and_its_end_is_told_as_a_commands_and_any_other_runs_as_ever(tmp_path: Path) -> None:
    done = snakemake(tmp_path, "--keep-going", "say.made", "kill.made", "done")
    assert done.returncode == 1
    assert (tmp_path / "done").exists()
    assert (tmp_path / "say.log").read_text() == f"forked {tmp_path} a\n"
    assert "Missing files" in done.stderr, "of the stage that says what it was told, and makes no file"
    assert "died with <Signals.SIGKILL: 9>" in done.stderr
    assert "python -m lever_pipe kill a > kill.log 2>&1" in done.stderr
