"""The preflight on a real cluster."""

from __future__ import annotations

import subprocess
import sys

import pytest

from .conftest import ClusterProject
from .test_interruptions import FIRST, SECOND, TARGET

pytestmark = pytest.mark.slurm

CALL = ("--workflow-profile", "profiles/slurm", "--configfile", "config/smoke.yaml")


def doctor(project: ClusterProject, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "lever_pipe", "doctor", *CALL, *words]
    return subprocess.run(
        command, cwd=project.folder, env=project.environment, capture_output=True, text=True, timeout=120, check=False
    )


def test_a_sound_cluster_passes(project: ClusterProject) -> None:
    project.forget(FIRST, SECOND)
    done = doctor(project, *TARGET)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[-1] == "ok       earlier jobs: none in the queue"
