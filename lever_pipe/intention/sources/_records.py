"""Reads task objects as IntentionGym writes them, collects every fault on the way, and puts the splits together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from lever_pipe.base.errors import DataError
from lever_pipe.base.sections import cut, dotted, shown
from lever_pipe.base.storage import is_unicode, read_bytes, strict_json
from lever_pipe.intention.records import Task
from lever_pipe.intention.sources.protocol import RawFiles, Splits

_SHOWN = 20
_TEXT = "must be text that is not blank"
_RULES = {
    "missing_details": "must be a list of at least one detail, or the task pays nothing",
    "importance": "must be 1, 2 or 3 (low, medium, high)",
    "options": "must be a list",
}
_NOTHING = object()
"""Stands for a key that a record lacks."""


def _require_words(text: str) -> str:
    if not text.strip() or not is_unicode(text):
        raise ValueError
    return text


def _number(found: Any) -> Any:
    return int(found) if isinstance(found, str) and found in ("1", "2", "3") else found


_Text = Annotated[str, AfterValidator(_require_words)]


class _Detail(BaseModel):
    """As IntentionGym writes it; other keys are passed over."""

    model_config = ConfigDict(strict=True)

    description: _Text
    importance: Annotated[int, BeforeValidator(_number), Field(ge=1, le=3)]
    inquiry: _Text = ""
    options: list[_Text] = []


class _Task(BaseModel):
    model_config = ConfigDict(strict=True)

    id: _Text
    category: _Text
    task: _Text
    missing_details: Annotated[list[_Detail], Field(min_length=1)]


class TaskFaults:
    """What is wrong with some files, a line each."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def __len__(self) -> int:
        return len(self._lines)

    def add(self, place: str, fault: str, *value: Any) -> None:
        """Record one fault at a place, with the value that is there instead."""
        found = f", got {'nothing' if value[0] is _NOTHING else shown(value[0])}" if value else ""
        self._lines.append(f"{place}: {fault}{found}")

    def raise_any(self) -> None:
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
        do = "Mend the named fields, or take the records out."
        raise DataError("task files as IntentionGym has them", found=found, do=do)


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
        found = strict_json(read_bytes(path), halves=True)
    except OSError as fault:
        faults.add(str(path), f"cannot be read: {fault.strerror}")
    except ValueError as fault:  # not JSON, or nothing that has one reading
        faults.add(str(path), f"must be JSON: {cut(str(fault))}")
    else:
        if isinstance(found, list):
            return found
        faults.add(str(path), "must be a list of task objects", found)
    return []


def _task_of(record: Any, path: Path, row: int, faults: TaskFaults) -> Task | None:
    name = record.get("id") if isinstance(record, dict) else None
    place = f"{path}: task {shown(name)} (row {row})" if isinstance(name, str) else f"{path}: row {row}"
    try:
        return Task.model_validate(_Task.model_validate(record).model_dump())
    except ValidationError as found:
        for error in found.errors(include_url=False):
            where = error["loc"]
            value = _NOTHING if error["type"] == "missing" else error["input"]
            faults.add(f"{place}: {dotted(where)}" if where else place, _rule(where), value)
    return None


def _rule(place: tuple[int | str, ...]) -> str:
    """Return what a faulty value of a record must be."""
    if not place:
        return "must be a task object"
    if isinstance(place[-1], int):
        return "must be a detail object" if place[-2] == "missing_details" else _TEXT
    return _RULES.get(place[-1], _TEXT)


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
