"""What goes for want of room, and what nobody needs any more."""

from __future__ import annotations

import logging
import os
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from lever_pipe.base.errors import StoreError
from lever_pipe.runtime.storing import files
from lever_pipe.runtime.storing.entries import (
    SHA256,
    Identity,
    Layout,
    Loaded,
    discard,
    identity_of,
    size_of,
    wrong_blob,
)
from lever_pipe.runtime.storing.files import STALE_S
from lever_pipe.runtime.storing.listing import Listed, list_entries

log = logging.getLogger(__name__)


class Trimmed(NamedTuple):
    """What was removed, and what is left.

    Attributes:
        entries: finished jobs removed, least recently used first, and those that are damaged.
        contents: files removed that no entry names any more.
        bytes: what these took.
        temporary: leftovers of killed processes removed.
        entries_left: finished jobs that stay.
        bytes_left: what their contents take.
    """

    entries: int
    contents: int
    bytes: int
    temporary: int
    entries_left: int
    bytes_left: int


def trim(layout: Layout, max_bytes: int) -> Trimmed:
    """Remove entries that were not used for the longest time, what nobody names any more, and leftovers."""
    listing = list_entries(layout.all_entries())
    damaged = [(loaded, fault) for _, loaded, fault in listing.damaged if loaded]
    damaged += [(entry.loaded, lack) for entry in listing.sound if (lack := _lacking(layout, entry))]
    dropped = {loaded.path for loaded, fault in damaged if _drop_damaged(loaded, fault)}
    kept, evicted = _evict([entry for entry in listing.sound if entry.loaded.path not in dropped], max_bytes)
    needed = {sha256: size for entry in kept for sha256, size in entry.blobs.items()}
    freed: list[int] = []
    if listing.unreadable:
        path, fault = listing.unreadable[0]
        log.warning("%s: contents stay, because nobody knows what %s needs: %s", layout.folder, path, fault)
    else:
        known = {(entry.loaded.path, entry.loaded.identity) for entry in kept}
        freed = _remove_blobs(layout, needed, {sha256 for entry in evicted for sha256 in entry.blobs}, known)
    return Trimmed(
        entries=len(evicted) + len(dropped),
        contents=len(freed),
        bytes=sum(freed),
        temporary=files.remove_stale(layout.staging),
        entries_left=len(kept),
        bytes_left=sum(needed.values()),
    )


def _evict(entries: Iterable[Listed], max_bytes: int) -> tuple[list[Listed], list[Listed]]:
    """Remove entries, the least recently used first, until the rest needs no more than it may; return rest and gone."""
    queue = sorted(entries, key=lambda entry: (entry.loaded.used, entry.loaded.path))
    users = Counter(sha256 for entry in queue for sha256 in entry.blobs)
    total = sum({sha256: size for entry in queue for sha256, size in entry.blobs.items()}.values())
    kept, evicted = [], []
    for entry in queue:
        if total <= max_bytes or not discard(entry.loaded):
            kept.append(entry)
            continue
        evicted.append(entry)
        users.subtract(entry.blobs.keys())
        total -= sum(size for sha256, size in entry.blobs.items() if users[sha256] == 0)
    if total > max_bytes:
        log.warning("%d bytes stay where %d are allowed: some entries cannot be removed here", total, max_bytes)
    return kept, evicted


def _remove_blobs(
    layout: Layout, needed: Iterable[str], evicted: set[str], known: set[tuple[Path, Identity]]
) -> list[int]:
    """Remove contents that nobody needs; return their sizes.

    What no entry names may be about to be named, so it has an hour; what the evicted entries named has not. All of it
    is taken aside first, and comes back if an entry has appeared that names it: see `lever_pipe/runtime/store.py`.
    """
    kept = set(needed)
    unnamed = [blob for blob in layout.all_blobs() if blob.name not in kept and re.fullmatch(SHA256, blob.name)]
    if not unnamed:
        return []
    oldest = files.file_system_time(layout.staging) - STALE_S
    chosen = [Path(blob.path) for blob in unnamed if blob.name in evicted or _changed(blob) < oldest]
    try:
        with files.temporary_below(layout.staging) as aside:
            taken = [path for path in chosen if files.move(path, aside / path.name)]
            late = list_entries(path for path in layout.all_entries() if (path, identity_of(path)) not in known)
            wanted = {sha256 for entry in late.sound for sha256 in entry.blobs}
            for path in taken:
                if path.name in wanted or late.unreadable:
                    files.put_back(aside / path.name, path)
            return [size for path in taken if (size := _removed(aside / path.name)) is not None]
    except OSError as fault:
        log.warning("%s: what nobody needs stays: %s", layout.folder, fault)
        return []


def _lacking(layout: Layout, entry: Listed) -> StoreError | None:
    """Return the first content that an entry names and that is not there in its size; only reading tells the rest."""
    for sha256, size in entry.blobs.items():
        found = size_of(layout.blob(sha256))
        if found != size:
            return wrong_blob(layout.blob(sha256), sha256, size, "none" if found is None else f"{found} bytes")
    return None


def _drop_damaged(loaded: Loaded, fault: StoreError) -> bool:
    log.warning("%s", fault)
    return discard(loaded)


def _removed(path: Path) -> int | None:
    """Return the bytes of a file that is removed; None if there is none."""
    try:
        size = path.lstat().st_size
        path.unlink()
    except OSError:
        return None
    return size


def _changed(entry: os.DirEntry[str]) -> float:
    """Return a file's modification time in seconds; of what is gone, never."""
    try:
        return entry.stat(follow_symlinks=False).st_mtime
    except OSError:
        return float("inf")
