"""How far long work has come: a line of a job's log, written again every 15 seconds."""

from __future__ import annotations

from tqdm import tqdm


class Progress(tqdm):  # type: ignore[misc]  # a library without types
    """Counts what is done (`update`) of `total` items, under a label as `answer prompts`."""

    def __init__(self, total: int, label: str) -> None:
        super().__init__(total=total, desc=label, mininterval=15)
