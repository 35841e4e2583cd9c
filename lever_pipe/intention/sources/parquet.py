"""UserRL's RL files: parquet rows name the tasks by id, IntentionGym's JSON files hold their hidden details.

A file that is no parquet is read as JSON, so that a held-out split may be one of the JSON files.
"""

from __future__ import annotations

import glob
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lever_pipe.base.sections import shown
from lever_pipe.experiment.agent_config import SyntheticTasks
from lever_pipe.intention.records import Task
from lever_pipe.intention.sources.json import put_together, read_tasks
from lever_pipe.intention.sources.protocol import RawFiles, Splits

_DATA_SOURCE = "interact_intention"
_QUERY = "SELECT data_source, reward_model FROM read_parquet(?, file_row_number = true) ORDER BY file_row_number"


def read(synthetic: SyntheticTasks | None, files: RawFiles) -> Splits:
    """Return the tasks that the rows name, in the rows' order.

    Rows of other environments than IntentionGym, as UserRL's mixed files have them, are passed over.
    """
    del synthetic
    faults: list[str] = []
    details = read_tasks(files.details, faults)
    train, val, test = (_split(paths, files, details, faults) for paths in (files.train, files.val, files.test))
    return put_together(files, train, val, test, faults)


def _split(paths: tuple[Path, ...], files: RawFiles, details: Mapping[str, Task], faults: list[str]) -> dict[str, Task]:
    tasks: dict[str, Task] = {}
    for path in paths:
        named = _named_in(path, files, details, faults)
        twice = tasks.keys() & named.keys()
        faults += [f"{path}: task {shown(name)}: id: must differ from every earlier one" for name in twice]
        tasks |= named
    return tasks


def _named_in(path: Path, files: RawFiles, details: Mapping[str, Task], faults: list[str]) -> dict[str, Task]:
    if path.suffix != ".parquet":
        return read_tasks([path], [] if path in files.details else faults)  # faults of details are known
    tasks: dict[str, Task] = {}
    for row, name in _ids_in(path, faults):
        place = f"{path}: row {row}: reward_model.id"
        if not isinstance(name, str) or not name:
            faults.append(f"{place}: must be the id of a task, got {shown(name)}")
        elif name in tasks:
            faults.append(f"{place}: must differ from every earlier one, got {shown(name)}")
        elif name not in details:
            listed = ", ".join(map(str, files.details)) or "(no file named)"
            faults.append(f"{place}: must be a task with details in {listed}, got {shown(name)}")
        else:
            tasks[name] = details[name]
    return tasks


def _ids_in(path: Path, faults: list[str]) -> list[tuple[int, Any]]:
    import duckdb

    if not path.is_file():
        faults.append(f"{path}: must be a parquet file; there is none")
        return []
    # Neither settings nor extensions from outside: reading one local file needs none of them.
    settings: dict[str, Any] = {"threads": 1, "autoinstall_known_extensions": False, "autoload_known_extensions": False}
    try:
        with duckdb.connect(":memory:", config=settings) as connection:
            rows = connection.execute(_QUERY, [glob.escape(str(path))]).fetchall()
    except duckdb.Error as fault:
        reason = str(fault).splitlines()[0]
        faults.append(f"{path}: must be parquet with the columns data_source and reward_model: {reason}")
        return []
    chosen = [(row, model) for row, (source, model) in enumerate(rows) if source == _DATA_SOURCE]
    if not chosen:
        faults.append(f"{path}: must hold rows with data_source '{_DATA_SOURCE}'; none of {len(rows)} has it")
    return [(row, model.get("id") if isinstance(model, dict) else model) for row, model in chosen]
