"""What a source of tasks offers.

To add one, add a module `lever_pipe/intention/sources/<name>.py` with a function
`read(synthetic: SyntheticTasks | None, files: RawFiles) -> Splits`; its name is then valid in `intention.tasks.source`.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from lever_pipe.intention.records import Task


class RawFiles(NamedTuple):
    """The files that a source reads; all empty for one that makes its tasks."""

    train: tuple[Path, ...] = ()
    val: tuple[Path, ...] = ()
    test: tuple[Path, ...] = ()
    details: tuple[Path, ...] = ()
    """Where the hidden details stand if not in the files above."""


class Splits(NamedTuple):
    """The tasks of each split; ids differ over all three."""

    train: tuple[Task, ...]
    val: tuple[Task, ...]
    test: tuple[Task, ...]
    """Held out: neither ids nor requests of them stand in `train` or `val`."""
    n_left_out: int = 0
    """Tasks of the test file whose id or request is trained or validated on."""
