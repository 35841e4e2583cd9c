"""Puts the splits together and checks what none of them can check alone."""

from __future__ import annotations

from collections.abc import Mapping

from lever_pipe.intention.records import Task
from lever_pipe.intention.sources._records import TaskFaults, shown
from lever_pipe.intention.sources.protocol import RawFiles, Splits


def put_together(
    files: RawFiles, train: Mapping[str, Task], val: Mapping[str, Task], test: Mapping[str, Task], faults: TaskFaults
) -> Splits:
    """Return the splits, the test one without what is trained or validated on.

    Raises:
        DataError: the faults so far, a task both trained and validated on, a split without tasks.
    """
    held_out = tuple(task for name, task in test.items() if name not in train and name not in val)
    if not faults:  # else a split may be short because of the faults
        for name in train.keys() & val.keys():
            faults.add(f"{_names(files.val)}: task {shown(name)}", f"must not stand in {_names(files.train)} too")
        for paths, tasks, kind in ((files.train, train, "train"), (files.val, val, "validation")):
            if not tasks:
                faults.add(_names(paths), f"must hold at least one {kind} task")
        if not held_out:
            faults.add(_names(files.test), f"must hold a task that is in neither {_names(files.train + files.val)}")
    faults.raise_any()
    return Splits(tuple(train.values()), tuple(val.values()), held_out, n_left_out=len(test) - len(held_out))


def _names(paths: tuple[object, ...]) -> str:
    return " nor ".join(map(str, paths)) or "(no file named)"
