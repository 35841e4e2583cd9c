"""`python -m lever_pipe ledger`: count what an answer ledger holds, check every line, make one file of many."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import secrets
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

from lever_pipe.base import atomic, storage
from lever_pipe.base.errors import DataError, LeverPipeError, RecordError
from lever_pipe.base.provenance import canonical_json
from lever_pipe.commands.telling import as_json, counted, in_columns
from lever_pipe.lvlms.asking.ledger import (
    DELETE_LINE,
    DIGEST,
    Field,
    Row,
    engines_of,
    introduce,
    is_torn,
    merge_into,
    parse_row,
    read_files,
    sealed_line,
)

KEY = re.compile(r"[0-9a-f]{64}")
ROUNDING = 1e-6  # nats by which rounding may lift the log-probability of a certain token above 0
SHOWN = 20  # disagreements that are told one by one; a ledger of two models may hold one a row

MERGE = """
Replace all files of FOLDER by one with one row a key, sorted by key. Of two values that disagree the first is kept
(files by name, lines in order), as a job keeps it; values are never averaged. Merging again changes nothing.

Running jobs may go on writing: the merged file is complete on disk before a file is removed, a file that has grown or
appeared meanwhile stays, and a job whose file was removed goes on in a new one. A killed merge loses nothing.

A line that was changed since it was written stops the merge, and so does one without a digest.
"""


@dataclass(slots=True)
class Survey:
    """What was read of one or more ledgers, line by line. A faulty line is noted and reading goes on.

    Attributes:
        seal: whether files without any digest, as they were once written, are taken as they stand.
        rows: merged rows by key, as `Ledger` merges them.
        sizes: bytes read of each file.
        lines: whole lines that hold a row.
        duplicates: those among them that add nothing to the rows before them.
        torn: places of incomplete last lines.
        unreadable: lines that are no row, and that `Ledger` refuses.
        ill: what is wrong with rows that no engine of this package writes; `rows` has none of them.
        disagreements: values that two rows of one key state differently; `told` describes the first `SHOWN`.
    """

    seal: bool = False
    rows: dict[str, Row] = field(default_factory=dict)
    sizes: dict[Path, int] = field(default_factory=dict)
    lines: int = 0
    duplicates: int = 0
    torn: list[str] = field(default_factory=list)
    unreadable: list[LeverPipeError] = field(default_factory=list)
    ill: list[LeverPipeError] = field(default_factory=list)
    disagreements: int = 0
    told: list[LeverPipeError] = field(default_factory=list)
    _stated: dict[tuple[str, Field], str] = field(default_factory=dict)  # where a field was met first

    @property
    def faults(self) -> list[LeverPipeError]:
        """All faults, of disagreements those that are told."""
        return [*self.unreadable, *self.ill, *self.told]

    @property
    def n_faults(self) -> int:
        """How many faults there are, all disagreements included."""
        return len(self.unreadable) + len(self.ill) + self.disagreements

    def counts(self) -> dict[str, int]:
        """Return what `ledger stats` shows, by name."""
        return {
            "files": len(self.sizes),
            "bytes": sum(self.sizes.values()),
            "rows": self.lines,
            "keys": len(self.rows),
            "answers_generated": sum("tokens" in row for row in self.rows.values()),
            "answers_scored": sum(len(_mapping(row.get("scores"))) for row in self.rows.values()),
            "duplicates": self.duplicates,
            "disagreements": self.disagreements,
            "torn_lines": len(self.torn),
            "unreadable_lines": len(self.unreadable),
            "ill_formed_values": len(self.ill),
        }

    def read(self, path: Path, content: bytes) -> None:
        """Add a file."""
        self.sizes[path] = len(content)
        sealed = not self.seal or DIGEST in content  # one writer wrote the file, so all of its lines or none
        for number, line in enumerate(BytesIO(content), start=1):
            if is_torn(line):
                self.torn.append(f"{path}:{number}")
                continue
            try:
                if not sealed:
                    storage.strict_json(line)  # can be read in one way only
                key, row = parse_row(line, path, number, sealed=sealed)
            except RecordError as fault:
                self.unreadable.append(fault)
                continue
            except ValueError as fault:
                what, found = f"{path}:{number}: expected a ledger row", storage.shortened(str(fault))
                self.unreadable.append(RecordError(what, found=found, do=DELETE_LINE))
                continue
            self.lines += 1
            place = f"{path}:{number}"
            ill = list(ill_values(key, row, place))
            self.ill += ill
            if not ill:
                added = merge_into(self.rows, key, row, disagree=partial(self._disagree, key, place))
                self.duplicates += not added
                self._stated.update(dict.fromkeys(((key, name) for name in added), place))

    def _disagree(self, key: str, place: str, name: Field, kept: Any, other: Any) -> None:
        self.disagreements += 1
        if self.disagreements <= SHOWN:
            outer = (name[:depth] for depth in range(len(name), -1, -1))  # it came alone, in a mapping or in a new row
            first = next(self._stated[key, part] for part in outer if (key, part) in self._stated)
            self.told.append(
                RecordError(
                    f"{place}: key {storage.shortened(key)}: "
                    f"expected {_name(name)} {storage.shortened(json.dumps(kept))} as in {first}",
                    found=storage.shortened(json.dumps(other)),
                    do="The first is used. Delete all rows of the key to have its prompt answered again.",
                )
            )


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
    """Run `ledger TOOL FOLDER` and return its exit status: 0, or 1 if `verify` found faults.

    Raises:
        LeverPipeError: no ledger there, or one that cannot be read, merged or written.
    """
    options = _parser().parse_args(words)
    try:
        return int(options.run(options))
    except OSError as fault:
        raise RecordError(
            f"{fault.filename or options.folder}: expected a ledger that can be read and written",
            found=str(fault),
            do="Mend its permissions or make room; no answer is lost.",
        ) from None


def read_ledgers(folders: Iterable[Path], *, seal: bool = False) -> Survey:
    """Read all files of ledgers, folder by folder, each by name.

    Args:
        folders: the ledgers.
        seal: see `Survey`.

    Raises:
        RecordError: folders that are missing or hold no ledger file.
    """
    survey = Survey(seal)
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


def ill_values(key: str, row: Row, where: str) -> Iterator[LeverPipeError]:
    """Yield what no engine of this package writes: another key than a digest, impossible log-probabilities."""
    place = f"{where}: key {storage.shortened(key)}"
    if not KEY.fullmatch(key):
        found = storage.shortened(f"'{key}'")
        yield RecordError(f"{where}: expected a key of 64 hexadecimal digits", found=found, do=DELETE_LINE)
    tokens, token_log_probs = row.get("tokens"), row.get("token_log_probs")
    if isinstance(tokens, list) and isinstance(token_log_probs, list) and len(tokens) != len(token_log_probs):
        yield RecordError(
            f"{place}: expected one of 'token_log_probs' for each of {len(tokens)} 'tokens'",
            found=str(len(token_log_probs)),
            do=DELETE_LINE,
        )
    for name, value in _log_probs(row):
        wrong = [entry for entry in value if not _is_log_prob(entry)] if isinstance(value, list) else [value]
        if wrong:
            yield RecordError(
                f"{place}: expected finite numbers up to 0 in {_name(name)}",
                found=storage.shortened(", ".join(map(json.dumps, wrong))),
                do=DELETE_LINE,
            )


def merge(
    folder: Path, others: Sequence[Path] = (), *, into: Path | None = None, drop: bool = False, seal: bool = False
) -> Merged:
    """Write the rows of ledgers into one file, one row a key, and remove the files of `folder` that it replaces.

    Equal rows give equal bytes, however they were spread over files. Files are removed from `folder` only, and only if
    the merged file lies in it.

    Args:
        folder: the ledger to merge; of values that disagree, its own is kept.
        others: ledgers that are read too and stay as they are.
        into: a `.jsonl` file, whose rows are kept if it exists, or a folder; None for `folder`.
        drop: leave out lines that `verify` finds at fault; their prompts are answered again.
        seal: give digests to the rows of files that have none.

    Raises:
        RecordError: a folder without ledger files, or a target that is neither folder nor `.jsonl` file.
        DataError: lines that cannot be read, rows that no engine writes, numbers that are not finite. Then nothing is
            written or removed.
    """
    _require_target(into)
    survey = read_ledgers([folder, *others], seal=seal)
    if into is not None and into.is_file() and into.resolve() not in {path.resolve() for path in survey.sizes}:
        survey.read(into, storage.read_bytes(into))
    if not drop:
        _require_readable([*survey.unreadable, *survey.ill], folder)
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


def _require_readable(faults: Sequence[LeverPipeError], folder: Path) -> None:
    if faults:
        raise DataError(
            f"{folder}: expected rows that can be merged",
            found=f"{counted(len(faults), 'fault')}, the first: {faults[0].expected}; found {faults[0].found}",
            do=f"List them: python -m lever_pipe ledger verify {folder}; or leave their lines out: ledger merge --drop",
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


def _run_stats(options: argparse.Namespace) -> int:
    counts = read_ledgers([options.folder]).counts()
    named = {name.replace("_", " "): count for name, count in counts.items()}
    sys.stdout.write(as_json(counts) if options.json else in_columns(named))
    return 0


def _run_verify(options: argparse.Namespace) -> int:
    survey = read_ledgers([options.folder])
    sys.stdout.writelines(f"{fault}\n" for fault in survey.faults)
    _tell_untold(survey)
    sys.stdout.writelines(
        f"note: {place}: the last line is torn, its writer was killed or writes on; its prompt is answered again\n"
        for place in survey.torn
    )
    verdict = counted(survey.n_faults, "fault") if survey.n_faults else "sound"
    held = f"{counted(survey.lines, 'row')} in {counted(len(survey.sizes), 'file')}"
    sys.stdout.write(f"{options.folder}: {verdict}; {held}\n")
    return 1 if survey.n_faults else 0


def _run_merge(options: argparse.Namespace) -> int:
    merged = merge(options.folder, options.others, into=options.into, drop=options.drop, seal=options.seal)
    survey = merged.survey
    sys.stdout.writelines(f"left out: {fault}\n" for fault in (*survey.unreadable, *survey.ill))
    sys.stdout.writelines(f"{fault}\n" for fault in survey.told)
    _tell_untold(survey)
    sys.stdout.write(
        f"read {counted(survey.lines, 'row')} in {counted(len(survey.sizes), 'file')}: "
        f"{counted(survey.disagreements, 'disagreement')}, {counted(len(survey.torn), 'torn line')}\n"
        f"{'wrote' if merged.written else 'unchanged'} {merged.target}: {counted(len(survey.rows), 'row')}\n"
        f"removed {counted(len(merged.removed), 'file')}; grown meanwhile, so kept: {len(merged.stayed):,}\n"
    )
    return 0


def _tell_untold(survey: Survey) -> None:
    if survey.disagreements > len(survey.told):
        more = survey.disagreements - len(survey.told)
        sys.stdout.write(f"... and {more:,} more disagreements ({survey.disagreements:,} in all)\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m lever_pipe")
    ledger = parser.add_subparsers(required=True).add_parser("ledger", description=__doc__)
    tools = ledger.add_subparsers(required=True, metavar="TOOL")
    stats = tools.add_parser("stats", help="count files, rows, answers, disagreements and torn lines")
    stats.add_argument("--json", action="store_true", help="print a JSON object")
    verify = tools.add_parser("verify", help="read every line; status 1 and one line for each fault")
    joined = tools.add_parser(
        "merge",
        help="make one file of all, one row a key; running jobs may go on writing",
        description=MERGE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for tool, run in ((stats, _run_stats), (verify, _run_verify), (joined, _run_merge)):
        tool.set_defaults(run=run)
        tool.add_argument("folder", type=Path, metavar="FOLDER", help="a ledger, as .lever_pipe/store/ledger")
        tool.add_argument("--debug", action="store_true", help="show the traceback of a fault")
    joined.add_argument("others", type=Path, nargs="*", metavar="OTHER", help="read these ledgers too; they stay")
    joined.add_argument(
        "--into",
        type=Path,
        metavar="FILE_OR_FOLDER",
        help="put the merged file here instead; outside FOLDER, then FOLDER keeps its files",
    )
    joined.add_argument(
        "--drop", action="store_true", help="leave out lines that are at fault; their prompts are answered again"
    )
    joined.add_argument(
        "--seal", action="store_true", help="take files that were written before lines had digests, and give them some"
    )
    return parser


def _log_probs(row: Row) -> Iterator[tuple[Field, Any]]:
    if "token_log_probs" in row:
        yield ("token_log_probs",), row["token_log_probs"]
    if "beam_score" in row:
        yield ("beam_score",), [row["beam_score"]]
    for answer, value in _mapping(row.get("scores")).items():
        yield ("scores", answer), value


def _is_log_prob(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and -sys.float_info.max <= value <= ROUNDING


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _name(name: Field) -> str:
    return storage.shortened(".".join(f"'{part}'" for part in name))
