"""An append-only, content-addressed store of LVLM answers that many jobs may write at once.

A ledger is a folder of JSON-lines files, one file a writer, so no writer ever waits for another and no lock is needed
on a shared file system. A row is a flat JSON object; mappings inside it (log-probabilities by answer) grow by union.

A line begins with its key and ends in the digest of its own bytes, `..."sha256":"<16 hexadecimal digits>"}`: the
beginning of the sha256 of all bytes before `,"sha256"`. Whoever reads compares, so an answer that a disk, a copy or an
editor has changed is never used. The digest has no key: it tells of accidents, not of forgers.

A key begins with the digest of the engine that answered (`ENGINE_DIGITS`): model, code, libraries, numeric path. What
that was stands beside the rows in `engine-<digest>.json`, so that a ledger can tell whose answers it holds.

`ledger_tools.merge` may replace the files by one at any time. Readers and writers bear it without a lock: a reader
whose file is gone lists the folder again, and a writer whose file is gone goes on in a new one.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import secrets
import socket
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any, Literal, NamedTuple

from lever_pipe.base import atomic, storage
from lever_pipe.base.errors import FULL, ConfigError, RecordError

log = logging.getLogger(__name__)

ROWS_PER_CHUNK = 256  # a killed job loses at most these
LOG_PROB_TOLERANCE = 1e-4  # nats; one prompt in two fp32 batches differs by about 1e-5
DELETE_LINE = "Delete this line; its prompt is answered again."
DISPLAY_LIMIT = 200  # characters of a faulty line in a message
KEY = b'{"key":"'  # begins a line
DIGEST = b',"sha256":"'  # before a line's digest, which follows in 16 digits
DIGEST_LENGTH = 16
ENGINE_DIGITS = 16
MANY = 1000  # answers that a GPU does not make again without confirmation
END = b'"}\n'
SEAL_LENGTH = len(DIGEST) + DIGEST_LENGTH + len(END)
GONE = (errno.ENOENT, errno.ESTALE)  # the second: removed by another machine of a network file system

Row = dict[str, Any]


class Line(NamedTuple):
    """A whole line and where it stands, counted from 1."""

    content: bytes
    path: Path
    number: int


class Ledger:
    """Rows by key: lines are read once at the start, each parsed when it is asked for; extended in memory and on disk.

    Args:
        folder: where the files lie; None keeps the rows in memory only.

    Attributes:
        disagreements: values that two rows of one key state differently. The first one met (files by name, lines in
            order) is kept; values are never averaged.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self.disagreements = 0
        self._rows: dict[str, Row | Line] = {}
        self._pending: list[bytes] = []
        self._path: Path | None = None
        self._has_warned = False
        for path, content in read_files(folder) if folder is not None else ():
            self._read(path, content)
        if self.disagreements:
            log.warning("%s: %d values disagree between rows of one key; the first is used", folder, self.disagreements)

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, key: str) -> bool:
        return key in self._rows

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def get(self, key: str) -> Row | None:
        """Return the merged row of `key`, or None.

        Raises:
            RecordError: its line is no JSON object.
        """
        known = self._rows.get(key)
        if isinstance(known, Line):
            _, known = _parsed(*known)
            self._rows[key] = known
        return known

    def rows_by_engine(self) -> Counter[str]:
        """Return how many rows each engine has answered, by the digest that begins its keys."""
        return Counter(key[:ENGINE_DIGITS] for key in self)

    def put(self, key: str, row: Row) -> None:
        """Merge a row, which then is the ledger's, into memory and queue it for disk; a full chunk is written at once.

        Where the disk has no room it is written later.
        """
        line = sealed_line(key, json.dumps(row, separators=(",", ":"), allow_nan=False))
        if self._merge(key, row) and self.folder is not None:
            self._pending.append(line)
            if len(self._pending) % ROWS_PER_CHUNK == 0:
                self.flush()

    def flush(self) -> None:
        """Append all queued rows to this writer's file and force them to disk.

        Where the disk has no room they stay queued, which is said once: who asked has them in memory.

        Raises:
            OSError: the rows cannot be written. They stay queued.
        """
        try:
            self._write()
        except OSError as error:
            if error.errno not in FULL:
                raise
            if not self._has_warned:
                log.warning("%s: answers are not kept: %s", self.folder, error)
            self._has_warned = True

    def _write(self) -> None:
        if not self._pending or self.folder is None:
            return
        content = b"".join(self._pending)
        # A write that fails may leave a torn line, which must stay the last of its file: hence forget the file first.
        path, self._path = self._path, None
        retained = path is not None and _append(path, content, mode="r+b")
        while not retained:
            self.folder.mkdir(parents=True, exist_ok=True)
            # A name that no other writer uses, now or later: it stands for one content, whoever has read it.
            path = self.folder / f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}.jsonl"
            retained = _append(path, content, mode="xb")
        self._path = path
        self._pending.clear()

    def _merge(self, key: str, row: Row) -> bool:
        """Return whether the row said anything that was not known."""
        known = self.get(key)
        if known is None:
            self._rows[key] = row
            return True
        is_news, disagreements = union(known, row)
        self.disagreements += disagreements
        return is_news

    def _read(self, path: Path, content: bytes) -> None:
        for number, line in enumerate(BytesIO(content), start=1):
            if not line.endswith(b"\n"):
                log.info("%s:%d: torn last line of a killed writer, skipped", path, number)
                continue
            _require_whole(line, path, number)
            start = line[len(KEY) :].partition(b'"')[0] if line.startswith(KEY) else b""
            key = start.decode(errors="replace")
            if key and key not in self._rows:
                self._rows[key] = Line(line, path, number)
            else:
                self._merge(*parse_row(line, path, number))


