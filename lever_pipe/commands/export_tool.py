"""`lever-pipe export TRACKER RESULTS OUT`: the curves of finished work for TensorBoard or W&B, offline.

One run a policy or arm and seed, with what its run card states and every row of its curves. Then
`tensorboard --logdir OUT` shows them, or `wandb sync OUT/wandb/offline-run-*` sends them. A tracker's library is the
extra of its name. TensorBoard keeps 32 bits of a value; the CSV files keep all.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from lever_pipe.base import storage
from lever_pipe.base.errors import ConfigError, RecordError, shortened
from lever_pipe.base.records import RunCard
from lever_pipe.commands.compare_tool import facts
from lever_pipe.report.sources import trained

TABLES = {
    "lever/tables/training.csv": trained,
    "lever/tables/arms_training.csv": trained,
    "intention/tables/curves.csv": "arm~{arm}/seed~{seed}".format_map,
}
"""File of curves below the results -> the policy or agent that a line is of."""
UNNAMED = re.compile(r"/epoch~\d+$|/\w+~(?=/|$)")  # of a policy's name: its epoch, and numbers that do not apply


class TrackedRun(NamedTuple):
    """A policy's training, by its name without epoch, or an arm's run; `steps`: by step or epoch its metrics."""

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
    except ModuleNotFoundError as fault:
        do = f"Install it: pip install 'lever-pipe[{options.tracker}]'."
        raise ConfigError(f"expected the library {options.tracker}", found=f"no module {fault.name}", do=do) from None
    sys.stdout.write(f"{out}: {len(runs)} runs\n")
    return 0


def tracked_runs(results: Path) -> list[TrackedRun]:
    """Return the runs of all files of curves below a results folder, by name; `RecordError` as in `main`."""
    metrics: dict[str, dict[int, dict[str, float]]] = {}
    for name, subject in TABLES.items():
        path = results / name
        lines = csv.DictReader(path.read_text(encoding="utf-8").splitlines()) if path.is_file() else ()
        for number, line in enumerate(lines, start=2):
            try:
                run, step = UNNAMED.sub("", subject(line)), int(line.get("step") or line.get("epoch") or 0)
                of_agent = ("split", "mode") if "split" in line else ()  # a selector's mode is in its name
                metric = "/".join(filter(None, (line[part] for part in (*of_agent, "metric"))))
                value = float(line["value"] or "nan")  # an empty one was no number
            except (KeyError, TypeError, ValueError) as fault:
                needs, seen = f"{path}:{number}: expected a row of curves", shortened(repr(fault))
                raise RecordError(needs, found=seen, do="Build the file again.") from None
            if math.isfinite(value):
                metrics.setdefault(run, {}).setdefault(step, {})[metric] = value
    if not metrics:
        needs, do = f"{results}: expected the curves of a finished run", "Name a results folder; finish its run first."
        raise RecordError(needs, found=f"none in {', '.join(TABLES)}", do=do)
    return [TrackedRun(run, _facts(results, run, max(m)), sorted(m.items())) for run, m in sorted(metrics.items())]


def _facts(results: Path, run: str, last: int) -> dict[str, str]:
    """Return what the run card of a policy's last epoch or of an arm's run states."""
    cards = (results / "lever" / run / f"epoch~{last}/run.json", results / "intention" / run / "run.json")
    return {key: value for card in cards if card.is_file() for key, value in facts(storage.read_row(card, RunCard))}


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
"""By the name of library and extra."""
