"""`python -m lever_pipe export TRACKER RESULTS OUT`: the curves of finished work as runs of a tracker of experiments.

One run a policy or arm and seed, with its configuration, its lineage and every row of `training.csv`,
`arms_training.csv` and `curves.csv`. It is written after the fact and offline, outside any job; then it is read back by
the tracker's own library and compared row for row. Each tracker is an extra: pip install 'lever-pipe[TRACKER]'.
"""

from __future__ import annotations

import argparse
import csv
import logging
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import cast

from lever_pipe.base import storage
from lever_pipe.base.errors import ConfigError, RecordError
from lever_pipe.base.parsing import load_member
from lever_pipe.base.policy_names import group_of
from lever_pipe.base.records import RunCard
from lever_pipe.commands.card_differences import facts
from lever_pipe.commands.telling import counted
from lever_pipe.commands.trackers.protocol import TrackedRun, Tracker, Values
from lever_pipe.report import sources

KIND = "commands/trackers"
TABLES = {
    "lever/tables/training.csv": sources.training.subject,
    "lever/tables/arms_training.csv": sources.training.subject,
    "lever/emulation/training.csv": sources.emulated_training.subject,
    "intention/tables/curves.csv": "arm~{arm}/seed~{seed}",
}
"""File of curves below the results -> the policy or agent that a line is of."""
LINEAGE = "lever/tables/lineage.csv"
_EPOCH = re.compile(r"/epoch~(\d+)$")


def main(words: Sequence[str]) -> int:
    """Write the runs of a results folder for a tracker, read them back and return 0.

    Raises:
        UnknownMemberError: no such tracker; the nearest is named.
        ConfigError: its library is not installed, or the folder is not empty.
        RecordError: no curves, two rows for one value, or a tracker that gives other values back.
    """
    parser = argparse.ArgumentParser(prog="python -m lever_pipe export", description=__doc__)
    parser.add_argument("tracker")
    parser.add_argument("results", type=Path)
    parser.add_argument("out", type=Path)
    options = parser.parse_args(words[1:])
    tracker, out = cast("Tracker", load_member(KIND, options.tracker)), options.out.absolute()
    runs, project = tracked_runs(options.results), options.results.absolute().name
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(
            f"{out}: expected an empty folder, or none", found="another", do="Name another, or remove it."
        )
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
        wanted = f"{results}: expected the curves of a finished run"
        raise RecordError(
            wanted, found=f"none of {', '.join(TABLES)}", do="Name a results folder; finish its run first."
        )
    found: Values = {}
    for name in tables:
        for source, subject, step, metric, value in _rows(results / name, TABLES[name]):
            values = found.setdefault(subject, {})
            if (step, metric) in values:
                at = f"{subject}, {metric} at {step}"
                raise RecordError(f"{source}: expected one row a value", found=f"two of {at}", do="Build it again.")
            values[step, metric] = value
    lineage = _lineage(results / LINEAGE)
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
        name, step, metric = other[0]
        was, now = wrote.get(other[0]), back.get(other[0])
        raise RecordError(
            f"{of}: expected every row as it was written",
            found=f"{counted(len(other), 'other row')}, first {name}, {metric} at {step}: {was}, read back {now}",
            do="Install the versions that pyproject.toml names, or report it.",
        )


def _rows(path: Path, subject: object) -> Iterator[tuple[str, str, int, str, float]]:
    """Yield where it stands, run, step, metric and value of each line that has a value."""
    with path.open(encoding="utf-8", newline="") as handle:
        for number, line in enumerate(csv.DictReader(handle), start=2):
            if not line["value"]:  # was no number
                continue
            of = subject(line) if callable(subject) else str(subject).format_map(line)
            metric = "/".join(
                filter(None, (line.get("split"), line.get("mode") if "split" in line else "", line["metric"]))
            )
            epoch = line.get("step") or line.get("epoch") or 0
            yield f"{path}:{number}", _EPOCH.sub("", of), int(epoch), metric, float(line["value"])


def _run(
    results: Path, name: str, values: Mapping[tuple[int, str], float], lineage: Mapping[str, dict[str, str]]
) -> TrackedRun:
    """Return a run with what the card of its last epoch and the lineage of its group state."""
    last = max(step for step, _ in values)
    places = [results / "lever" / f"{name}/epoch~{last}", results / "intention" / name]
    cards = [path / "run.json" for path in places if (path / "run.json").is_file()]
    told = {key: value for card in cards[:1] for key, value in facts(storage.read_row(card, RunCard))}
    told |= lineage.get(group_of(f"{name}/epoch~{last}"), {})
    kinds = [part for part in name.split("/") if "~" not in part]
    return TrackedRun(name, kinds[0] if kinds else "agent", told, values)


def _lineage(path: Path) -> dict[str, dict[str, str]]:
    """Return group -> `lineage.FIELD` -> value; nothing of a study without that file."""
    found: dict[str, dict[str, str]] = {}
    if path.is_file():
        with path.open(encoding="utf-8", newline="") as handle:
            for line in csv.DictReader(handle):
                found.setdefault(line["group"], {})[f"lineage.{line['field']}"] = line["value"]
    return found
