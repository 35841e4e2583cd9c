"""Nothing here needs shared memory: a job of two processes gives the same bytes where /dev/shm is full."""

from __future__ import annotations

import shlex
from pathlib import Path

from answering_job import make_job
from private_mounts import privately

FULL = "mount -t tmpfs -o size=4k none /dev/shm && head -c 4096 /dev/zero > /dev/shm/full"
IS_FULL = "! { echo x > /dev/shm/more; } 2> /dev/null"


def test_answers_of_two_processes_without_shared_memory(tmp_path: Path) -> None:
    job = make_job(tmp_path, n_queries=8, n_selections=4)
    done = privately("bash", "-c", f"{FULL} && {IS_FULL} && exec {shlex.join(job.command('two', 2))}")
    assert done.returncode == 0, done.stderr[-3000:]
    assert job.files("two")["trajectories"].read_bytes() == job.here("one")
    assert len(list(job.ledger("two").glob("*.jsonl"))) == 2  # both processes answered
