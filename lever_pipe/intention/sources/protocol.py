"""Interface of task sources.

To add one, add a module `lever_pipe/intention/sources/<name>.py` with a function
`read(synthetic: SyntheticTasks | None, files: RawFiles) -> Splits`; its name is then valid in `intention.tasks.source`.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from lever_pipe.intention.records import Task


class RawFiles(NamedTuple):
    """The files that a source reads; all empty for a source that generates its tasks."""

    train: tuple[Path, ...] = ()
    val: tuple[Path, ...] = ()
    test: tuple[Path, ...] = ()
    details: tuple[Path, ...] = ()
    """Files with the hidden details if the files above do not contain them."""


class Splits(NamedTuple):
    """The tasks of each split; ids are unique across all three."""

    train: tuple[Task, ...]
    val: tuple[Task, ...]
    test: tuple[Task, ...]
    """Held out: `train` and `val` contain neither their ids nor their requests."""
    n_left_out: int = 0
    """Number of tasks in the test file that were excluded because `train` or `val` has their id or request."""
