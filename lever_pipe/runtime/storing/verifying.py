"""How much lies in a store, and what of it is damaged."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from lever_pipe.base import temporaries
from lever_pipe.base.errors import StoreError
from lever_pipe.runtime.storing import files
from lever_pipe.runtime.storing.entries import AGAIN, Layout, Loaded, discard, wrong_blob
from lever_pipe.runtime.storing.listing import Listed, list_entries

LEDGER = "ledger"
"""A folder beside the store's own that keeps LVLM answers; nothing here touches it."""


class Stats(NamedTuple):
    """What lies in a store.

    Attributes:
        entries: finished jobs.
        stages: name of a stage -> its finished jobs.
        damaged: entries that cannot be read.
        contents: different files.
        bytes: what the contents take.
        unnamed_contents: those that no entry names: of writers at work, or of killed ones.
        unnamed_bytes: what these take.
        temporary: what processes work on, or killed ones have left.
        ledger_bytes: what LVLM answers take that are kept beside it; `gc` leaves them alone.
    """

    entries: int
    stages: dict[str, int]
    damaged: int
    contents: int
    bytes: int
    unnamed_contents: int
    unnamed_bytes: int
    temporary: int
    ledger_bytes: int


class Fault(NamedTuple):
    """Something damaged or missing, and whether it is gone together with all that needs it."""

    fault: StoreError
    mended: bool

    def __str__(self) -> str:
        """Return one line."""
        return f"{'removed: ' if self.mended else ''}{self.fault}"


def stats(layout: Layout) -> Stats:
    """Return how much there is."""
    listing = list_entries(layout.all_entries())
    named = {sha256 for entry in listing.sound for sha256 in entry.blobs}
    sizes = {entry.name: size for entry in layout.all_blobs() if (size := _size(entry)) is not None}
    unnamed = [size for name, size in sizes.items() if name not in named]
    return Stats(
        entries=len(listing.sound),
        stages=dict(sorted(Counter(entry.stage for entry in listing.sound).items())),
        damaged=len(listing.damaged) + len(listing.unreadable),
        contents=len(sizes),
        bytes=sum(sizes.values()),
        unnamed_contents=len(unnamed),
        unnamed_bytes=sum(unnamed),
        temporary=len(files.scan(layout.staging, hidden=True)),
        ledger_bytes=sum(_bytes_below(layout.folder / LEDGER)),
    )


def verify(layout: Layout, *, mend: bool = False) -> list[Fault]:
    """Read everything; return what is damaged or missing, and remove it if it is to be mended."""
    found: list[Fault] = []
    sound: dict[str, int] = {}
    bad: dict[Path, StoreError | OSError] = {}
    for blob in layout.all_blobs():
        path = Path(blob.path)
        try:
            sound[blob.name] = require_blob(layout, path)
        except FileNotFoundError:
            continue  # collected meanwhile
        except (StoreError, OSError) as fault:
            bad[path] = fault
    listing = list_entries(layout.all_entries())
    for path, loaded, damage in listing.damaged:
        found.append(Fault(damage, mend and _gone(path, loaded)))
    found += [Fault(_unreadable(path, fault), mended=False) for path, fault in listing.unreadable]
    for entry in listing.sound:
        missing = list(_unsound(layout, entry, sound, bad))
        is_useless = missing or any(isinstance(bad.get(layout.blob(sha256)), StoreError) for sha256 in entry.blobs)
        if is_useless and entry.loaded.path.exists():
            gone = mend and discard(entry.loaded)
            found += [Fault(fault, gone) for fault in missing]
    for path, reason in bad.items():
        if isinstance(reason, StoreError):
            found.append(Fault(reason, mend and remove_damaged(layout, path)))
        else:
            found.append(Fault(_unreadable(path, reason), mended=False))
    return found


def require_blob(layout: Layout, path: Path) -> int:
    """Return the bytes of a content that is what its name says.

    Raises:
        StoreError: it holds something else, or is no file.
        OSError: it is not there, or cannot be read.
    """
    sha256, size = files.read_digest(path)
    if layout.blob(sha256) != path:
        do = AGAIN.format(folder=layout.folder)
        expected = f"{path}: expected bytes whose sha256 is the file's name"
        raise StoreError(expected, found=f"{size} bytes with the sha256 {sha256}", do=do)
    return size


def _unsound(
    layout: Layout, entry: Listed, sound: dict[str, int], bad: dict[Path, StoreError | OSError]
) -> Iterator[StoreError]:
    """Yield what an entry lacks; a content that is damaged is a fault of its own."""
    for sha256, size in entry.blobs.items():
        path = layout.blob(sha256)
        if path in bad or sound.get(sha256) == size:
            continue
        try:  # it may have come later than the look at all contents
            found = require_blob(layout, path)
        except FileNotFoundError:
            yield wrong_blob(path, sha256, size, f"none, though {entry.loaded.path} needs it")
        except (StoreError, OSError) as fault:
            bad[path] = fault
        else:
            if found != size:
                yield wrong_blob(path, sha256, size, f"{found} bytes")


def remove_damaged(layout: Layout, path: Path) -> bool:
    """Return whether a damaged content is gone; one that was written again meanwhile comes back."""
    try:
        with files.temporary_below(layout.staging) as aside:
            if not files.move(path, aside / path.name):
                return not os.path.lexists(path)
            with suppress(StoreError):
                sha256 = files.read_digest(aside / path.name).sha256
                if layout.blob(sha256) == path:
                    files.put_back(aside / path.name, path)
            return True
    except OSError:
        return False


def _gone(path: Path, loaded: Loaded | None) -> bool:
    """Return whether a damaged entry is removed; one that could not even be opened is no file."""
    if loaded is not None:
        return discard(loaded)
    temporaries.remove(path)
    return not os.path.lexists(path)


def _unreadable(path: Path, fault: OSError) -> StoreError:
    found = fault.strerror or str(fault)
    return StoreError(f"{path}: expected a file that can be read", found=found, do="Mend the disk or the permissions.")


def _size(entry: os.DirEntry[str]) -> int | None:
    try:
        return entry.stat(follow_symlinks=False).st_size
    except OSError:
        return None


def _bytes_below(folder: Path) -> Iterator[int]:
    for entry in files.scan(folder):
        size = _size(entry)
        if entry.is_dir(follow_symlinks=False):
            yield from _bytes_below(Path(entry.path))
        elif size is not None:
            yield size
