"""MLflow: a SQLite store; `mlflow ui --backend-store-uri sqlite:///OUT/mlflow.db` shows it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from lever_pipe.commands.trackers.protocol import TrackedRun, Values

STORE = "mlflow.db"
AT_ONCE, PARAMS_AT_ONCE = 1000, 100
"""What one call may hold."""


def write(runs: Sequence[TrackedRun], folder: Path, project: str) -> None:
    """Write the runs as one experiment; facts are parameters, the kind is a tag."""
    from mlflow.entities import Metric, Param

    client = _client(folder)
    experiment = client.create_experiment(project, artifact_location=(folder / "artifacts").as_uri())
    for run in runs:
        made = client.create_run(experiment, run_name=run.name, tags={"kind": run.kind}, start_time=0).info.run_id
        for params in _parts((Param(name, text) for name, text in run.facts.items()), PARAMS_AT_ONCE):
            client.log_batch(made, params=params)
        for metrics in _parts((Metric(metric, v, 0, step) for (step, metric), v in run.values.items()), AT_ONCE):
            client.log_batch(made, metrics=metrics)
        client.set_terminated(made, end_time=0)


def read(folder: Path, project: str) -> Values:
    """Return the values by `MlflowClient`."""
    client = _client(folder)
    experiment = client.get_experiment_by_name(project)
    runs = client.search_runs([experiment.experiment_id], max_results=50_000)
    return {
        run.info.run_name: {
            (row.step, row.key): row.value
            for metric in run.data.metrics
            for row in client.get_metric_history(run.info.run_id, metric)
        }
        for run in runs
    }


def _client(folder: Path) -> Any:
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=f"sqlite:///{folder / STORE}")


def _parts(items: Iterator[Any], size: int) -> Iterator[list[Any]]:
    while part := list(islice(items, size)):
        yield part
