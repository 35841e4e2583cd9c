"""`python -m lever_pipe watch [RESULTS]`: the jobs of a run while it goes on, what each said last, and when it is over.

RESULTS is the results folder of the run, here or on a cluster; the run writes `live.json` there, which this process
only reads, so that it may end at any time. On a terminal the table is drawn anew until the run is over or gives no
sign, else once.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from lever_pipe.base import storage
from lever_pipe.base.errors import ConfigError
from lever_pipe.runtime.live import HEADS, STATE, RunState, duration

EVERY_S = 2.0
ABOVE = "\x1b[H\x1b[J"
"""Moves a terminal to its top and clears what is below."""


def main(words: Sequence[str]) -> int:
    """Print the state of a run until it is over, or the user ends this process; return 0.

    Raises:
        ConfigError: no run has written its state there.
        RecordError: another file of that name.
    """
    parser = argparse.ArgumentParser(prog="python -m lever_pipe watch", description=__doc__)
    parser.add_argument("results", nargs="?", type=Path, default=Path("results"))
    folder = parser.parse_args(words[1:]).results
    if not (folder / STATE).is_file():
        below = ", ".join(sorted(path.parent.as_posix() for path in folder.glob(f"*/{STATE}")))
        do = f"Name one of {below}." if below else "Start the run first, or name its results folder."
        raise ConfigError(f"{folder}: expected the results folder of a run, with {STATE}", found="none", do=do)
    try:
        while True:
            state, size = storage.read_row(folder / STATE, RunState), shutil.get_terminal_size()
            lines = [f"{folder}: {state.summary(time.time())}", *table(state, now=time.time())]
            is_drawn = sys.stdout.isatty()
            if is_drawn:
                lines = [line[: size.columns] for line in lines[: size.lines - 1]]
            sys.stdout.write((ABOVE if is_drawn else "") + "\n".join(lines) + "\n")
            sys.stdout.flush()
            if state.over or state.is_lost(time.time()) or not is_drawn:
                return 0
            time.sleep(EVERY_S)
    except KeyboardInterrupt:
        return 0


def table(state: RunState, *, now: float) -> list[str]:
    """Return lines of what failed, what runs, and the jobs of rules that are not done."""
    lines = [""]
    for rule, wildcards, reason in state.failed:
        lines += [f"FAILED  {rule}  {wildcards}", f"        {reason}"]
    for job in state.running:
        since = "queued" if job.since is None else f"for {duration(now - job.since)}"
        left = "" if job.left is None else f", {duration(max(0.0, job.left - (now - state.written)))} to go"
        lines += [f"{job.rule}  {job.wildcards}  {since}{left}", *([f"        {job.said}"] if job.said else [])]
    rules = [each for each in state.rules if any(each[1][1:])]
    width = max((len(rule) for rule, *_ in rules), default=0)
    lines += ["", " " * width + "".join(f"{head:>9}" for head in (*HEADS, "s each"))] if rules else []
    for rule, jobs, seconds in rules:
        cells = (*(str(n or "") for n in jobs), "" if seconds is None else f"{seconds:.1f}")
        lines.append(f"{rule:<{width}}" + "".join(f"{cell:>9}" for cell in cells))
    return [line.rstrip() for line in lines]
