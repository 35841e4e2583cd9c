"""A trainer's log as steps: values by the original's keys, each with the place where it stands.

Three formats, told apart by what a file holds: the console's lines `step:5 - actor/lr:0.000 - ...` among all else that
a run prints, the JSON lines of verl's file logger `{"step": 5, "data": {...}}`, and scalars as CSV `step,key,value`.
What a resumed run has done again replaces what it did before.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import NamedTuple, TextIO

from lever_pipe.base.errors import RecordError
from lever_pipe.base.storage import open_regular

CSV_HEADER = "step,key,value"
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
MARK = r"(?:\((?![^()]*Worker)[^()]*\bpid=\d+[^()]*\)\s*)?"
"""Ray's mark of the process that printed a line; those of workers stand before dialogues."""
BAR = r"(?:Training Progress:.*?\]\s*)?"
"""A progress bar does not end its line."""
STEP_LINE = re.compile(rf"\s*{MARK}{BAR}{MARK}step:(\d+) - (.+)", re.ASCII)
NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?|[+-]?(?:nan|inf)", re.ASCII | re.IGNORECASE)
NUMPY = re.compile(r"np\.\w+\((.*)\)")
THREE_DECIMALS = re.compile(r"-?\d+\.\d{3}", re.ASCII)
STEP = re.compile(r"\d{1,9}", re.ASCII)
SHOWN = 60
"""Characters of a faulty text that a message quotes."""
VALIDATION = re.compile(r"val(?:-core|-aux)?/")
TRAINING = re.compile(r"(?:actor|critic|training|global_seqlen)/")
"""Keys that only a training step logs; a resumed run validates the step that it starts from once more without them."""


class Reading(NamedTuple):
    """One logged number."""

    value: float
    """May be NaN or infinite: what that means depends on the key."""
    place: str
    """File and line."""
    is_rounded: bool = False
    """Printed with three decimals, as the fork's console does."""


class Logged(NamedTuple):
    """What a log says about a step at once."""

    step: int
    readings: dict[str, Reading]


class RunLog(NamedTuple):
    """What one run logged."""

    steps: Mapping[int, Mapping[str, Reading]]
    """By step, in rising order; 0 is before training."""
    n_replaced: int
    """Steps whose first account was replaced because the run was resumed before them."""


def read_log(paths: Sequence[Path]) -> RunLog:
    """Return the log of one run; several files continue each other, in this order.

    Raises:
        RecordError: a file is missing, holds no step or is damaged.
    """
    steps: dict[int, dict[str, Reading]] = {}
    n_replaced = 0
    for step, readings in (line for path in paths for line in read_file(path)):
        stale = [other for other in steps if other > step]
        if _is_trained(readings) and _is_trained(steps.get(step, {})):
            stale.append(step)
        n_replaced += len(stale)
        for other in stale:
            del steps[other]
        steps.setdefault(step, {}).update(readings)
    return RunLog(dict(sorted(steps.items())), n_replaced)


def is_validation(key: str) -> bool:
    """Return whether a key belongs to a validation."""
    return VALIDATION.match(key) is not None


def _is_trained(keys: Iterable[str]) -> bool:
    return any(TRAINING.match(key) for key in keys)


def read_file(path: Path) -> list[Logged]:
    """Return a log's lines in their order."""
    do = "Put the trainer's log there."
    try:
        with TextIOWrapper(open_regular(path), "utf-8-sig", "replace", "\n") as handle:
            first = next((line for line in handle if line.strip()), "")
            handle.seek(0)
            is_json = first.lstrip().startswith('{"')
            read = _read_csv if first.strip() == CSV_HEADER else _read_json if is_json else _read_console
            lines = list(read(handle, path))
    except (FileNotFoundError, IsADirectoryError):
        raise RecordError(f"{path}: expected a log", found="no such file", do=do) from None
    if not lines:
        raise RecordError(
            f"{path}: expected a log of verl: console lines `step:5 - actor/lr:... - ...`, JSON lines, or CSV",
            found=f"no line of a step; it begins with {_quoted(first)}" if first else "an empty file",
            do=do,
        )
    return lines


