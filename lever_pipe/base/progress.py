"""How far long work has come: a line of a job's log, written again every 15 seconds."""

from __future__ import annotations

from tqdm import tqdm

# `runtime/running.py` reads such lines from the logs of running jobs.
LINE = "{desc}: {n_fmt} of {total_fmt} in {elapsed}, {remaining} to go"


class Progress(tqdm):  # type: ignore[misc]  # a library without types
    """Counts what is done (`update`) of `total` items, under a label as `answer prompts`."""

    def __init__(self, total: int, label: str) -> None:
        # At one position even within another: a file knows no lines above.
        super().__init__(total=total, desc=label, mininterval=15, position=0, bar_format=LINE)
