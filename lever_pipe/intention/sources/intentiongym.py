"""Reader of IntentionGym's task files (JSON lists of tasks) and UserRL's (parquet rows with ids of such tasks)."""

from __future__ import annotations

import glob
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, RootModel

from lever_pipe.base import storage
from lever_pipe.base.errors import DataError
from lever_pipe.base.sections import displayed
from lever_pipe.experiment.agent_tasks import SyntheticTasks
from lever_pipe.intention.records import MissingDetail, Task
from lever_pipe.intention.sources.protocol import RawFiles, Splits

_DATA_SOURCE = "interact_intention"
_QUERY = "SELECT data_source, reward_model FROM read_parquet(?, file_row_number = true) ORDER BY file_row_number"


def _number(value: Any) -> Any:
    if isinstance(value, bool):  # `true` equals 1, but is not an importance
        raise ValueError("must be 1, 2 or 3")  # noqa: TRY004 - pydantic reads this one
    return int(value) if isinstance(value, str) and value in ("1", "2", "3") else value


class Detail(MissingDetail):
    """A hidden detail in IntentionGym's format; unknown keys are ignored."""

    model_config = ConfigDict(extra="ignore")

    importance: Annotated[Literal[1, 2, 3], BeforeValidator(_number)]


class TaskObject(Task):
    """A task in IntentionGym's format; unknown keys are ignored."""

    model_config = ConfigDict(extra="ignore")

    missing_details: tuple[Detail, ...] = Field(min_length=1)


class TaskList(RootModel[tuple[TaskObject, ...]]):
    """A file of tasks."""


def read(synthetic: SyntheticTasks | None, files: RawFiles) -> Splits:
    """Return the splits in the order of the files; the test split excludes ids and requests of the other splits.

    Raises:
        DataError: a split is empty, invalid, or train and val share a task.
    """
    del synthetic
    details = read_tasks(files.details)
    train, val, test = (
        _split_in(path, details) if path.suffix == ".parquet" else read_tasks([path]) for (path,) in files[:3]
    )
    trained = train | val
    requests = {task.task for task in trained.values()}
    held_out = {name: task for name, task in test.items() if name not in trained and task.task not in requests}
    if twice := train.keys() & val.keys():
        raise DataError(
            f"{files.val[0]}: expected no task of {files.train[0]}",
            found=displayed(min(twice)),
            do="Take it out of one of them.",
        )
    for (path,), split in zip(files[:3], (train, val, held_out), strict=True):
        if not split:
            found = "none, or only tasks of the train and val files"
            raise DataError(f"{path}: expected tasks", found=found, do="Name another file.")
    train_tasks, val_tasks, test_tasks = (tuple(split.values()) for split in (train, val, held_out))
    return Splits(train_tasks, val_tasks, test_tasks, n_left_out=len(test) - len(held_out))


def read_tasks(paths: Iterable[Path]) -> dict[str, Task]:
    """Return the tasks of JSON files by id, in the order of the files."""
    tasks: dict[str, Task] = {}
    for path in paths:
        for record in storage.read_row(path, TaskList).root:
            if record.id in tasks:
                raise DataError(
                    f"{path}: expected each id once", found=f"{displayed(record.id)} again", do="Take one out."
                )
            tasks[record.id] = Task.model_validate(record.model_dump())
    return tasks


def _split_in(path: Path, details: Mapping[str, Task]) -> dict[str, Task]:
    """Return the tasks of a parquet file; rows of UserRL's other environments are ignored."""
    import duckdb

    # Reading a local file needs no extensions, so DuckDB must not download or load any.
    settings: dict[str, Any] = {"threads": 1, "autoinstall_known_extensions": False, "autoload_known_extensions": False}
    try:
        with duckdb.connect(":memory:", config=settings) as connection:
            # `read_parquet` expands wildcards, which a literal path may contain.
            rows = connection.execute(_QUERY, [glob.escape(str(path))]).fetchall()
    except duckdb.Error as error:
        raise DataError(
            f"{path}: expected a parquet file with columns data_source and reward_model",
            found=str(error).splitlines()[0],
            do="Download the file again.",
        ) from None
    tasks: dict[str, Task] = {}
    for row, (source, model) in enumerate(rows):
        if source != _DATA_SOURCE:
            continue
        name = model.get("id") if isinstance(model, dict) else model
        if not isinstance(name, str) or name not in details or name in tasks:
            raise DataError(
                f"{path}: row {row}: reward_model.id: expected a task with details that no earlier row names",
                found=displayed(name),
                do="Name the file with its details in intention.tasks.files.details, or take the row out.",
            )
        tasks[name] = details[name]
    return tasks
