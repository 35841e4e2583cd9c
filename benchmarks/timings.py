"""Waiting times of users: whole commands on a fresh clone, one after another, in a table (`make bench-run`)."""

from __future__ import annotations

import argparse
import os
import platform
import re
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from lever_pipe.base import numerics

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "timings.md"
PRODUCTION = "config/okvqa_qwen2_5_vl_3b.yaml"
BETAS_OF_10_000_JOBS = 550
JOBS = re.compile(r"^total\s+(\d+)", re.MULTILINE)

HEAD = """# Timings

This page lists measured times of whole commands.

<!-- Written by `make bench-run` from a run on a fresh clone; edit benchmarks/timings.py instead. -->

| what | seconds | CPU seconds | gate | goal |
|---|---|---|---|---|
"""
FOOT = """
One run each on one machine in one session: {cores} cores, {cpu}, numeric path `{path}`, commit {commit}.
CPU seconds are the sum over all processes of a command. Other work on the machine makes it slower.
"""


class Command(NamedTuple):
    """A command of a user: its name, its function, and the limit (gate) and goal of its time in seconds.

    `of` selects the time that gate and goal limit: wall time or CPU time.
    """

    name: str
    run: Callable[[Path], object]
    gate: float
    goal: float
    of: str = "wall"


class Measured(NamedTuple):
    """Seconds of a command."""

    command: Command
    wall: float
    cpu: float

    @property
    def row(self) -> str:
        """Return the row of the table."""
        gate, goal = (f"{bound:g}" + (" CPU" if self.command.of == "cpu" else "") for bound in self.command[2:4])
        return f"| {self.command.name} | {self.wall:.1f} | {self.cpu:.1f} | {gate} | {goal} |\n"

    @property
    def held(self) -> bool:
        """Whether the time is within the gate."""
        return (self.cpu if self.command.of == "cpu" else self.wall) <= self.command.gate


def make(target: str) -> Callable[[Path], object]:
    """Return a function that runs a target of the Makefile."""
    return lambda clone: _run(clone, "make", target)


def one_beta_more(clone: Path) -> object:
    """Add a KL_BETA to the default experiment and update its report."""
    _edit(clone / "config.yaml", "kl_betas: [0, 0.12, 0.145, 0.15, 0.155, 0.18]\n    long", "0.2]\n    long")
    return _run(clone, ".venv/bin/snakemake")


def plan_production(clone: Path) -> object:
    """Plan the production experiment with placeholder raw files."""
    folder = clone / "data" / "okvqa"
    folder.mkdir(parents=True, exist_ok=True)
    for split in ("train", "val"):
        for name in (f"OpenEnded_mscoco_{split}2014_questions.json", f"mscoco_{split}2014_annotations.json"):
            (folder / name).write_text("{}")
    return _run(clone, ".venv/bin/snakemake", "--dry-run", "--quiet", "--configfile", PRODUCTION)


def plan_10_000_jobs(clone: Path) -> object:
    """Plan an experiment with many betas.

    Raises:
        AssertionError: the number of jobs is not about 10,000.
    """
    betas = [round(0.001 * (1 + number), 3) for number in range(BETAS_OF_10_000_JOBS)]
    (clone / "many.yaml").write_text(
        "results: results/many\nstudies: [lever]\nemulate: null\narms:\n"
        "  - {preset: world, seeds: [0, 1, 2], rce_epochs: 5, base_rce_epochs: [5], grpo_epochs: 3, "
        f"kl_betas: {betas}}}\n"
    )
    output = _run(clone, ".venv/bin/snakemake", "--dry-run", "--quiet", "host", "--configfile", "many.yaml")
    found = JOBS.search(output)
    assert found is not None and abs(int(found[1]) - 10_000) < 500, output[-500:]
    return output


COMMANDS = (
    Command("`make reproduce` on a fresh clone, set-up included", make("reproduce"), 450, 300),
    Command("second `make reproduce`", make("reproduce"), 4, 2.5),
    Command("one more KL_BETA (3 epochs, 3 seeds), from a finished run to its page", one_beta_more, 60, 30),
    Command("`make smoke`", make("smoke"), 40, 25),
    Command("dry run of the production experiment", plan_production, 6, 4, of="cpu"),
    Command("dry run of 10,000 jobs", plan_10_000_jobs, 24, 18),
)


def measure(clone: Path) -> Iterator[Measured]:
    """Yield the seconds of each command, in order, on one clone."""
    for command in COMMANDS:
        before, begin = _cpu_seconds(), time.perf_counter()
        command.run(clone)
        found = Measured(command, time.perf_counter() - begin, _cpu_seconds() - before)
        sys.stdout.write(found.row)
        sys.stdout.flush()
        yield found


def main() -> int:
    """Measure all commands on a clone of the last commit and write the page; return 1 if a gate is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.timings", description=__doc__)
    parser.add_argument("--out", type=Path, default=PAGE, help="the page")
    parser.add_argument("--no-gate", action="store_true", help="report only")
    options = parser.parse_args()
    with TemporaryDirectory() as folder:
        clone = Path(folder) / "clone"
        _run(ROOT, "git", "clone", "--quiet", str(ROOT), str(clone))
        commit = _run(clone, "git", "rev-parse", "--short", "HEAD").strip()
        found = list(measure(clone))
    cores = len(os.sched_getaffinity(0))
    foot = FOOT.format(cores=cores, cpu=_cpu(), path=numerics.path(), commit=commit)
    options.out.write_text(HEAD + "".join(one.row for one in found) + foot, encoding="utf-8")
    missed = [one.command.name for one in found if not one.held]
    sys.stdout.writelines(f"missed: {name}\n" for name in missed)
    return int(bool(missed) and not options.no_gate)


def _run(folder: Path, *command: str) -> str:
    # Settings of this process must not reach the measured commands.
    hidden = {"VIRTUAL_ENV", "PYTHONPATH", numerics.MODE, *numerics.PORTABLE}
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{(done.stdout + done.stderr)[-3000:]}")
    return done.stdout + done.stderr


def _edit(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text, f"{path} does not contain {old!r}"
    head = old.partition("]")[0]
    path.write_text(text.replace(old, f"{head}, {new}"), encoding="utf-8")


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _cpu() -> str:
    named = re.search(r"model name\s*: (.*)", numerics.CPUINFO.read_text()) if numerics.CPUINFO.is_file() else None
    return named[1] if named else platform.machine()


if __name__ == "__main__":
    sys.exit(main())
