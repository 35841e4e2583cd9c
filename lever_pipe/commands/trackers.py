"""Runs as trackers of experiments hold them, each written offline and read back by the tracker's own library.

`mlflow ui --backend-store-uri sqlite:///OUT/mlflow.db`, `tensorboard --logdir OUT` and `TRACKIO_DIR=OUT trackio show`
show them; `wandb sync OUT/wandb/offline-run-*` sends them. A library is imported where it is called.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

Values = dict[str, dict[tuple[int, str], float]]
"""Run -> (step or epoch, metric) -> value."""
METRICS, PARAMS, TEXT = 1000, 100, 6000
"""What one call of MLflow may hold, and characters of one parameter."""
EXACT = "exact/"
"""What TensorBoard's tags of exact values begin with: its server shows scalars of 32 bits and no others."""
UNTOLD = dict.fromkeys(("x_disable_meta", "x_disable_stats", "x_disable_machine_info", "disable_git"), True)
UNTOLD |= {"disable_code": True, "x_save_requirements": False}
"""What W&B would tell of this machine and of this process, which made none of the numbers."""


class TrackedRun(NamedTuple):
    """A policy's training, by its name without epoch, or an arm's run; `facts`: configuration, code and lineage."""

    name: str
    kind: str
    facts: Mapping[str, str]
    values: Mapping[tuple[int, str], float]

    def by_step(self) -> dict[int, dict[str, float]]:
        """Return the metrics of each step, in order."""
        steps: dict[int, dict[str, float]] = {}
        for (step, metric), value in sorted(self.values.items()):
            steps.setdefault(step, {})[metric] = value
        return steps


class Tracker(NamedTuple):
    """Both take a folder and the project's name; `write` finds the folder empty."""

    write: Callable[[Sequence[TrackedRun], Path, str], None]
    read: Callable[[Path, str], Values]


def _mlflow(folder: Path) -> Any:
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=f"sqlite:///{folder}/mlflow.db")


def _to_mlflow(runs: Sequence[TrackedRun], folder: Path, project: str) -> None:
    client = _mlflow(folder)
    from mlflow.entities import Metric, Param

    experiment = client.create_experiment(project, artifact_location=(folder / "artifacts").as_uri())
    for run in runs:
        made = client.create_run(experiment, run_name=run.name, tags={"kind": run.kind}).info.run_id
        params = [Param(name, text[:TEXT]) for name, text in run.facts.items()]
        metrics = [Metric(metric, value, 0, step) for (step, metric), value in run.values.items()]
        for start in range(0, len(params), PARAMS):
            client.log_batch(made, params=params[start : start + PARAMS])
        for start in range(0, len(metrics), METRICS):
            client.log_batch(made, metrics=metrics[start : start + METRICS])
        client.set_terminated(made)


def _from_mlflow(folder: Path, project: str) -> Values:
    client, found = _mlflow(folder), Values()
    experiment = client.get_experiment_by_name(project).experiment_id
    for run in client.search_runs([experiment], max_results=50_000):
        histories = (client.get_metric_history(run.info.run_id, metric) for metric in run.data.metrics)
        found[run.info.run_name] = {(row.step, row.key): row.value for rows in histories for row in rows}
    return found


def _to_tensorboard(runs: Sequence[TrackedRun], folder: Path, project: str) -> None:
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    for run in runs:
        writer = EventFileWriter(str(folder / run.name))
        told = json.dumps({"project": project, "kind": run.kind, **run.facts}, indent=2)
        writer.add_event(_event("facts", "text", 0, dtype="DT_STRING", string_val=[f"```\n{told}\n```".encode()]))
        for (step, metric), value in sorted(run.values.items()):
            writer.add_event(_event(metric, "scalars", step, dtype="DT_FLOAT", float_val=[_rounded(value)]))
            writer.add_event(_event(f"{EXACT}{metric}", "exact", step, dtype="DT_DOUBLE", double_val=[value]))
        writer.close()


