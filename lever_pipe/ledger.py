"""An append-only, content-addressed store of LVLM answers that many jobs may write at once.

A ledger is a folder of JSON-lines files, one file a writer, so no writer ever waits for another and no lock is needed
on a shared file system. A row is a flat JSON object; mappings inside it (log-probabilities by answer) grow by union.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import socket
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from lever_pipe.errors import RecordError

log = logging.getLogger(__name__)

ROWS_PER_CHUNK = 256  # a killed job loses at most these
LOG_PROB_TOLERANCE = 1e-4  # nats; one prompt in two fp32 batches differs by about 1e-5

Row = dict[str, Any]


class Ledger:
    """Rows by key: loaded once at the start, extended in memory and on disk.

    Args:
        folder: where the files lie; None keeps the rows in memory only.

    Attributes:
        disagreements: values that two rows of one key state differently. The first one met (files by name, lines in
            order) is kept; values are never averaged.
        torn: incomplete last lines of killed writers; their rows are lost and computed again.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self.disagreements = 0
        self.torn = 0
        self._rows: dict[str, Row] = {}
        self._pending: list[str] = []
        self._handle: IO[str] | None = None
        for path in sorted(folder.glob("*.jsonl")) if folder is not None else ():
            for key, row in self._read(path):
                self._merge(key, row)
        if self.disagreements:
            log.warning("%s: %d values disagree between rows of one key", folder, self.disagreements)

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, key: str) -> bool:
        return key in self._rows

    def get(self, key: str) -> Row | None:
        """Return the merged row of `key`, or None."""
        return self._rows.get(key)

    def put(self, key: str, row: Mapping[str, Any]) -> None:
        """Merge a row into memory and queue it for disk; a full chunk is written at once."""
        own = {name: dict(value) if isinstance(value, Mapping) else value for name, value in row.items()}
        if not self._merge(key, own) or self.folder is None:
            return
        self._pending.append(json.dumps({"key": key, **row}, separators=(",", ":"), allow_nan=False) + "\n")
        if len(self._pending) >= ROWS_PER_CHUNK:
            self.flush()

    def flush(self) -> None:
        """Append all queued rows to this writer's file and force them to disk."""
        if not self._pending or self.folder is None:
            return
        if self._handle is None:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._handle = (self.folder / writer_name()).open("x", encoding="utf-8")
        self._handle.write("".join(self._pending))
        self._handle.flush()
        os.fsync(self._handle.fileno())
        self._pending.clear()

    def close(self) -> None:
        """Write what is queued and close the file."""
        self.flush()
        if self._handle is not None:
            self._handle.close()
            self._handle = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        with suppress(Exception):  # a half-made object, or an interpreter that shuts down
            self.close()

    def _merge(self, key: str, row: Row) -> bool:
        """Return whether the row said anything that was not known."""
        known = self._rows.get(key)
        if known is None:
            self._rows[key] = row
            return True
        return self._union(known, row)

    def _union(self, known: dict[str, Any], row: Mapping[str, Any]) -> bool:
        grown = False
        for name, value in row.items():
            if name not in known:
                known[name] = value
                grown = True
            elif isinstance(value, dict) and isinstance(known[name], dict):
                grown |= self._union(known[name], value)
            elif not _agree(known[name], value):
                self.disagreements += 1
        return grown

    def _read(self, path: Path) -> Iterator[tuple[str, Row]]:
        with path.open("rb") as handle:
            for number, line in enumerate(handle, start=1):
                if not line.endswith(b"\n"):
                    self.torn += 1
                    log.info("%s:%d: torn last line of a killed writer, skipped", path, number)
                    return
                yield _parse(line, f"{path}:{number}")


def writer_name() -> str:
    """Return a file name that no other writer uses: host, process and a random part."""
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}.jsonl"


def _parse(line: bytes, where: str) -> tuple[str, Row]:
    try:
        row = json.loads(line)
        key = row.pop("key")
    except (ValueError, KeyError, AttributeError, TypeError) as fault:
        raise RecordError(
            f"{where}: expected a ledger row with a key",
            found=repr(fault),
            do="Delete this line; its prompt is answered again.",
        ) from None
    return key, row


def _agree(one: Any, other: Any) -> bool:
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_agree, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return abs(one - other) <= LOG_PROB_TOLERANCE
    return bool(one == other)
