"""The console log of verl as steps: values by the original's keys, each with the place where it stands.

Lines `step:5 - actor/lr:0.000 - ...` are read from among all else that a run prints. What a resumed run has done again
replaces what it did before.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from io import TextIOWrapper
from pathlib import Path
from typing import NamedTuple

from lever_pipe.base.errors import RecordError
from lever_pipe.base.storage import open_regular

COLOUR = re.compile(r"\x1b\[[0-9;]*m")
MARK = r"(?:\((?![^()]*Worker)[^()]*\bpid=\d+[^()]*\)\s*)?"
"""Ray's mark of the process that printed a line; those of workers stand before dialogues."""
BAR = r"(?:Training Progress:.*?\]\s*)?"
"""A progress bar does not end its line."""
STEP_LINE = re.compile(rf"\s*{MARK}{BAR}{MARK}step:(\d+) - (.+)", re.ASCII)
NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?|[+-]?(?:nan|inf)", re.ASCII | re.IGNORECASE)
NUMPY = re.compile(r"np\.\w+\((.*)\)")
THREE_DECIMALS = re.compile(r"-?\d+\.\d{3}", re.ASCII)
LONGEST_STEP = 9
"""Digits of a step's number."""
SHOWN = 60
"""Characters of a faulty text that a message quotes."""
TRAINING = re.compile(r"(?:actor|critic|training|global_seqlen)/")
"""Keys that only a training step logs; a resumed run validates the step that it starts from once more without them."""


class Reading(NamedTuple):
    """One logged number."""

    value: float
    """May be NaN or infinite: what that means depends on the key."""
    place: str
    """File and line."""
    is_rounded: bool
    """Printed with three decimals, as the fork's console does."""


Readings = dict[str, Reading]


def read_log(path: Path) -> dict[int, Readings]:
    """Return what a run logged of each step, in rising order; step 0 is before training.

    Raises:
        RecordError: the file is missing, holds no step or is damaged.
    """
    steps: dict[int, Readings] = {}
    for step, readings in _lines_in(path):
        is_again = _is_trained(readings) and _is_trained(steps.get(step, {}))
        for stale in [other for other in steps if other > step or (other == step and is_again)]:
            del steps[stale]
        steps.setdefault(step, {}).update(readings)
    if not steps:
        raise RecordError(
            f"{path}: expected the console's log of verl, lines `step:5 - actor/lr:0.000 - ...`",
            found="no line of a step",
            do="Put the trainer's log there.",
        )
    return dict(sorted(steps.items()))


def _is_trained(keys: Iterable[str]) -> bool:
    return any(TRAINING.match(key) for key in keys)


def _lines_in(path: Path) -> Iterator[tuple[int, Readings]]:
    try:
        handle = TextIOWrapper(open_regular(path), "utf-8", "replace", "\n")
    except (FileNotFoundError, IsADirectoryError):
        raise RecordError(f"{path}: expected a log", found="no such file", do="Put the trainer's log there.") from None
    with handle:
        for number, line in enumerate(handle, start=1):
            match = STEP_LINE.fullmatch(COLOUR.sub("", line).rstrip())
            if match:
                place = f"{path}:{number}"
                if not line.endswith("\n"):
                    raise _damaged(place, "a whole line", "the file's end in the middle of it")
                if len(match[1]) > LONGEST_STEP:
                    raise _damaged(place, f"a step's number of at most {LONGEST_STEP} digits", _quoted(match[1]))
                yield int(match[1]), dict(_items(match[2], place))


def _items(text: str, place: str) -> Iterator[tuple[str, Reading]]:
    for item in text.split(" - "):
        key, _, written = item.rpartition(":")
        value = _number(written.strip())
        if not key or value is None:
            raise _damaged(place, "`key:value` items", _quoted(item))
        yield key.strip(), Reading(value, place, bool(THREE_DECIMALS.fullmatch(written)))


def _number(written: str) -> float | None:
    if written in ("True", "False"):
        return float(written == "True")
    match = NUMPY.fullmatch(written)
    text = match[1] if match else written
    return float(text) if NUMBER.fullmatch(text) else None


def _quoted(text: str) -> str:
    text = text.strip()
    return repr(text if len(text) <= SHOWN else text[:SHOWN] + "...")


def _damaged(place: str, expected: str, found: str) -> RecordError:
    return RecordError(f"{place}: expected {expected}", found=found, do="Fix or remove that line.")