def _event(tag: str, plugin: str, step: int, **tensor: Any) -> Any:
    from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2

    held = tensor_pb2.TensorProto(tensor_shape={}, **tensor)
    kind = "DATA_CLASS_SCALAR" if plugin == "scalars" else "DATA_CLASS_TENSOR"
    about = summary_pb2.SummaryMetadata(plugin_data={"plugin_name": plugin}, data_class=kind)
    value = summary_pb2.Summary.Value(tag=tag, metadata=about, tensor=held)
    return event_pb2.Event(wall_time=time.time(), step=step, summary=summary_pb2.Summary(value=[value]))


def _from_tensorboard(folder: Path, _: str) -> Values:
    """Return the exact values, and the shown one where that is not the exact one rounded."""
    from tensorboard.backend.event_processing.event_accumulator import TENSORS, EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray

    found: Values = {}
    for place in sorted({path.parent for path in folder.rglob("events.out.tfevents.*")}):
        events = EventAccumulator(str(place), size_guidance={TENSORS: 0}).Reload()
        values = found[place.relative_to(folder).as_posix()] = {}
        for tag in events.PluginTagToContent("scalars"):
            for shown, exact in zip(events.Tensors(tag), events.Tensors(f"{EXACT}{tag}"), strict=True):
                small, value = (float(make_ndarray(each.tensor_proto)) for each in (shown, exact))
                values[shown.step, tag] = value if (small, shown.step) == (_rounded(value), exact.step) else small
    return found


def _rounded(value: float) -> float:
    with np.errstate(over="ignore"):
        return float(np.float32(value))


def _trackio(folder: Path) -> Any:
    from trackio import sqlite_storage

    sqlite_storage.TRACKIO_DIR = folder  # its variable is read once, when the library is imported
    return sqlite_storage.SQLiteStorage


def _to_trackio(runs: Sequence[TrackedRun], folder: Path, project: str) -> None:
    storage = _trackio(folder)
    for run in runs:
        steps, config = run.by_step(), {"kind": run.kind, **run.facts}
        storage.bulk_log(project, run.name, list(steps.values()), steps=list(steps), config=config)


def _from_trackio(folder: Path, project: str) -> Values:
    storage, found = _trackio(folder), Values()
    for run in storage.get_runs(project):
        rows = storage.get_logs(project, run)
        named = ((row["step"], name, value) for row in rows for name, value in row.items())
        found[run] = {(step, name): value for step, name, value in named if name not in ("step", "timestamp")}
    return found


def _to_wandb(runs: Sequence[TrackedRun], folder: Path, project: str) -> None:
    import wandb

    settings = wandb.Settings(silent=True, console="off", **UNTOLD)
    for run in runs:
        told: dict[str, Any] = {"name": run.name, "group": run.kind, "config": dict(run.facts), "dir": folder}
        made = wandb.init(project=project, mode="offline", reinit="create_new", settings=settings, **told)
        for step, values in run.by_step().items():
            made.log(values, step=step)
        made.finish()
    wandb.teardown()  # its other process writes what it still holds


def _from_wandb(folder: Path, _: str) -> Values:
    from wandb.proto.wandb_internal_pb2 import Record
    from wandb.sdk.internal.datastore import DataStore

    found: Values = {}
    for path in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
        store, name, values = DataStore(), "", dict[tuple[int, str], float]()
        store.open_for_scan(str(path))
        while (data := store.scan_data()) is not None:
            record = Record.FromString(data)
            name = record.run.display_name or name
            items = {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item}
            values |= {(items["_step"], key): value for key, value in items.items() if not key.startswith("_")}
        found[name] = values
    return found


TRACKERS = {
    "mlflow": Tracker(_to_mlflow, _from_mlflow),
    "tensorboard": Tracker(_to_tensorboard, _from_tensorboard),
    "trackio": Tracker(_to_trackio, _from_trackio),
    "wandb": Tracker(_to_wandb, _from_wandb),
}
"""By the name of library and extra."""
