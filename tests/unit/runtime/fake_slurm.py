"""Executables that answer as a real SLURM 22.05 did, for tests without one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

MARK = "\x1f"
SHIM = """#!/bin/sh
name=${{0##*/}}
echo "$name $*" >> {folder}/calls
case $name in scontrol) name=scontrol-$2 ;; esac
[ -f {folder}/$name.slow ] && exec sleep 30
[ -f {folder}/$name.out ] || {{ cat {folder}/$name.err >&2; exit 1; }}
cat {folder}/$name.out
"""
COMMANDS = ("squeue", "scontrol", "sacct", "scancel", "sbatch")

CONFIG = """Configuration data as of 2026-11-21T17:54:45
AccountingStorageEnforce = none
AccountingStorageHost   = {host}
AccountingStorageType   = {accounting}
ClusterName             = loopback
JobRequeue              = 1
MinJobAge               = {age} sec
PreemptMode             = REQUEUE
PreemptType             = preempt/partition_prio
SLURM_VERSION           = 22.05.8

Slurmctld(primary) at vm is UP
"""
FORGOTTEN = "slurm_load_jobs error: Invalid job id specified\n"
UNREACHABLE = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n"


class FakeSlurm:
    """Answers in files; a command without one fails.

    Args:
        folder: directory of the executables and their answers.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        for name in COMMANDS:
            path = folder / name
            path.write_text(SHIM.format(folder=folder))
            path.chmod(0o755)
        self.has()
        self.configure()
        self.fails("sacct", "You are not running a supported accounting_storage plugin\n")
        self.answers("scancel", "")

    def answers(self, name: str, text: str) -> None:
        """Let a command print this; `scontrol-config` is `scontrol show config`."""
        (self.folder / f"{name}.out").write_text(text)

    def fails(self, name: str, error: str = UNREACHABLE) -> None:
        """Let a command fail with these words."""
        (self.folder / f"{name}.out").unlink(missing_ok=True)
        (self.folder / f"{name}.err").write_text(error)

    def hangs(self, name: str) -> None:
        """Let a command answer nothing for long."""
        (self.folder / f"{name}.slow").touch()

    def has(self, *jobs: tuple[str, ...]) -> None:
        """Let `squeue` list these: id, state, name, comment, folder."""
        self.answers("squeue", "".join(f"{MARK.join(job)}\n" for job in jobs))

    def configure(self, *, age: int = 600, accounting: str = "none") -> None:
        """Set the controller's configuration."""
        host = "127.0.0.1" if accounting == "slurmdbd" else "localhost"
        self.answers(
            "scontrol-config", CONFIG.format(age=age, host=host, accounting=f"accounting_storage/{accounting}")
        )

    @property
    def calls(self) -> list[str]:
        """The commands that were run, with their words."""
        path = self.folder / "calls"
        return path.read_text().splitlines() if path.exists() else []


def on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    """Return a fake whose commands come first."""
    fake = FakeSlurm(tmp_path / "slurm")
    monkeypatch.setenv("PATH", f"{fake.folder}{os.pathsep}{os.environ['PATH']}")
    return fake