def read_files(folder: Path) -> Iterator[tuple[Path, bytes]]:
    """Yield every file of a ledger with its content, by name.

    A merge may take a listed file away before it is read. Its rows are in another file then, so the folder is listed
    again.
    """
    read: set[tuple[Path, int]] = set()
    gone: set[Path] = set()
    complete = False
    while not complete:
        complete = True
        for path in sorted(folder.glob("*.jsonl")):
            try:
                with path.open("rb") as handle:
                    identity = path, os.fstat(handle.fileno()).st_ino  # a name may have got another content
                    content = b"" if identity in read else handle.read()
            except OSError as error:
                if error.errno not in GONE:
                    raise
                complete &= path in gone  # listed again without being there: a broken link, or an old listing
                gone.add(path)
                continue
            if identity not in read:
                read.add(identity)
                yield path, content


def engines_of(folder: Path | None) -> dict[str, dict[str, Any]]:
    """Return what the engines of a ledger are, as far as files tell; a ledger of earlier keys tells of none."""
    engines = {}
    for path in sorted(folder.glob("engine-*.json")) if folder is not None else ():
        with suppress(OSError, ValueError):  # a description decides nothing but what a message says
            engines[path.stem.removeprefix("engine-")] = dict(json.loads(path.read_bytes()))
    return engines


def register(folder: Path, digest: str, identity: Mapping[str, Any]) -> None:
    """Say what an engine is, for those who read a ledger later; not where the disk has no room."""
    path = folder / f"engine-{digest}.json"
    if not path.exists():
        try:
            storage.write_text(path, json.dumps(identity, sort_keys=True) + "\n")
        except OSError as error:
            if error.errno not in FULL:
                raise


def sealed_line(key: str, row: str) -> bytes:
    """Return the line of a row, given as a JSON object, with its key and digest."""
    rest = row[1:-1]
    content = KEY + f'{key}"{"," * bool(rest)}{rest}'.encode()
    return content + DIGEST + _digest_of(content) + END


def parse_row(line: bytes, path: Path, number: int) -> tuple[str, Row]:
    """Return the key and the row of a line, which stands in a file at a place counted from 1.

    Raises:
        RecordError: the line was changed since it was written, or is no JSON object with a key.
    """
    _require_whole(line, path, number)
    return _parsed(line, path, number)


def _parsed(line: bytes, path: Path, number: int) -> tuple[str, Row]:
    try:
        row = json.loads(line)
        key = row.pop("key")
        del row["sha256"]
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise _no_row(path, number, repr(error)[:DISPLAY_LIMIT]) from None
    if not isinstance(key, str):
        raise _no_row(path, number, f"the key {json.dumps(key)}"[:DISPLAY_LIMIT])
    return key, row


