"""`lever-pipe export TRACKER RESULTS OUT`: write the curves of finished work for TensorBoard or W&B, offline.

Each policy or arm becomes one run per seed, with the facts of its manifest and every row of its curves. Then
`tensorboard --logdir OUT` shows them, or `wandb sync OUT/wandb/offline-run-*` sends them. A tracker's library is the
extra of its name. TensorBoard stores values in 32 bits; the CSV files have full precision.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from lever_pipe.base import storage
from lever_pipe.base.errors import ConfigError, RecordError
from lever_pipe.base.policy_names import PolicyName
from lever_pipe.base.records import Manifest
from lever_pipe.commands.compare_tool import facts
from lever_pipe.report import sources

TABLES = {
    "lever/tables/training.csv": sources.training,
    "lever/tables/arms_training.csv": sources.training,
    "intention/tables/curves.csv": sources.agent_curves,
}
"""Table of curves below the results -> its reader."""


class TrackedRun(NamedTuple):
    """A policy's training, named without its epoch, or an arm's run; `steps`: metrics by step or epoch."""

    name: str
    facts: dict[str, str]
    steps: list[tuple[int, dict[str, float]]]


def main(words: Sequence[str]) -> int:
    """Write the runs of a results folder for a tracker and return 0."""
    parser = argparse.ArgumentParser(prog="lever-pipe export", description=__doc__)
    parser.add_argument("tracker", choices=TRACKERS)
    parser.add_argument("results", type=Path)
    parser.add_argument("out", type=Path)
    options = parser.parse_args(words[1:])
    runs, out = tracked_runs(options.results), options.out.absolute()
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out}: expected an empty folder, or none", found="another", do="Name one, or remove it.")
    try:
        out.mkdir(parents=True, exist_ok=True)
        for run in runs:
            TRACKERS[options.tracker](run, out, options.results.absolute().name)
    except ModuleNotFoundError as error:
        do = f"Install it: pip install 'lever-pipe[{options.tracker}]'."
        raise ConfigError(f"expected the library {options.tracker}", found=f"no module {error.name}", do=do) from None
    sys.stdout.write(f"{out}: {len(runs)} runs\n")
    return 0


def tracked_runs(results: Path) -> list[TrackedRun]:
    """Return the runs of all tables of curves below a results folder, by name; `RecordError` without a readable one."""
    metrics: dict[str, dict[int, dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
    for name, read in TABLES.items():
        path = results / name
        try:
            rows = [row for row in read(path) if math.isfinite(row.value)] if path.is_file() else []
        except (KeyError, ValueError) as error:
            needs, seen = f"{path}: expected rows of curves", repr(error)
            raise RecordError(needs, found=seen, do="Build the file again.") from None
        for row in rows:
            policy = PolicyName.parse(row.subject)
            if policy.seed is not None:  # a row without a seed is a mean over seeds, not a run
                run, step = str(replace(policy, epoch=None)), int(row.at or policy.epoch or 0)
                metrics[run][step]["/".join(filter(None, (row.subset, row.mode, row.metric)))] = row.value
    if not metrics:
        needs, do = f"{results}: expected the curves of a finished run", "Name a results folder; finish its run first."
        raise RecordError(needs, found=f"none in {', '.join(TABLES)}", do=do)
    return [TrackedRun(run, _facts(results, run, max(m)), sorted(m.items())) for run, m in sorted(metrics.items())]


def _facts(results: Path, run: str, last: int) -> dict[str, str]:
    """Return the facts in the manifest of a policy's last epoch or of an arm's run."""
    manifests = (results / "lever" / run / f"epoch~{last}/run.json", results / "intention" / run / "run.json")
    return next((facts(storage.read_row(manifest, Manifest)) for manifest in manifests if manifest.is_file()), {})


def _to_tensorboard(run: TrackedRun, folder: Path, _: str) -> None:
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(folder / run.name)) as writer:
        writer.add_text("facts", f"```\n{json.dumps(run.facts, indent=2)}\n```")
        for step, values in run.steps:
            for metric, value in values.items():
                writer.add_scalar(metric, value, step)


def _to_wandb(run: TrackedRun, folder: Path, project: str) -> None:
    import wandb

    about = {"project": project, "name": run.name, "config": run.facts, "dir": folder}
    with wandb.init(mode="offline", reinit="create_new", **about) as tracker:
        for step, values in run.steps:
            tracker.log(values, step=step)


TRACKERS = {"tensorboard": _to_tensorboard, "wandb": _to_wandb}
"""Writers by the name of library and extra."""
