"""One of the processes that share a job dies: the job fails soon and says so, and no answer is lost or asked again."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from builders import random_pools
from lvlm_world import CODE, LVLM, N_TRAIN, lvlm_config, world
from private_mounts import ROOT

from lever_pipe.base import storage
from lever_pipe.base.records import Proposal
from lever_pipe.experiment.run_card import carry_out
from lever_pipe.experiment.stage_configs import GenerateRlDataConfig, Runtime
from lever_pipe.lvlms.asking.ledger import ROWS_PER_CHUNK
from lever_pipe.stages.rl_data import generate_rl_data

pytestmark = pytest.mark.faults
N_QUERIES, N_SELECTIONS = 40, 20
BOUND_S = 40  # to end after a death; the launcher looks ten times a second, and tearing down takes seconds
# Stops one process when its first answers are on disk, so that the others come to where they wait for it.
STOPPING = """
import os, signal, threading, time
from pathlib import Path

def watch():
    while not any(path.stat().st_size for path in Path(os.environ["STOP_IN"]).glob(f"*-{os.getpid()}-*.jsonl")):
        time.sleep(0.001)
    os.kill(os.getpid(), signal.SIGSTOP)

if os.environ.get("RANK") == os.environ.get("STOP_RANK"):
    threading.Thread(target=watch, daemon=True).start()
"""


@dataclass(frozen=True)
class Job:
    """A job whose inputs lie in a folder; several runs of it differ in where their results go."""

    folder: Path

    def files(self, run: str) -> dict[str, Path]:
        """Return the files of a run by their names in the stage."""
        inputs = {
            "proposals": self.folder / "proposals.jsonl",
            "train_pools": self.folder / "pools.jsonl",
            "train_examples": self.folder / "world" / "train.jsonl",
            "train_images": self.folder / "world" / "train_images",
            "lvlm": LVLM,
        }
        out = self.folder / run
        outputs = {"trajectories": "trajectories.jsonl", "counters": "counters.json", "card": "run.json"}
        return inputs | {name: out / file for name, file in outputs.items()}

    @property
    def config(self) -> GenerateRlDataConfig:
        """Return the identity of all runs."""
        return GenerateRlDataConfig(lvlm=lvlm_config(), shard=0, n_shards=1, shots=2, diversity_budget=0, seed=0)

    def ledger(self, run: str) -> Path:
        """Return the folder of a run's answers."""
        return self.folder / run / "ledger"

    def here(self, run: str) -> bytes:
        """Run the stage in this process; return the bytes of its trajectories."""
        files, runtime = self.files(run), Runtime(ledger=str(self.ledger(run)), code=CODE)
        carry_out(generate_rl_data, **files, config=self.config, runtime=runtime)
        return files["trajectories"].read_bytes()

    def command(self, run: str) -> list[str]:
        """Return the command of a run with two processes."""
        words = [f"{name}={path}" for name, path in self.files(run).items()]
        spec = json.dumps({"code": CODE, "config": self.config.model_dump(mode="json")})
        options = ["--spec", spec, "--ledger", str(self.ledger(run)), "--processes", "2"]
        return [sys.executable, "-m", "lever_pipe", "generate_rl_data", *words, *options]


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """Return a job of more than two chunks of answers for each of two processes, with its inputs written."""
    folder, rng = tmp_path_factory.mktemp("job"), np.random.default_rng(0)
    pools = random_pools(N_QUERIES, N_TRAIN)
    drawn = [(pool, rng.permutation(len(pool.candidates))[:2].tolist()) for pool in pools for _ in range(N_SELECTIONS)]
    proposals = [
        Proposal(
            query_id=pool.query_id,
            pointer=tuple(pointer),
            pointer_global=tuple(pool.candidates[place] for place in pointer),
            gen_method="random",
        )
        for pool, pointer in drawn
    ]
    storage.write_rows(folder / "pools.jsonl", pools)
    storage.write_rows(folder / "proposals.jsonl", proposals)
    shutil.copytree(world(), folder / "world")
    return Job(folder)


@contextmanager
def started(job: Job, run: str, rank: int) -> Iterator[subprocess.Popen[str]]:
    """Run two processes of which one stops in the middle of its wave."""
    place = job.folder / run / "site"
    storage.write_text(place / "sitecustomize.py", STOPPING)
    values = {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(map(str, (ROOT, place)))}
    values |= {"STOP_RANK": str(rank), "STOP_IN": str(job.ledger(run))}
    with subprocess.Popen(
        job.command(run),
        cwd=ROOT,
        env={**os.environ, **values},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def until(happened: Callable[[], bool], what: str, bound_s: float = 90) -> None:
    deadline = time.monotonic() + bound_s
    while not happened():
        assert time.monotonic() < deadline, f"expected within {bound_s} s: {what}"
        time.sleep(0.02)


def stopped(ledger: Path) -> int:
    """Return the number of the writer that is stopped, or 0."""
    for path in ledger.glob("*.jsonl"):
        pid = int(path.stem.split("-")[-2])
        try:
            state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
        except OSError:
            continue
        if state in "Tt":
            return pid
    return 0


def answered(ledger: Path) -> int:
    return sum(path.read_bytes().count(b"\n") for path in ledger.glob("*.jsonl"))


def test_a_worker_that_dies_while_another_waits_for_it(job: Job) -> None:
    expected = job.here("alone")
    asked = answered(job.ledger("alone"))
    ledger = job.ledger("killed")
    with started(job, "killed", rank=1) as process:
        until(lambda: stopped(ledger) > 0, "a stopped worker")
        victim = stopped(ledger)
        until(lambda: any(path.stem.split("-")[-2] != str(victim) for path in ledger.glob("*.jsonl")), "answers")
        # All that is the other's: it has written its last chunk, a shorter one, and waits.
        others = [path for path in ledger.glob("*.jsonl") if path.stem.split("-")[-2] != str(victim)]
        until(lambda: others[0].read_bytes().count(b"\n") % ROWS_PER_CHUNK != 0, "the other's last chunk")
        time.sleep(0.3)
        assert process.poll() is None
        died = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        _, said = process.communicate(timeout=BOUND_S)
    assert time.monotonic() - died < BOUND_S
    assert process.returncode == 1
    assert f"Signal 9 (SIGKILL) received by PID {victim}" in said
    assert not job.files("killed")["card"].exists()
    assert not job.files("killed")["trajectories"].exists()
    kept = answered(ledger)
    assert ROWS_PER_CHUNK < kept < asked  # the other's share and a chunk of the dead one's
    assert job.here("killed") == expected
    counters = storage.read_json(job.files("killed")["counters"])
    assert counters["prompts_from_ledger"] == kept
    assert answered(ledger) == asked  # none twice
