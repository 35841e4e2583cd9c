"""An append-only, content-addressed store of LVLM answers that many jobs may write at once.

A ledger is a folder of JSON-lines files, one for each writer, so no writer ever waits for another and no lock is needed
on a shared file system. A row is a flat JSON object; mappings inside it (log-probabilities by answer) grow by union.

A line begins with its key and ends in the digest of its own bytes, `..."sha256":"<16 hexadecimal digits>"}`: the
beginning of the sha256 of all bytes before `,"sha256"`. Readers verify it, so an answer that a disk, a copy or an
editor has changed is never used. The digest has no secret: it detects corruption, not tampering.

A key begins with the digest of the engine that answered (`ENGINE_DIGITS`): model, code, libraries, numeric path. The
file `engine-<digest>.json` in the same folder describes that engine, so that messages can name its settings.

`ledger_tools.merge` may replace the files by a single one at any time. Readers and writers handle it without a lock: a
reader whose file is gone lists the folder again, and a writer whose file is gone continues in a new one.
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

ROWS_PER_CHUNK = 256  # a killed job loses at most this many
LOG_PROB_TOLERANCE = 1e-4  # nats; one prompt in two fp32 batches differs by about 1e-5
DELETE_LINE = "Delete this line; its prompt is answered again."
DISPLAY_LIMIT = 200  # characters of an invalid line in a message
KEY = b'{"key":"'  # beginning of a line
DIGEST = b',"sha256":"'  # precedes the 16 digits of a line's digest
DIGEST_LENGTH = 16
ENGINE_DIGITS = 16
MANY = 1000  # answers of other engines from which on a GPU needs confirmation to answer again
END = b'"}\n'
SEAL_LENGTH = len(DIGEST) + DIGEST_LENGTH + len(END)
GONE = (errno.ENOENT, errno.ESTALE)  # the second: another machine removed it on a network file system

Row = dict[str, Any]


class Line(NamedTuple):
    """A whole line with its file and number, counted from 1."""

    content: bytes
    path: Path
    number: int


class Ledger:
    """Rows by key: lines are read once at the start and parsed on demand; new rows go to memory and disk.

    Args:
        folder: folder of the files; None keeps the rows in memory only.

    Attributes:
        disagreements: number of values that differ between two rows of one key. The first one (files by name, lines in
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
            RecordError: its line is not a JSON object.
        """
        known = self._rows.get(key)
        if isinstance(known, Line):
            _, known = _parsed(*known)
            self._rows[key] = known
        return known

    def rows_by_engine(self) -> Counter[str]:
        """Return the number of rows of each engine, by the digest that begins its keys."""
        return Counter(key[:ENGINE_DIGITS] for key in self)

    def put(self, key: str, row: Row) -> None:
        """Merge a row into memory and queue it for disk; a full chunk is written at once.

        The ledger takes ownership of the row. If the disk is full, rows are written later.
        """
        line = sealed_line(key, json.dumps(row, separators=(",", ":"), allow_nan=False))
        if self._merge(key, row) and self.folder is not None:
            self._pending.append(line)
            # A multiple, because rows stay queued on a full disk: retry once a chunk, not for every row.
            if len(self._pending) % ROWS_PER_CHUNK == 0:
                self.flush()

    def flush(self) -> None:
        """Append all queued rows to this writer's file and force them to disk.

        If the disk is full they stay queued, with one warning: the caller has the answers in memory.

        Raises:
            OSError: the rows cannot be written. They stay queued.
        """
        try:
            self._write()
        except OSError as error:
            if error.errno not in FULL:
                raise
            if not self._has_warned:
                log.warning("%s: answers stay in memory until they can be written: %s", self.folder, error)
            self._has_warned = True

    def _write(self) -> None:
        if not self._pending or self.folder is None:
            return
        content = b"".join(self._pending)
        # A failed write may leave a torn line, which must stay the last of its file: so stop using that file first.
        path, self._path = self._path, None
        is_written = path is not None and _append(path, content, mode="r+b")
        while not is_written:
            self.folder.mkdir(parents=True, exist_ok=True)
            # A name is never used twice: `read_files` skips a known pair of name and inode, and inodes are reused.
            path = self.folder / f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}.jsonl"
            is_written = _append(path, content, mode="xb")
        self._path = path
        self._pending.clear()

    def _merge(self, key: str, row: Row) -> bool:
        """Return whether the row added information."""
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
            # Parsed on demand, except where several rows of a key must be merged.
            if key and key not in self._rows:
                self._rows[key] = Line(line, path, number)
            else:
                self._merge(*parse_row(line, path, number))


def read_files(folder: Path) -> Iterator[tuple[Path, bytes]]:
    """Yield every file of a ledger with its content, by name.

    A merge may remove a listed file before it is read. Its rows are then in another file, so the folder is listed
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
                    identity = path, os.fstat(handle.fileno()).st_ino  # the same name may have new content
                    content = b"" if identity in read else handle.read()
            except OSError as error:
                if error.errno not in GONE:
                    raise
                complete &= path in gone  # listed twice but absent: a broken link, or an outdated listing
                gone.add(path)
                continue
            if identity not in read:
                read.add(identity)
                yield path, content


def engines_of(folder: Path | None) -> dict[str, dict[str, Any]]:
    """Return the descriptions of a ledger's engines from its files; ledgers with keys of older versions have none."""
    engines = {}
    for path in sorted(folder.glob("engine-*.json")) if folder is not None else ():
        with suppress(OSError, ValueError):  # a description affects messages only
            engines[path.stem.removeprefix("engine-")] = dict(json.loads(path.read_bytes()))
    return engines


def register(folder: Path, digest: str, identity: Mapping[str, Any]) -> None:
    """Write the description of an engine for later readers of a ledger; skip it if the disk is full."""
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
    """Return the key and the row of a line; `path` and `number` (from 1) are its location.

    Raises:
        RecordError: the line was changed since it was written, or is not a JSON object with a key.
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
    """Append to this writer's own file; return False if readers may not find the content.

    The file is opened anew for each chunk, so a merge on another machine shows as a missing file. A merge moves a file
    away and then compares its size: either it sees these bytes, or it moved the file before the final check here.
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
    """Merge a row into a known one; return whether it added information, and the number of values that disagree.

    Mappings inside a row grow by union; of two different values the first is kept.
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
    """Refuse a line that was changed since it was written, or that has no digest."""
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
    """Report, before an engine's first answer, the ledger's answers of other engines of the same model.

    Args:
        ledger: rows of all engines.
        digest: this engine's.
        identity: description of this engine; `weights` identifies the model.
        n_missing: number of prompts to answer.
        ask_again: whether to answer them at any cost.

    Raises:
        ConfigError: the ledger has many answers, this engine runs on a GPU, and `ask_again` is false.
    """
    counts, engines = ledger.rows_by_engine(), engines_of(ledger.folder)
    if counts[digest]:
        return
    # Rows of an engine without a description may belong to this model, so they count.
    others = {key: n for key, n in counts.items() if engines.get(key, identity).get("weights") == identity["weights"]}
    if not others:
        return
    held, nearest = sum(others.values()), engines.get(max(others, key=lambda key: others[key]))
    why = "no record of their engine"
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
