"""What each artefact is worth now: its run card beside the files that the card names."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from lever_pipe.base import contents, storage
from lever_pipe.base.contents import Digests
from lever_pipe.base.errors import CheckpointError, RecordError
from lever_pipe.base.records import RunCard

NO_CARDS = frozenset(("ledger", "train2014", "val2014", "state"))
"""Folders below the results that hold many files and no run card."""
SAME_TIME_NS = 1_000_000_000
"""Snakemake gives the outputs of a job their times one after the other, when the job has ended."""
TIMESTAMP = ".snakemake_timestamp"
"""Snakemake's carrier of a folder's time."""
CARD = "card"


class Artefact(NamedTuple):
    """A run card with where its files lie now.

    Attributes:
        card: the run card's path.
        made: what it says; None if it cannot be read.
        paths: name -> path; those under the results follow them where these were moved.
    """

    card: Path
    made: RunCard | None
    paths: dict[str, Path]


class Verdict(NamedTuple):
    """What an artefact is worth.

    Attributes:
        changed: inputs that have another content than it was made from.
        damaged: outputs that are not whole, or that got another content without another time.
        replaced: outputs that got another content later: somebody put them there.
    """

    artefact: Artefact
    changed: tuple[str, ...] = ()
    damaged: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()

    @property
    def reason(self) -> str:
        """Return why the artefact has to be made again; nothing if it has not."""
        if self.artefact.made is None:
            return f"{self.artefact.card} cannot be read"
        parts = [f"damaged: {', '.join(self.damaged)}"] if self.damaged else []
        parts += [f"other content of {', '.join(self.changed)}"] if self.changed else []
        return "; ".join(parts)


def cards_below(results: Path) -> Iterator[Path]:
    """Yield the run cards below a folder, by folder and name."""
    for folder, subfolders, names in os.walk(results):
        subfolders[:] = sorted(name for name in subfolders if name not in NO_CARDS and not name.startswith("."))
        yield from (Path(folder) / name for name in sorted(names) if contents.is_card(Path(name)))


def files_without_card(results: Path, known: set[Path]) -> Iterator[Path]:
    """Yield the files below a folder that no run card names as outputs, nor as part of one."""
    for folder, subfolders, names in os.walk(results):
        here = Path(folder)
        subfolders[:] = sorted(
            name
            for name in subfolders
            if name not in NO_CARDS and not name.startswith(".") and here / name not in known
        )
        for name in sorted(names):
            path = here / name
            is_note = name.startswith(".") or name.endswith(("log.txt", "benchmark.jsonl")) or contents.is_card(path)
            if not is_note and path not in known:
                yield path


def read_artefact(card: Path) -> Artefact:
    """Return the artefact of a run card."""
    try:
        made = storage.read_row(card, RunCard)
    except (RecordError, OSError):
        return Artefact(card, None, {})
    if any("\0" in path for path in made.paths.values()):  # no file has such a name
        return Artefact(card, None, {})
    return Artefact(card, made, _moved(made.paths, card))


def judge(artefact: Artefact, digests: Digests) -> Verdict:
    """Return what an artefact is worth. What does not exist is nobody's fault: Snakemake makes what somebody needs."""
    made, paths = artefact.made, artefact.paths
    if made is None:
        return Verdict(artefact)
    inputs = {name: path for name, path in paths.items() if name in made.inputs}
    outputs = {name: path for name, path in paths.items() if name in made.outputs}
    changed = [name for name, path in inputs.items() if _differs(path, made.inputs[name], digests)]
    others = [name for name, path in outputs.items() if _differs(path, made.outputs[name], digests)]
    accepted = [n for n in others if n in made.replaced and not _differs(outputs[n], made.replaced[n], digests)]
    damaged = [n for n in others if n not in accepted and _is_damaged(outputs[n], artefact.card, digests)]
    return Verdict(artefact, tuple(changed), tuple(damaged), tuple(name for name in others if name not in damaged))


def accept(verdict: Verdict, digests: Digests) -> None:
    """Note in the run card what somebody put in the place of an output, so that it counts for that from now on.

    A file that comes without being noted, and with the time of its job, counts as damaged.
    """
    made, card = verdict.artefact.made, verdict.artefact.card
    if made is None:
        return
    replaced = {name: digests.of(verdict.artefact.paths[name]) for name in verdict.replaced}
    if replaced != made.replaced and read_artefact(card).made == made:  # else a job has made it again meanwhile
        time_ns = _time_ns(card)
        storage.write_row(card, made.model_copy(update={"replaced": replaced}))
        _set_time(card, time_ns)


def refresh(verdict: Verdict) -> None:
    """Let no output look older than an input whose content it was made from, so that a touched file reruns nothing."""
    artefact, made = verdict.artefact, verdict.artefact.made
    if made is None or verdict.reason:
        return
    inputs = [path for name, path in artefact.paths.items() if name in made.inputs]
    newest = max((time for path in inputs if (time := _time_ns(path))), default=0)
    outputs = [path for name, path in artefact.paths.items() if name not in made.inputs]
    for path in (*outputs, benchmark_of(artefact.card)):
        if 0 < _time_ns(path) < newest:
            _set_time(path, newest)


def benchmark_of(card: Path) -> Path:
    """Return where Snakemake's record of a job's time lies."""
    return card.with_name(card.name.removesuffix("run.json") + "benchmark.jsonl")


def _moved(paths: Mapping[str, str], card: Path) -> dict[str, Path]:
    """Return the paths as they are where the results were moved or copied to."""
    then, now = Path(paths.get(CARD, str(card))).parts, card.parts
    same = 0
    while same < min(len(then), len(now)) and then[-1 - same] == now[-1 - same]:
        same += 1
    old, root = Path(*then[: len(then) - same]), Path(*now[: len(now) - same])
    if same == 0 or old == root:
        return {name: Path(path) for name, path in paths.items()}
    inside = {name: Path(path).is_relative_to(old) for name, path in paths.items()}
    return {n: root / Path(p).relative_to(old) if inside[n] else Path(p) for n, p in paths.items()}


def _differs(path: Path, expected: str, digests: Digests) -> bool:
    try:
        return digests.of(path) != expected
    except FileNotFoundError:
        return False
    except (CheckpointError, OSError):
        return True


def _is_damaged(path: Path, card: Path, digests: Digests) -> bool:
    try:
        digests.of(path)
    except (CheckpointError, OSError):
        return True
    return abs(_time_ns(path) - _time_ns(card)) <= SAME_TIME_NS


def _time_ns(path: Path) -> int:
    """Return a file's or folder's time as Snakemake takes it; 0 without one."""
    for candidate in (path / TIMESTAMP, path):
        try:
            return candidate.stat().st_mtime_ns
        except OSError:
            continue
    return 0


def _set_time(path: Path, time_ns: int) -> None:
    carrier = path / TIMESTAMP if (path / TIMESTAMP).exists() else path
    with suppress(OSError):  # a folder that may only be read: Snakemake looks at the job, and it is spared then
        os.utime(carrier, ns=(time_ns, time_ns))
