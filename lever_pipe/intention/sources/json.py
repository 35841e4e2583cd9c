"""IntentionGym's own task files: each split a list of task objects, which hold their details."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from lever_pipe.base.errors import DataError, shortened
from lever_pipe.base.sections import dotted, shown
from lever_pipe.base.storage import strict_json
from lever_pipe.experiment.agent_config import SyntheticTasks
from lever_pipe.intention.records import Task
from lever_pipe.intention.sources.protocol import RawFiles, Splits

_SHOWN = 20
"""Faults that a refusal lists."""


def _require_words(text: str) -> str:
    if not text.strip():
        raise ValueError("must not be blank")
    return text


def _number(value: Any) -> Any:
    return int(value) if isinstance(value, str) and value in ("1", "2", "3") else value


_Text = Annotated[str, AfterValidator(_require_words)]


class Detail(BaseModel):
    """A hidden detail of a task object."""

    model_config = ConfigDict(strict=True)

    description: _Text
    importance: Annotated[int, BeforeValidator(_number), Field(ge=1, le=3)]
    inquiry: _Text = ""
    options: list[_Text] = []


class TaskObject(BaseModel):
    """As IntentionGym writes it; other keys are passed over."""

    model_config = ConfigDict(strict=True)

    id: _Text
    category: _Text
    task: _Text
    missing_details: Annotated[list[Detail], Field(min_length=1)]


def read(synthetic: SyntheticTasks | None, files: RawFiles) -> Splits:
    """Return the splits as the files have them."""
    del synthetic
    faults: list[str] = []
    train, val, test = (read_tasks(paths, faults) for paths in (files.train, files.val, files.test))
    return put_together(files, train, val, test, faults)


def read_tasks(paths: Iterable[Path], faults: list[str]) -> dict[str, Task]:
    """Return the tasks of files by id, in their order; every fault is added to `faults`."""
    tasks: dict[str, Task] = {}
    for path in paths:
        for row, record in enumerate(_list_in(path, faults)):
            name = record.get("id") if isinstance(record, dict) else None
            place = f"{path}: task {shown(name)} (row {row})" if isinstance(name, str) else f"{path}: row {row}"
            try:
                task = Task.model_validate(TaskObject.model_validate(record).model_dump())
            except ValidationError as refusal:
                for error in refusal.errors(include_url=False):
                    value = "" if error["type"] == "missing" else f", got {shown(error['input'])}"
                    key = f"{dotted(error['loc'])}: " if error["loc"] else ""
                    faults.append(f"{place}: {key}{error['msg']}{value}")
                continue
            if task.id in tasks:
                faults.append(f"{place}: id: must differ from every earlier one")
            tasks.setdefault(task.id, task)
    return tasks


def _list_in(path: Path, faults: list[str]) -> list[Any]:
    try:
        records = strict_json(path.read_bytes())
    except OSError as fault:
        faults.append(f"{path}: cannot be read: {fault.strerror}")
    except ValueError as fault:  # not JSON, or nothing that has one reading
        faults.append(f"{path}: must be JSON: {shortened(str(fault))}")
    else:
        if isinstance(records, list):
            return records
        faults.append(f"{path}: must be a list of task objects, got {shown(records)}")
    return []


def put_together(
    files: RawFiles, train: Mapping[str, Task], val: Mapping[str, Task], test: Mapping[str, Task], faults: Sequence[str]
) -> Splits:
    """Return the splits, the test one without what is trained or validated on, under whatever id."""
    seen = {task.task for of in (train, val) for task in of.values()}
    held_out = tuple(
        task for name, task in test.items() if name not in train and name not in val and task.task not in seen
    )
    train_names, val_names, test_names = (" nor ".join(map(str, paths)) for paths in files[:3])
    faults = list(faults)
    if not faults:  # else a split may be short because of the faults
        twice = train.keys() & val.keys()
        faults += [f"{val_names}: task {shown(name)}: must not stand in {train_names} too" for name in twice]
        for names, tasks, kind in ((train_names, train, "train"), (val_names, val, "validation")):
            faults += [] if tasks else [f"{names}: must hold at least one {kind} task"]
        if not held_out:
            faults.append(f"{test_names}: must hold a task that is in neither {train_names} nor {val_names}")
    if faults:
        count = "1 fault" if len(faults) == 1 else f"{len(faults)} faults"
        rest = [f"and {len(faults) - _SHOWN} more"] if len(faults) > _SHOWN else []
        raise DataError(
            "task files as IntentionGym has them",
            found=f"{count}:\n  " + "\n  ".join([*faults[:_SHOWN], *rest]) + "\n",
            do="Fix the named fields, or take the records out.",
        )
    return Splits(tuple(train.values()), tuple(val.values()), held_out, n_left_out=len(test) - len(held_out))
