"""`python -m lever_pipe export TRACKER RESULTS OUT`: the curves of finished work as runs of a tracker of experiments.

One run a policy or arm and seed, with its configuration, its lineage and every row of `training.csv`,
`arms_training.csv` and `curves.csv`. It is written after the fact and offline, outside any job; then it is read back by
the tracker's own library and compared row for row. Each tracker is an extra: pip install 'lever-pipe[TRACKER]'.
"""

from __future__ import annotations

import argparse
import csv
import logging
import math
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from lever_pipe.base import storage
from lever_pipe.base.errors import ConfigError, RecordError
from lever_pipe.base.policy_names import group_of
from lever_pipe.base.records import RunCard
from lever_pipe.base.sections import did_you_mean
from lever_pipe.commands.compare_tool import facts
from lever_pipe.commands.telling import counted
from lever_pipe.commands.trackers import TRACKERS, TrackedRun, Values
from lever_pipe.report import sources

TABLES = {
    "lever/tables/training.csv": sources.training.subject,
    "lever/tables/arms_training.csv": sources.training.subject,
    "intention/tables/curves.csv": "arm~{arm}/seed~{seed}",
}
"""File of curves below the results -> the policy or agent that a line is of."""
Line = dict[str, str]
LINEAGE = "lever/tables/lineage.csv"
_UNNAMED = re.compile(r"/epoch~\d+$|/\w+~(?=/|$)")
"""What a run's name leaves out of a policy's: its epoch, and numbers that do not apply."""


def main(words: Sequence[str]) -> int:
    """Write the runs of a results folder for a tracker, read them back and return 0.

    Raises:
        ConfigError: no such tracker, its library is not installed, or the folder is not empty.
        RecordError: no curves, two rows for one value, or a tracker that gives other values back.
    """
    parser = argparse.ArgumentParser(prog="python -m lever_pipe export", description=__doc__)
    parser.add_argument("tracker")
    parser.add_argument("results", type=Path)
    parser.add_argument("out", type=Path)
    options = parser.parse_args(words[1:])
    if options.tracker not in TRACKERS:
        found, do = storage.shortened(options.tracker), did_you_mean(options.tracker, TRACKERS, "Name one of them.")
        raise ConfigError(f"export: expected one of {', '.join(TRACKERS)}", found=f"'{found}'", do=do)
    tracker, out = TRACKERS[options.tracker], options.out.absolute()
    runs, project = tracked_runs(options.results), options.results.absolute().name
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out}: expected an empty folder, or none", found="another", do="Name one, or remove it.")
    logging.getLogger(options.tracker).setLevel(logging.WARNING)
    try:
        out.mkdir(parents=True, exist_ok=True)
        tracker.write(runs, out, project)
        require_same(runs, tracker.read(out, project), of=f"{options.tracker}, {out}")
    except ModuleNotFoundError as fault:
        raise ConfigError(
            f"export: expected the library {options.tracker}",
            found=f"no module {fault.name}",
            do=f"Install it: pip install 'lever-pipe[{options.tracker}]'.",
        ) from None
    n_values = sum(len(run.values) for run in runs)
    sys.stdout.write(f"{out}: {counted(len(runs), 'run')}, {counted(n_values, 'value')}, read back and equal.\n")
    return 0


def tracked_runs(results: Path) -> list[TrackedRun]:
    """Return the runs of all files of curves below a results folder, by name.

    Raises:
        RecordError: no such file, a value that is none, or two rows for one value.
    """
    tables = [name for name in TABLES if (results / name).is_file()]
    if not tables:
        wanted, do = f"{results}: expected the curves of a finished run", "Name a results folder; finish its run first."
        raise RecordError(wanted, found=f"none of {', '.join(TABLES)}", do=do)
    found: Values = {}
    for name in tables:
        for source, subject, step, metric, value in _rows(results / name, TABLES[name]):
            values = found.setdefault(subject, {})
            if (step, metric) in values:
                at = f"{subject}, {metric} at {step}"
                raise RecordError(f"{source}: expected one row a value", found=f"two of {at}", do="Build it again.")
            values[step, metric] = value
    lineage = _lines(results / LINEAGE) if (results / LINEAGE).is_file() else []
    return [_run(results, name, values, lineage) for name, values in sorted(found.items())]


def require_same(runs: Sequence[TrackedRun], read: Values, *, of: str) -> None:
    """Compare what a tracker gives back with what was written.

    Raises:
        RecordError: another run or row, or another value.
    """
    wrote = {(run.name, *at): value for run in runs for at, value in run.values.items()}
    back = {(name, *at): value for name, values in read.items() for at, value in values.items()}
    other = sorted(key for key in wrote.keys() | back.keys() if wrote.get(key) != back.get(key))
    if other:
        first = f"{other[0]}: {wrote.get(other[0])}, read back {back.get(other[0])}"
        found = f"{counted(len(other), 'other row')}, first {first}"
        raise RecordError(f"{of}: expected every row as written", found=found, do="Install the extra's versions.")


def _rows(path: Path, subject: object) -> Iterator[tuple[str, str, int, str, float]]:
    """Yield where it stands, run, step, metric and value of each line that has a value."""
    for number, line in enumerate(_lines(path), start=2):
        try:
            of = subject(line) if callable(subject) else str(subject).format_map(line)
            parts = (line["split"], line["mode"], line["metric"]) if "split" in line else (line["metric"],)
            step = int(line.get("step") or line.get("epoch") or 0)
            value = float(line["value"] or "nan")  # an empty one was no number
        except (KeyError, TypeError, ValueError) as fault:
            wanted, do = f"{path}:{number}: expected a row of curves", "Build the file again."
            raise RecordError(wanted, found=storage.shortened(repr(fault)), do=do) from None
        if math.isfinite(value):
            yield f"{path}:{number}", _UNNAMED.sub("", of), step, "/".join(filter(None, parts)), value


def _run(results: Path, name: str, values: Mapping[tuple[int, str], float], lineage: Sequence[Line]) -> TrackedRun:
    """Return a run with what the card of its last epoch and the lineage of its group state."""
    policy = f"{name}/epoch~{max(step for step, _ in values)}"
    agent = name.partition("/")[0].removeprefix("arm~")
    untrained = "start" if agent == "start" else f"served~{agent}"
    folders = (f"lever/{policy}", f"intention/{name}", f"intention/{untrained}")
    cards = [results / folder / "run.json" for folder in folders]
    told = {key: value for card in cards if card.is_file() for key, value in facts(storage.read_row(card, RunCard))}
    told |= {f"lineage.{line['field']}": line["value"] for line in lineage if line["group"] == group_of(policy)}
    kind = next((part for part in name.split("/") if "~" not in part), "agent")
    return TrackedRun(name, kind, told, values)


def _lines(path: Path) -> list[Line]:
    with path.open(encoding="utf-8", newline="") as handle:
        return list(csv.DictReader(handle))
