"""Whether a compute node has the same package, Python and folder as this machine: asked by a tiny job a partition."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from lever_pipe.base.provenance import installed_versions
from lever_pipe.runtime import snapshot
from lever_pipe.runtime.checks.findings import Outcome, fault, ok, warning
from lever_pipe.runtime.slurm import squeue as slurm
from lever_pipe.runtime.slurm.requests import JobRequest, distinct

START_WITHIN = 60
RUN_WITHIN = 240.0
MINUTES, MEGABYTES = 3, 1500
OF_JOBS = ("package", "versions", "folder", "sees_files")
"""What must be the same there."""


def probe(token: Path) -> str:
    """Return, as one line of JSON, what this machine would run a job with, and whether it sees `token`."""
    return json.dumps(
        {
            "host": socket.gethostname(),
            "package": snapshot.package_digest(),
            "versions": installed_versions(),
            "folder": str(Path.cwd()),
            "sees_files": token.exists(),
            "gpus": _gpus(),
        },
        sort_keys=True,
    )


def check(jobs: Sequence[Mapping[str, Any]], prefix: str) -> Iterator[Outcome]:
    """Yield for each partition, with and without GPU as jobs ask, whether a node answers as this machine does."""
    asked = dict.fromkeys(
        request._replace(cpus=1, mem_mb=MEGABYTES, minutes=MINUTES, gres=tuple((name, 1) for name, _ in request.gres))
        for request in distinct(jobs)
    )
    snapshot.FOLDER.mkdir(parents=True, exist_ok=True)
    with NamedTemporaryFile(dir=snapshot.FOLDER, prefix="doctor-") as token:
        here = json.loads(probe(Path(token.name)))
        for request in asked:
            yield _compare(request, _command(request, prefix, token.name), here)


def _compare(request: JobRequest, command: list[str], here: dict[str, Any]) -> Outcome:
    names = [*request.partitions, *(name for name, _ in request.gres)]
    check = f"compute node of {' with '.join(names) or 'the default partition'}"
    reply = slurm.ask(*command, timeout=RUN_WITHIN)
    there = _answer(reply.output) if reply else None
    if there is None:
        said = (reply.error.strip().splitlines() or ["nothing"])[-1] if reply else f"no end after {RUN_WITHIN:.0f} s"
        return warning(
            check,
            f"a node that starts `{Path(sys.executable).name} -m lever_pipe` within {START_WITHIN} s",
            found=said,
            do="Try again when a node is free; or put Python and package where all nodes see them.",
        )
    different = [name for name in OF_JOBS if there.get(name) != here[name]]
    if different:
        return fault(
            check,
            "; ".join(f"{name} {here[name]}" for name in different),
            found="; ".join(f"{name} {there.get(name)}" for name in different) + f" on {there['host']}",
            do="Use one environment and one folder that all nodes share.",
        )
    if request.gres and there["gpus"] == 0:
        do = "Install a torch that fits the node's driver, or name another partition."
        return warning(check, "a GPU that torch sees", found=f"none on {there['host']}", do=do)
    gpus = "no torch here" if there["gpus"] is None else there["gpus"]
    return ok(check, f"{there['host']}: same package, versions and folder; GPUs that torch sees: {gpus}")


def _command(request: JobRequest, prefix: str, token: str) -> list[str]:
    name = f"{prefix or 'lever_pipe'}_doctor"
    command = ["srun", "--quiet", f"--immediate={START_WITHIN}", f"--job-name={name}", f"--time={request.minutes}"]
    command += [f"--mem={request.mem_mb}", "--ntasks=1", "--nodes=1"]
    command += [f"--partition={','.join(request.partitions)}"] if request.partitions else []
    command += [f"--account={request.accounts[0]}"] if request.accounts else []
    command += [f"--gres={name}:{number}" for name, number in request.gres]
    return [*command, sys.executable, "-m", "lever_pipe", "doctor", "--probe", token]


def _answer(output: str) -> dict[str, Any] | None:
    for line in reversed(output.splitlines()):
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict) and "package" in value:
            return value
    return None


def _gpus() -> int | None:
    """Return how many GPUs torch sees; None without torch."""
    if find_spec("torch") is None:
        return None
    import torch

    return torch.cuda.device_count()
