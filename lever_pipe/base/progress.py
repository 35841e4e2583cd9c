"""Progress of long work: one line in a job's log, repeated every 15 seconds."""

from __future__ import annotations

from tqdm import tqdm

# `runtime/running.py` reads such lines from the logs of running jobs.
LINE = "{desc}: {n_fmt} of {total_fmt} in {elapsed}, {remaining} to go"


class Progress(tqdm):  # type: ignore[misc]  # a library without types
    """Counter of finished items (`update`) out of `total`, with a label such as `answer prompts`."""

    def __init__(self, total: int, label: str) -> None:
        # Always position 0, even if nested: in a log file, the cursor cannot move up.
        super().__init__(total=total, desc=label, mininterval=15, position=0, bar_format=LINE)
