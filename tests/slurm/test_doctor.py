"""The preflight on a real cluster: what is well, and what is not."""

from __future__ import annotations

import subprocess
import sys

import pytest

from .conftest import ClusterProject, Project
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
    assert any(line.startswith("ok") and "main" in line for line in lines), done.stdout  # the default partition


def test_what_the_cluster_lacks_is_said_before_anything_is_submitted(
    project: ClusterProject, finished: Project
) -> None:
    project.forget(FIRST, SECOND)
    last = project.cluster.last_id()
    lacking = ("--set-resources", "train_grpo_epoch:slurm_partition=none", "train_rce_epoch:slurm_partition=none")
    done = doctor(project, *lacking, *TARGET)
    assert done.returncode == 2
    assert "expected one of gpu, main, scavenge, scavkill, short; found none" in done.stdout
    said = project.start(*lacking, *TARGET).fail()
    assert "Nothing was submitted" in said
    assert project.cluster.last_id() == last
    project.snakemake("--cores", "2", *TARGET)  # the lock is free again
    project.same(finished, f"{SECOND}/selector.safetensors")
