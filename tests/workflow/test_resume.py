"""A killed run leaves whole files or none, and goes on to the same bits; imported RL data train the same selector."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from .conftest import Project

pytestmark = [pytest.mark.workflow, pytest.mark.xdist_group("smoke")]

SELECTOR = "lever/preset~world/grpo/base~2/beta~0.15/seed~0/epoch~2/selector.safetensors"
FIRST_RCE = "lever/preset~world/rce/seed~0/epoch~1/selector.safetensors"


def kill_after(project: Project, results: str, present: str) -> None:
    """Start a run and kill it with all its jobs once a file is there."""
    project.snakemake("--unlock", "--config", f"results={results}")  # a killed run leaves its lock
    run = subprocess.Popen(
        project.command("--cores", "2", "--config", f"results={results}", "--", f"{results}/{SELECTOR}"),
        cwd=project.folder,
        env=project.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    deadline = time.monotonic() + 120
    while not (project.folder / results / present).exists():
        assert run.poll() is None, "the run ended before the file appeared"
        assert time.monotonic() < deadline
        time.sleep(0.05)
    time.sleep(0.8)  # into the next job
    os.killpg(run.pid, signal.SIGKILL)
    run.wait()


def require_whole(folder: Path) -> int:
    """Check that every structured file under a folder parses; return how many there are."""
    from safetensors import safe_open

    checked = 0
    for path in folder.rglob("*"):
        if path.name.endswith("benchmark.jsonl") or "ledger" in path.parts:
            continue
        if path.suffix == ".json":
            json.loads(path.read_text())
        elif path.suffix == ".jsonl":
            for line in path.read_text().splitlines():
                json.loads(line)
        elif path.suffix == ".safetensors":
            with safe_open(path, "pt") as tensors:
                tensors.keys()
        else:
            continue
        checked += 1
    return checked


def test_a_killed_run_goes_on_to_the_same_bits(smoke: Project) -> None:
    results = "results/killed"
    kill_after(smoke, results, "lever/rl_data/proposals.jsonl")
    assert require_whole(smoke.folder / results) > 5
    kill_after(smoke, results, FIRST_RCE)
    assert require_whole(smoke.folder / results) > 10
    smoke.snakemake("--unlock", "--config", f"results={results}")
    smoke.snakemake("--cores", "2", "--config", f"results={results}", "--", f"{results}/{SELECTOR}")
    done, whole = (smoke.folder / root / SELECTOR for root in (results, "results/smoke"))
    assert done.read_bytes() == whole.read_bytes()


def test_exported_rl_data_import_to_the_same_selector(smoke: Project) -> None:
    rl_data = smoke.folder / "results/smoke/lever/rl_data/rl_data_k64_v3.jsonl"
    original = smoke.folder / "rl_data_k64_v3.json"
    smoke.tool("export_rl_data", str(rl_data), str(original))
    words = ("--config", "results=results/imported", "rl_data={import_from: rl_data_k64_v3.json}")
    planned = smoke.planned(*words)
    assert planned["import_rl_data"] == 1
    assert not planned.keys() & {"generate_rl_data", "propose_trajectories", "merge_rl_data"}
    smoke.snakemake("--cores", "2", *words, "--", f"results/imported/{FIRST_RCE}")
    imported, generated = (smoke.folder / root / FIRST_RCE for root in ("results/imported", "results/smoke"))
    assert imported.read_bytes() == generated.read_bytes()