def _append(path: Path, content: bytes, *, mode: Literal["xb", "r+b"]) -> bool:
    """Append to this writer's own file; return False if the content may be where no reader finds it.

    The file is opened anew for each chunk, so a merge on another machine shows as a missing file. A merge moves a file
    aside and then compares its size: it sees these bytes, or it moved the file before the last look below.
    """
    try:
        with atomic.blamed_on(path, path), path.open(mode) as handle:
            handle.seek(0, os.SEEK_END)
            handle.write(content)
            handle.flush()
            os.fsync(handle.fileno())
        is_there = path.exists()
    except OSError as error:
        if error.errno not in GONE:
            raise
        return False
    return is_there


def union(known: Row, row: Row) -> tuple[bool, int]:
    """Merge a row into a known one; return whether it said anything that was not known, and how many values disagree.

    Mappings inside a row grow by union; of two different values the first stays.
    """
    is_news, disagreements = False, 0
    for name, value in row.items():
        if name not in known:
            known[name], is_news = value, True
        elif isinstance(value, dict) and isinstance(known[name], dict):
            is_news_inside, more = union(known[name], value)
            is_news, disagreements = is_news or is_news_inside, disagreements + more
        elif not _agree(known[name], value):
            disagreements += 1
    return is_news, disagreements


def _digest_of(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest()[:DIGEST_LENGTH].encode()


def _require_whole(line: bytes, path: Path, number: int) -> None:
    """Refuse a line that was changed since it was written, or that states no digest."""
    if line[-SEAL_LENGTH:] != DIGEST + _digest_of(line[:-SEAL_LENGTH]) + END:
        raise RecordError(
            f"{path}:{number}: expected a ledger row with the digest of its content",
            found="another: the line was changed since it was written" if DIGEST in line else "no digest",
            do=f"{DELETE_LINE} All such lines at once: lever-pipe ledger merge {path.parent} --drop.",
        )


def _no_row(path: Path, number: int, found: str) -> RecordError:
    return RecordError(f"{path}:{number}: expected a ledger row with a key", found=found, do=DELETE_LINE)


def _agree(one: Any, other: Any) -> bool:
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_agree, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return abs(one - other) <= LOG_PROB_TOLERANCE
    return bool(one == other)


def require_confirmation(
    ledger: Ledger, digest: str, identity: Mapping[str, Any], n_missing: int, *, ask_again: bool
) -> None:
    """Tell, before an engine's first answer, what the ledger holds of other engines of its model.

    Args:
        ledger: all rows, whoever answered.
        digest: this engine's.
        identity: what this engine is; `weights` names the model.
        n_missing: prompts that are to be asked.
        ask_again: whether they may be, whatever they cost.

    Raises:
        ConfigError: many answers are there, this engine runs on a GPU, and `ask_again` is false.
    """
    counts, engines = ledger.rows_by_engine(), engines_of(ledger.folder)
    if counts[digest]:
        return
    # Without a description nobody knows whose they are: they may be this model's.
    others = {key: n for key, n in counts.items() if engines.get(key, identity).get("weights") == identity["weights"]}
    if not others:
        return
    held, nearest = sum(others.values()), engines.get(max(others, key=lambda key: others[key]))
    why = "nothing tells which engine gave them"
    if nearest:
        differing = [name for name in identity if nearest.get(name) != identity[name]]
        why = "; ".join(f"{name}: {nearest.get(name)}, here {identity[name]}" for name in differing)
    if identity["device"] == "cpu" or held < MANY or ask_again:
        log.warning("%s: %d answers of this model stay unused (%s), %d are asked", ledger.folder, held, why, n_missing)
        return
    raise ConfigError(
        f"{ledger.folder}: expected answers of this engine, or few of others, before a GPU answers",
        found=f"{held} answers of this model that stay unused ({why})",
        do=f"To ask all {n_missing} prompts again, set lvlm.ask_again: true; to use what is there, go back to the code "
        "and libraries that answered.",
    )
