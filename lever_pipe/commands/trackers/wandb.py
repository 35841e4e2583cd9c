"""Weights & Biases: an offline run each; `wandb sync OUT/wandb/offline-run-*` sends them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from lever_pipe.commands.trackers.protocol import TrackedRun, Values

UNTOLD = dict.fromkeys(("x_disable_meta", "x_disable_stats", "x_disable_machine_info", "disable_git"), True)
UNTOLD |= {"disable_code": True, "x_save_requirements": False}
"""What the library would tell of this machine and of this process, which made none of the numbers."""


def write(runs: Sequence[TrackedRun], folder: Path, project: str) -> None:
    """Write the runs; facts are their configuration, the kind is their group."""
    import wandb

    for run in runs:
        with wandb.init(
            project=project,
            name=run.name,
            group=run.kind,
            config=dict(run.facts),
            dir=folder,
            mode="offline",
            reinit="create_new",
            settings=wandb.Settings(silent=True, console="off", **UNTOLD),
        ) as made:
            for step, values in run.by_step().items():
                made.log(values, step=step)
    wandb.teardown()  # its other process writes what it still holds


def read(folder: Path, project: str) -> Values:  # noqa: ARG001 - a folder holds one
    """Return the values by the library's own reader of `.wandb` files."""
    from wandb.proto.wandb_internal_pb2 import Record
    from wandb.sdk.internal.datastore import DataStore

    found: Values = {}
    for path in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
        store, name = DataStore(), ""
        values: dict[tuple[int, str], float] = {}
        store.open_for_scan(str(path))
        while (data := store.scan_data()) is not None:
            record = Record.FromString(data)
            name = record.run.display_name or name
            items = {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item}
            values |= {(items["_step"], key): value for key, value in items.items() if not key.startswith("_")}
        found[name] = values
    return found
