"""Problems on request: every Python process of a copied project imports this module when it starts.

A problem is a JSON file `NAME.problem` next to this module: which stage, `when` (words that the stage's call
must contain), `at` (the problem strikes before a file of that name appears whole; empty: when the stage starts) and
what to `do`: `hold` until NAME.release is there, `fail`, or `allocate` more memory than the job asked SLURM for.
A problem strikes once, unless it is `always`; NAME.struck gets a line of each strike: SLURM's job id and the process's.
The package under test stays as it is, so its digest does too.
"""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
HELD_SECONDS = 300  # longer than any test: a hold without an end must not outlive its cluster for ever
POLL_SECONDS = 1.0
VANISHED_SECONDS = 10.0
PAUSE_SECONDS = 0.5


def wait_less() -> None:
    """Shorten the waits: the plugin waits 2, 12, 22, ... seconds between questions, most of a test's time."""
    from snakemake_interface_executor_plugins.executors.remote import RemoteExecutor

    from lever_pipe.runtime.slurm import submission, watchdog

    whole = RemoteExecutor.next_seconds_between_status_checks
    RemoteExecutor.next_seconds_between_status_checks = whole.getter(lambda _: POLL_SECONDS)
    watchdog.VANISHED_SECONDS = VANISHED_SECONDS
    submission.FIRST_PAUSE_SECONDS = submission.LONGEST_PAUSE_SECONDS = PAUSE_SECONDS


def arm(stage: str, words: str) -> None:
    """Find the problems of this call; strike at once, or when the named file is opened."""
    for path in sorted(HERE.glob("*.problem")):
        try:
            problem = json.loads(path.read_text())
        except FileNotFoundError:  # it struck elsewhere
            continue
        if problem["stage"] != stage or any(word not in words for word in problem["when"]):
            continue
        if problem["at"]:
            strike_when_placed(path, problem)
        else:
            strike(path, problem)


def strike_when_placed(path: Path, problem: dict) -> None:
    """Strike when a file whose name contains `at` is about to get that name: all of it is written under another."""
    done = []

    def probe(event: str, arguments: tuple) -> None:
        if event == "os.rename" and not done and problem["at"] in os.path.basename(arguments[1]):  # noqa: PTH119
            done.append(True)
            strike(path, problem)

    sys.addaudithook(probe)


def strike(path: Path, problem: dict) -> None:
    """Carry out the problem's action, if no other process has done it."""
    if not problem["always"]:
        try:
            path.rename(path.with_suffix(".taken"))
        except FileNotFoundError:
            return
    with path.with_suffix(".struck").open("a") as handle:
        handle.write(f"{os.environ.get('SLURM_JOB_ID', '-')} {os.getpid()}\n")
    if problem["do"] == "fail":
        sys.stderr.write("FaultError: this job was told to fail\n")
        sys.stderr.flush()
        os._exit(3)
    if problem["do"] == "allocate":
        take_memory(requested_megabytes() * 5 // 4)
    wait_for(path.with_suffix(".release"))


def requested_megabytes() -> int:
    """Return what this job asked for per node."""
    output = subprocess.run(
        ["scontrol", "show", "job", os.environ["SLURM_JOB_ID"]], capture_output=True, text=True, timeout=20, check=True
    ).stdout
    number, unit = re.search(r"MinMemoryNode=([\d.]+)([MG])", output).groups()
    return int(float(number) * (1024 if unit == "G" else 1))


def take_memory(megabytes: int) -> None:
    """Occupy that much resident memory until the process ends."""
    globals()["HOARD"] = b"\1" * (megabytes * 2**20)


def wait_for(path: Path) -> None:
    """Return once the file is there."""
    end = time.monotonic() + HELD_SECONDS
    while not path.exists():
        if time.monotonic() > end:
            os._exit(4)
        time.sleep(0.1)


WORDS = sys.orig_argv
if WORDS[1:4] == ["-m", "lever_pipe", "stage"] and len(WORDS) > 4:
    arm(WORDS[4], " ".join(WORDS[5:]))
elif WORDS[1:3] == ["-m", "snakemake"] and "slurm" in " ".join(WORDS) and "--mode" not in WORDS:
    wait_less()
