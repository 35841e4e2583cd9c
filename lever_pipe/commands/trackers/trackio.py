"""Trackio: a local SQLite file; `TRACKIO_DIR=OUT trackio show` shows it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lever_pipe.commands.trackers.protocol import TrackedRun, Values

STAMPS = ("step", "timestamp")
"""What the library adds to the metrics of a step."""


def write(runs: Sequence[TrackedRun], folder: Path, project: str) -> None:
    """Write the runs; facts are their configuration."""
    storage = _storage(folder)
    for run in runs:
        steps, config = run.by_step(), {"kind": run.kind, **run.facts}
        storage.bulk_log(project, run.name, list(steps.values()), steps=list(steps), config=config)


def read(folder: Path, project: str) -> Values:
    """Return the values by the library's storage, as its dashboard asks for them."""
    storage = _storage(folder)
    return {
        run: {
            (row["step"], metric): value
            for row in storage.get_logs(project, run)
            for metric, value in row.items()
            if metric not in STAMPS
        }
        for run in storage.get_runs(project)
    }


def _storage(folder: Path) -> Any:
    from trackio import sqlite_storage

    sqlite_storage.TRACKIO_DIR = folder  # its variable is read once, when the library is imported
    return sqlite_storage.SQLiteStorage
