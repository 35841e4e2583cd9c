"""Reads task objects as IntentionGym writes them, collects every fault on the way, and puts the splits together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, cast

from lever_pipe.base.errors import DataError
from lever_pipe.base.storage import is_unicode, strict_json
from lever_pipe.intention.records import MissingDetail, Task
from lever_pipe.intention.sources.protocol import RawFiles, Splits

_SHOWN = 20
_WIDTH = 60
_IMPORTANCES = ("1", "2", "3")
_TEXT = "must be text that is not blank"
_LIST = "must be a list"
_NOTHING = object()
"""Stands for a key that a record lacks."""


class TaskFaults:
    """What is wrong with some files, a line each."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def __len__(self) -> int:
        return len(self._lines)

    def add(self, place: str, fault: str, *value: Any) -> None:
        """Record one fault at a place, with the value that is there instead."""
        found = f", got {shown(value[0])}" if value else ""
        self._lines.append(f"{place}: {fault}{found}")

    def raise_any(self, do: str = "Mend the named fields, or take the records out.") -> None:
        """Raise one DataError when there is any fault.

        Raises:
            DataError: the first faults, and how many there are.
        """
        if not self._lines:
            return
        rest = len(self._lines) - _SHOWN
        lines = [*self._lines[:_SHOWN], *([f"and {rest} more"] if rest > 0 else [])]
        count = "1 fault" if len(self._lines) == 1 else f"{len(self._lines)} faults"
        found = f"{count}:\n  " + "\n  ".join(lines) + "\n"
        raise DataError("task files as IntentionGym has them", found=found, do=do)


def shown(value: Any) -> str:
    """Return a value as a message shows it, cut where it is long."""
    text = "nothing" if value is _NOTHING else repr(value)
    return text if len(text) <= _WIDTH else text[:_WIDTH] + " ..."


def read_tasks(paths: Iterable[Path], faults: TaskFaults) -> dict[str, Task]:
    """Return the tasks of JSON files by id, in their order; every fault goes to `faults`."""
    tasks: dict[str, Task] = {}
    for path in paths:
        for row, record in enumerate(_list_of(path, faults)):
            task = _task_of(record, path, row, faults)
            if task is None:
                continue
            if task.id in tasks:
                faults.add(f"{path}: task {shown(task.id)} (row {row}): id", "must differ from every earlier one")
            tasks.setdefault(task.id, task)
    return tasks


def _list_of(path: Path, faults: TaskFaults) -> list[Any]:
    try:
        found = strict_json(path.read_bytes(), halves=True)
    except OSError as fault:
        faults.add(str(path), f"cannot be read: {fault.strerror}")
    except ValueError as fault:  # not JSON, or nothing that has one reading
        faults.add(str(path), f"must be JSON: {str(fault)[:_WIDTH]}")
    else:
        if isinstance(found, list):
            return found
        faults.add(str(path), "must be a list of task objects", found)
    return []


def _task_of(record: Any, path: Path, row: int, faults: TaskFaults) -> Task | None:
    if not isinstance(record, dict):
        faults.add(f"{path}: row {row}", "must be a task object", record)
        return None
    before = len(faults)
    name = record.get("id")
    prefix = f"{path}: task {shown(name)} (row {row}): " if isinstance(name, str) else f"{path}: row {row}: "
    name = _text(record, "id", prefix, faults)
    category = _text(record, "category", prefix, faults)
    text = _text(record, "task", prefix, faults)
    details = _details_of(record, prefix, faults)
    if len(faults) > before:
        return None
    return Task(id=name, category=category, task=text, missing_details=details)


def _details_of(record: Mapping[str, Any], prefix: str, faults: TaskFaults) -> tuple[MissingDetail, ...]:
    found = record.get("missing_details", _NOTHING)
    if not isinstance(found, list) or not found:
        faults.add(f"{prefix}missing_details", "must be a list of at least one detail, or the task pays nothing", found)
        return ()
    details = [_detail_of(item, f"{prefix}missing_details[{i}]", faults) for i, item in enumerate(found)]
    return tuple(detail for detail in details if detail is not None)


def _detail_of(item: Any, place: str, faults: TaskFaults) -> MissingDetail | None:
    if not isinstance(item, dict):
        faults.add(place, "must be a detail object", item)
        return None
    before = len(faults)
    prefix = f"{place}."
    description = _text(item, "description", prefix, faults)
    importance = _importance(item, prefix, faults)
    inquiry = _text(item, "inquiry", prefix, faults) if "inquiry" in item else ""
    options = _options(item, prefix, faults)
    if len(faults) > before:
        return None
    return MissingDetail(description=description, importance=importance, inquiry=inquiry, options=options)


def _importance(item: Mapping[str, Any], prefix: str, faults: TaskFaults) -> Literal[1, 2, 3]:
    found = item.get("importance", _NOTHING)
    if not isinstance(found, int | str) or str(found) not in _IMPORTANCES:
        faults.add(f"{prefix}importance", "must be 1, 2 or 3 (low, medium, high)", found)
        return 1
    return cast("Literal[1, 2, 3]", int(found))


def _options(item: Mapping[str, Any], prefix: str, faults: TaskFaults) -> tuple[str, ...]:
    found = item.get("options", [])
    if not isinstance(found, list):
        faults.add(f"{prefix}options", _LIST, found)
        return ()
    for i, option in enumerate(found):
        if not _is_text(option):
            faults.add(f"{prefix}options[{i}]", _TEXT, option)
    return tuple(option for option in found if _is_text(option))


def _text(record: Mapping[str, Any], key: str, prefix: str, faults: TaskFaults) -> str:
    found = record.get(key, _NOTHING)
    if _is_text(found):
        return str(found)
    faults.add(f"{prefix}{key}", _TEXT, found)
    return ""


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip()) and is_unicode(value)


def put_together(
    files: RawFiles, train: Mapping[str, Task], val: Mapping[str, Task], test: Mapping[str, Task], faults: TaskFaults
) -> Splits:
    """Return the splits, the test one without what is trained or validated on, under whatever id.

    Raises:
        DataError: the faults so far, a task both trained and validated on, a split without tasks.
    """
    seen = {task.task for of in (train, val) for task in of.values()}
    held_out = tuple(
        task for name, task in test.items() if name not in train and name not in val and task.task not in seen
    )
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
