"""`python -m lever_pipe ledger merge FOLDER`: make one file of the many that jobs leave in an answer ledger.

Replaces all files of FOLDER by one with one row a key, sorted by key. Of two values that disagree the first is kept
(files by name, lines in order), as a job keeps it; values are never averaged. Merging again changes nothing.

Running jobs may go on writing: the merged file is complete on disk before a file is removed, a file that has grown or
appeared meanwhile stays, and a job whose file was removed goes on in a new one. A killed merge loses nothing.

A line that was changed since it was written, or that has no digest, stops the merge.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import secrets
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

from lever_pipe.base import atomic, storage
from lever_pipe.base.errors import DataError, RecordError
from lever_pipe.base.provenance import canonical_json
from lever_pipe.commands.telling import counted
from lever_pipe.lvlms.asking.ledger import (
    Row,
    engines_of,
    introduce,
    is_torn,
    merge_into,
    parse_row,
    read_files,
    sealed_line,
)

SHOWN = 20  # keys that a refusal names


@dataclass(slots=True)
class Survey:
    """What was read of one or more ledgers, line by line. A damaged line is noted and reading goes on.

    Attributes:
        rows: merged rows by key, as `Ledger` merges them.
        sizes: bytes read of each file.
        lines: whole lines that hold a row.
        torn: incomplete last lines.
        damaged: lines that `Ledger` refuses.
        disagreements: values that two rows of one key state differently.
    """

    rows: dict[str, Row] = field(default_factory=dict)
    sizes: dict[Path, int] = field(default_factory=dict)
    lines: int = 0
    torn: int = 0
    damaged: list[RecordError] = field(default_factory=list)
    disagreements: int = 0

    def read(self, path: Path, content: bytes) -> None:
        """Add a file."""
        self.sizes[path] = len(content)
        for number, line in enumerate(BytesIO(content), start=1):
            if is_torn(line):
                self.torn += 1
                continue
            try:
                key, row = parse_row(line, path, number)
            except RecordError as fault:
                self.damaged.append(fault)
                continue
            self.lines += 1
            self.disagreements += merge_into(self.rows, key, row)[1]


class Merged(NamedTuple):
    """What a merge did.

    Attributes:
        target: the merged file.
        written: False if it was there already, byte for byte.
        removed: files whose rows it holds.
        stayed: files that grew while they were merged.
        survey: what was read.
    """

    target: Path
    written: bool
    removed: list[Path]
    stayed: list[Path]
    survey: Survey


def main(words: Sequence[str]) -> int:
    """Merge a ledger's files, say what was done and return 0.

    Raises:
        RecordError: no ledger there, or one that cannot be read or written.
        DataError: rows that cannot be merged.
    """
    options = _parser().parse_args(words[1:])
    try:
        merged = merge(options.folder, options.others, into=options.into, drop=options.drop)
    except OSError as fault:
        raise RecordError(
            f"{fault.filename or options.folder}: expected a ledger that can be read and written",
            found=str(fault),
            do="Mend its permissions or make room; no answer is lost.",
        ) from None
    survey = merged.survey
    sys.stdout.writelines(f"left out: {fault}\n" for fault in survey.damaged)
    sys.stdout.write(
        f"read {counted(survey.lines, 'row')} in {counted(len(survey.sizes), 'file')}: "
        f"{counted(survey.disagreements, 'disagreement')}, {counted(survey.torn, 'torn line')}\n"
        f"{'wrote' if merged.written else 'unchanged'} {merged.target}: {counted(len(survey.rows), 'row')}\n"
        f"removed {counted(len(merged.removed), 'file')}; grown meanwhile, so kept: {len(merged.stayed):,}\n"
    )
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m lever_pipe ledger", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tool", choices=("merge",))
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="a ledger, as .lever_pipe/store/ledger")
    parser.add_argument("others", type=Path, nargs="*", metavar="OTHER", help="read these ledgers too; they stay")
    parser.add_argument(
        "--into",
        type=Path,
        metavar="FILE_OR_FOLDER",
        help="put the merged file here instead; outside FOLDER, then FOLDER keeps its files",
    )
    parser.add_argument("--drop", action="store_true", help="leave out damaged lines; their prompts are answered again")
    parser.add_argument("--debug", action="store_true", help="show the traceback of a fault")
    return parser


def read_ledgers(folders: Iterable[Path]) -> Survey:
    """Read all files of ledgers, folder by folder, each by name.

    Raises:
        RecordError: folders that are missing or hold no ledger file.
    """
    survey = Survey()
    seen: set[str] = set()
    empty = []
    for folder in folders:
        real = os.path.realpath(folder)  # `resolve` fails on a link to itself
        if real in seen:
            continue
        seen.add(real)
        before = len(survey.sizes)
        for path, content in read_files(folder):
            survey.read(path, content)
        if len(survey.sizes) == before:
            empty.append(f"{folder}: {'no such file' if folder.is_dir() else 'no folder'}")
    if empty:
        raise RecordError(
            "expected a folder with ledger files (*.jsonl)",
            found="; ".join(empty),
            do="Name the `ledger` folder of the store, as .lever_pipe/store/ledger, or without a store of the results.",
        )
    return survey


def merge(folder: Path, others: Sequence[Path] = (), *, into: Path | None = None, drop: bool = False) -> Merged:
    """Write the rows of ledgers into one file, one row a key, and remove the files of `folder` that it replaces.

    Equal rows give equal bytes, however they were spread over files. Files are removed from `folder` only, and only if
    the merged file lies in it.

    Args:
        folder: the ledger to merge; of values that disagree, its own is kept.
        others: ledgers that are read too and stay as they are.
        into: a `.jsonl` file, whose rows are kept if it exists, or a folder; None for `folder`.
        drop: leave out damaged lines; their prompts are answered again.

    Raises:
        RecordError: a folder without ledger files, or a target that is neither folder nor `.jsonl` file.
        DataError: damaged lines, or numbers that are not finite. Then nothing is written or removed.
    """
    _require_target(into)
    survey = read_ledgers([folder, *others])
    if into is not None and into.is_file() and into.resolve() not in {path.resolve() for path in survey.sizes}:
        survey.read(into, storage.read_bytes(into))
    if not drop:
        _require_readable(survey.damaged, folder)
    digest = _digest(survey.rows, folder)
    # What was met first stays first beside the file of a running job: the name sorts before every host's. By content,
    # it is never written twice with different rows.
    place = into or folder
    is_file = place.suffix == ".jsonl" and not place.is_dir()
    target = place if is_file else place / f"0-merged-{digest[:16]}.jsonl"
    written = not target.exists() or storage.digest(target) != digest
    if written:
        lines = (_line(key, survey.rows[key]) for key in sorted(survey.rows))
        atomic.write_file(target, lambda handle: handle.writelines(lines))
    for source in (folder, *others):
        introduce(target.parent, engines_of(source))
    # The content and its new name are on disk before an old file goes.
    removed, stayed = _remove_merged(folder, target, survey.sizes)
    return Merged(target, written, removed, stayed, survey)


def _require_target(into: Path | None) -> None:
    if into is not None and into.suffix != ".jsonl" and into.exists() and not into.is_dir():
        raise RecordError(
            f"{into}: expected a folder or a .jsonl file to merge into",
            found="another file",
            do="Name the target so that a ledger reads it, as NAME.jsonl.",
        )


def _require_readable(faults: Sequence[RecordError], folder: Path) -> None:
    if faults:
        raise DataError(
            f"{folder}: expected rows that can be merged",
            found=f"{counted(len(faults), 'fault')}, the first: {faults[0].expected}; found {faults[0].found}",
            do="Delete these lines, or leave them out: ledger merge --drop. Their prompts are answered again.",
        )


def _digest(rows: dict[str, Row], folder: Path) -> str:
    digest = hashlib.sha256()
    refused = []
    for key in sorted(rows):
        try:
            digest.update(_line(key, rows[key]))
        except ValueError:
            refused.append(key)
    if refused:
        raise DataError(
            f"{folder}: expected finite numbers",
            found=f"others in {counted(len(refused), 'key')}: {', '.join(refused[:SHOWN])}",
            do="Delete the rows of each key; its prompt is answered again.",
        )
    return digest.hexdigest()


def _line(key: str, row: Row) -> bytes:
    return sealed_line(canonical_json({"key": key, **row}))


def _remove_merged(folder: Path, target: Path, sizes: dict[Path, int]) -> tuple[list[Path], list[Path]]:
    """Return the files of `folder` that were removed and those that stay because they grew."""
    if target.resolve().parent != folder.resolve():
        return [], []
    own = [path for path in sizes if path.parent.resolve() == folder.resolve() and path.name != target.name]
    removed = [path for path in own if _remove_unless_grown(path, sizes[path])]
    return removed, [path for path in own if path not in removed]


def _remove_unless_grown(path: Path, size: int) -> bool:
    """Return whether the file is gone.

    Between a look at the size and the removal its writer may append. So the file is moved aside first, to a name that
    readers find: a writer that comes later misses its file and writes its chunk again, one that came before shows in
    the size.
    """
    try:
        if path.stat().st_size != size:
            return False
        aside = path.rename(path.with_name(f"{path.stem}-{secrets.token_hex(4)}.jsonl"))
        if aside.stat().st_size != size:
            return False
        aside.unlink()
    except FileNotFoundError:
        return True  # another merge was faster
    return True
