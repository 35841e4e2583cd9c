"""Imported by a server under test: its jobs follow their command words instead of running a stage."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from lever_pipe.experiment import manifests
from lever_pipe.runtime import stage_call


def main(words: list[str]) -> int:
    """Do one thing and return the exit status."""
    what, *rest = words
    if what == "say":
        sys.stdout.write(f"{os.environ.get('REPLY')} {Path.cwd()} {' '.join(rest)}\n")
    if what == "surroundings":
        manifests.surroundings()
        sys.stdout.write(f"asked {manifests.surroundings.cache_info().misses} times\n")
    if what == "spoil":
        os.environ["REPLY"] = "spoilt"
        os.chdir("/")
        sys.modules.pop("json")
    if what == "raise":
        raise RuntimeError("broken")
    if what == "exit":
        sys.exit(int(rest[0]))
    if what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "sleep":
        sys.stderr.write("asleep\n")
        sys.stderr.flush()
        time.sleep(float(rest[0]))
    if what == "unwind":
        with stage_call._unwinding():
            return main(["sleep", *rest])
    return 0


stage_call.main = main  # type: ignore[assignment]