def _read_console(handle: TextIO, path: Path) -> Iterator[Logged]:
    for number, line in enumerate(handle, start=1):
        match = STEP_LINE.fullmatch(COLOUR.sub("", line).rstrip())
        if match:
            place = f"{path}:{number}"
            if not line.endswith("\n"):
                raise _damaged(place, "a whole line", "the file's end in the middle of it")
            yield Logged(_step(match[1], place), dict(_items(match[2], place)))


def _items(text: str, place: str) -> Iterator[tuple[str, Reading]]:
    for item in text.split(" - "):
        key, _, written = item.rpartition(":")
        value = _number(written)
        if not key or value is None:
            raise _damaged(place, "`key:value` items", _quoted(item))
        yield key.strip(), Reading(value, place, bool(THREE_DECIMALS.fullmatch(written)))


def _read_json(handle: TextIO, path: Path) -> Iterator[Logged]:
    for number, line in enumerate(handle, start=1):
        if not line.strip():
            continue
        place = f"{path}:{number}"
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            raise _damaged(place, "a JSON object", _quoted(line)) from None
        step, data = (row.get("step"), row.get("data")) if isinstance(row, dict) else (None, None)
        if type(step) is not int or not isinstance(data, dict):
            raise _damaged(place, '`{"step": ..., "data": {...}}`', _quoted(line))
        # Texts, because an integer may be beyond what a float holds.
        numbers = {key: float(str(+value)) for key, value in data.items() if isinstance(value, int | float)}
        yield Logged(_step(str(step), place), {key: Reading(value, place) for key, value in numbers.items()})


def _read_csv(handle: TextIO, path: Path) -> Iterator[Logged]:
    """Yield steps in their order. Rows of one key are in the order of logging, so a step back is a resumed run.

    What such a run has reached is where the keys end that went back; other keys have nothing to say beyond it.
    """
    by_key: dict[str, dict[int, Reading]] = {}
    resumed: set[str] = set()
    for place, row in _csv_rows(handle, path):
        value = _number(row[2]) if len(row) == CSV_HEADER.count(",") + 1 else None
        if value is None:
            raise _damaged(place, "`step,key,value`", _quoted(",".join(row)))
        step, known = _step(row[0], place), by_key.setdefault(row[1], {})
        stale = [other for other in known if other > step]
        resumed.update([row[1]] if stale else [])
        for other in stale:
            del known[other]
        known[step] = Reading(value, place)
    last = max((max(by_key[key]) for key in resumed), default=None)
    steps = sorted({step for known in by_key.values() for step in known if last is None or step <= last})
    for step in steps:
        yield Logged(step, {key: known[step] for key, known in by_key.items() if step in known})


def _csv_rows(handle: TextIO, path: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield the rows below the header, each with its place."""
    reader = csv.reader(handle, strict=True)
    try:
        next(reader)
        yield from ((f"{path}:{reader.line_num}", row) for row in reader if row)
    except csv.Error as fault:
        raise _damaged(f"{path}:{reader.line_num}", "CSV", str(fault)) from None


def _number(written: str) -> float | None:
    text = written.strip()
    if text in ("True", "False"):
        return float(text == "True")
    match = NUMPY.fullmatch(text)
    text = match[1] if match else text
    return float(text) if NUMBER.fullmatch(text) else None


def _step(written: str, place: str) -> int:
    if not STEP.fullmatch(written.strip()):
        raise _damaged(place, "a step's number of at most 9 digits", _quoted(written))
    return int(written)


def _quoted(text: str) -> str:
    text = text.strip()
    return repr(text if len(text) <= SHOWN else text[:SHOWN] + "...")


def _damaged(place: str, expected: str, found: str) -> RecordError:
    return RecordError(f"{place}: expected {expected}", found=found, do="Fix or remove that line.")
