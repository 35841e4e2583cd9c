"""A store of finished work: what a job made, by what it was made from, so that it is never computed twice.

The folder may be shared by several working directories, users and machines. Each finished job has a folder in it, named
by the digest of the job's spec and inputs and by that of its library versions:

    VERSION                              number of the format
    work/ab/<key>.<versions>/work.json   the job's run card, and the sha256 of each file
    work/ab/<key>.<versions>/0, 1, ...   its outputs, files or folders, in the order of their names
    staging/                             what is being written or removed

A kept file shares its blocks with the result, where the file system can do so until one of the two is written; else it
is the result itself by a second name, of which no file has more, so that no other working directory's result is the
same one; else it is a copy. As who writes into a result may so write into the store, nothing is trusted: `work.json`
carries the digest of its own bytes, and every file is digested beside its target before any output gets its final name.
What is damaged is named, removed and never used. The digests have no key: they tell of accidents, not of forgers.

There are no locks. A job's folder appears by one rename, complete and on disk, and goes by another; its modification
time is that of its last use. Who reads what goes meanwhile misses it.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import Field, ValidationError

from lever_pipe.base import atomic, contents, storage
from lever_pipe.base.errors import LeverPipeError, StoreError
from lever_pipe.base.provenance import canonical_json
from lever_pipe.base.records import Row, RunCard

log = logging.getLogger(__name__)

GB = 1_000_000_000  # bytes
FORMAT = "2"
WORK = "work.json"
LEDGER = "ledger"
"""A folder beside the store's own that keeps LVLM answers; nothing here touches it."""
ID_DIGITS = 16
PLACE = re.compile(rf"[0-9a-f]{{2}}/[0-9a-f]{{64}}\.[0-9a-f]{{{ID_DIGITS}}}")
"""Where finished work lies below `work`; all else there is somebody's own."""
FICLONE = 0x40049409
"""The ioctl by which a file shares the blocks of another until one of them is written; btrfs, XFS and others can."""


class Work(Row):
    """What a finished job made: for each output the sha256 of a file or, of a folder, of its files by their paths."""

    key: str
    card: RunCard
    size: int = Field(ge=0)
    outputs: dict[str, str | dict[str, str]]

    def files(self) -> dict[str, str]:
        """Return the sha256 of each file by its path below the job's folder in the store."""
        found: dict[str, str] = {}
        for place, (_, held) in enumerate(sorted(self.outputs.items())):
            inside = {"": held} if isinstance(held, str) else held
            found |= {f"{place}/{path}".rstrip("/"): sha256 for path, sha256 in inside.items()}
        return found


class Trimmed(NamedTuple):
    """How many finished jobs were removed, the bytes of those that were whole, and leftovers of killed processes."""

    entries: int
    bytes: int
    temporary: int


class Stats(NamedTuple):
    """Finished jobs in a store, their files and bytes, and the bytes of the LVLM answers that are kept beside them."""

    entries: int
    files: int
    bytes: int
    ledger_bytes: int


def key_of(stage: str, spec: str, inputs: Mapping[str, str]) -> str:
    """Return the key of a job's work, 64 hexadecimal digits: equal exactly where the same is computed.

    Args:
        stage: name of the stage.
        spec: JSON of its config and code, as `plan.spec_of` returns it; blanks and the order of keys do not matter.
        inputs: name -> digest of the content; a member of a list has its place in its name, as `cells[0]`.
    """
    what = {"stage": stage, "spec": json.loads(spec), "inputs": dict(inputs)}
    return hashlib.sha256(canonical_json(what).encode()).hexdigest()


def opened(settings: Mapping[str, Any]) -> Store:
    """Return the store that the configuration's section `store` names."""
    return Store(Path(settings["folder"]).expanduser(), max_bytes=int(settings["max_gb"] * GB))


class Store:
    """Finished work in a folder, which appears when something is stored first.

    Args:
        folder: where it lies.
        max_bytes: how much its files may take after `trim`.
    """

    def __init__(self, folder: Path, *, max_bytes: int) -> None:
        self.folder = folder
        self.max_bytes = max_bytes
        self._staging = folder / "staging"

    def put(self, key: str, card: RunCard, outputs: Mapping[str, Path]) -> bool:
        """Store what a job made; return whether it was stored.

        It is not if it is there already or larger than the store may be. A store that cannot be written, or an output
        that is not as its card says, is a warning and no fault: the work is done, and only cannot be kept. Other work
        of the same key is replaced: who forces a job does not trust what it made before.

        Args:
            key: see `key_of`.
            card: the job's run card, which names the digest of each output.
            outputs: name -> file or folder, the run card not among them; hidden files of folders are left out.
        """
        try:
            self._require_format()
            place = self._place(key, card.versions)
            if self._holds(place, card):
                return False
            size = sum(map(_bytes_of, outputs.values()))
            if size > self.max_bytes:
                log.info("%s: %s is not kept: %d bytes are more than all of it may take", self.folder, card.stage, size)
                return False
            with atomic.folder_in(self._staging) as folder:
                _fill(folder, key, card, outputs)
                if not (self.folder / "VERSION").exists():
                    storage.write_text(self.folder / "VERSION", f"{FORMAT}\n")
                place.parent.mkdir(parents=True, exist_ok=True)
                try:
                    atomic.place(folder, place)
                except OSError:
                    if self._holds(place, card):  # another job has kept it meanwhile
                        return False
                    raise
        except (OSError, LeverPipeError) as fault:
            log.warning("%s: what %s has made is not kept: %s", self.folder, card.stage, fault)
            return False
        return True

    def restore(
        self,
        key: str,
        outputs: Mapping[str, Path],
        *,
        versions: Mapping[str, str],
        placing: Callable[[], object] | None = None,
    ) -> RunCard | None:
        """Put finished work where it belongs and return its run card, or None if there is none of this key.

        What is damaged is named in a warning, removed if permitted, and no finished work. Then, or where a target
        cannot be written, the targets stay as they are.

        Args:
            key: see `key_of`.
            outputs: name -> where the file or folder is to be; exactly the names that were stored. What is there is
                replaced, a folder as a whole.
            versions: versions of the packages here; work of others is not taken.
            placing: is called when all is known to be right, before the first target is replaced.

        Raises:
            StoreError: the folder holds a store of another format.
        """
        self._require_format()
        for place in self._places(key):
            try:
                work = self._read(place)
                if work.outputs.keys() != outputs.keys() or not _agree(work.card.versions, versions):
                    continue
                _take_out(place, work, outputs, placing)
            except StoreError as fault:
                log.warning("%s", fault)
                with suppress(OSError):  # another user's
                    self._drop(place)
            except OSError as fault:
                if place.exists():  # else it was removed meanwhile
                    log.warning("%s: not restored: %s", place, fault)
            else:
                with suppress(OSError):
                    os.utime(place)
                return work.card
        return None

    def find(self, key: str, names: Collection[str], *, versions: Mapping[str, str]) -> Work | None:
        """Return the finished work that `restore` would take, by the sizes of its files; None without."""
        for place in self._places(key):
            with suppress(StoreError, OSError):
                work = self._read(place)
                if work.outputs.keys() == set(names) and _agree(work.card.versions, versions):
                    return work
        return None

    def trim(self) -> Trimmed:
        """Remove what is damaged, then what was not used for the longest time until the rest is within `max_bytes`.

        And what killed processes have left.

        Raises:
            StoreError: the folder holds a store of another format.
            OSError: something may not be removed here.
        """
        self._require_format()
        kept, gone, freed = list[tuple[float, Path, int]](), 0, 0
        for place in self._places():
            with suppress(FileNotFoundError):  # removed meanwhile
                try:
                    kept.append((place.stat().st_mtime, place, self._read(place).size))
                except StoreError as fault:
                    log.warning("%s", fault)
                    self._drop(place)
                    gone += 1
        left = sum(size for _, _, size in kept)
        for _, place, size in sorted(kept):
            if left <= self.max_bytes:
                break
            self._drop(place)
            gone, freed, left = gone + 1, freed + size, left - size
        if not self._staging.is_dir():
            return Trimmed(gone, freed, 0)
        with atomic.folder_in(self._staging) as own:
            return Trimmed(gone, freed, atomic.sweep(own))

    def stats(self) -> Stats:
        """Return how much there is.

        Raises:
            StoreError: the folder holds a store of another format.
        """
        self._require_format()
        works = list[Work]()
        for place in self._places():
            with suppress(StoreError, FileNotFoundError):
                works.append(self._read(place))
        ledger = self.folder / LEDGER
        return Stats(
            entries=len(works),
            files=sum(len(work.files()) for work in works),
            bytes=sum(work.size for work in works),
            ledger_bytes=_bytes_of(ledger) if ledger.is_dir() else 0,
        )

    def verify(self, *, remove: bool = False) -> Iterator[StoreError]:
        """Read everything, and yield what is damaged.

        Args:
            remove: remove it.

        Raises:
            StoreError: the folder holds a store of another format.
            OSError: something may not be read or removed here.
        """
        self._require_format()
        for place in self._places():
            with suppress(FileNotFoundError):  # removed meanwhile
                try:
                    for path, sha256 in self._read(place).files().items():
                        _require(sha256, place / path)
                except StoreError as fault:
                    if remove:
                        self._drop(place)
                    yield fault

    def _place(self, key: str, versions: Mapping[str, str]) -> Path:
        name = hashlib.sha256(canonical_json(dict(versions)).encode()).hexdigest()[:ID_DIGITS]
        return self.folder / "work" / key[:2] / f"{key}.{name}"

    def _places(self, key: str = "") -> list[Path]:
        """Return the folders of all finished work, or of that of a key."""
        found = self.folder.glob(f"work/{key[:2] or '*'}/{key}*")
        return sorted(path for path in found if PLACE.fullmatch(f"{path.parent.name}/{path.name}"))

    def _holds(self, place: Path, card: RunCard) -> bool:
        """Return whether this work is there, undamaged."""
        try:
            work = self._read(place)
            for path, sha256 in work.files().items():
                _require(sha256, place / path)
        except (StoreError, FileNotFoundError):
            return False
        return work.card.outputs == card.outputs

    def _read(self, place: Path) -> Work:
        """Return what a job's folder says, which is what was written there; its files are there in their sizes.

        Raises:
            StoreError: it was changed since, or lies at another place than its own.
            FileNotFoundError: it is gone.
        """
        path = place / WORK
        seal, _, body = path.read_bytes().partition(b"\n")
        if seal != hashlib.sha256(body).hexdigest().encode():
            raise _damaged(path, "other content than its digest says")
        try:
            work = Work.model_validate_json(body, strict=True)
        except ValidationError as fault:
            raise _damaged(path, f"{fault.error_count()} keys of another version") from None
        if (own := self._place(work.key, work.card.versions)) != place:
            raise _damaged(path, f"the one that belongs to {own}")
        wanted, sizes = work.files(), _sizes_below(place)
        size = sum(sizes.values()) - sizes.pop(WORK, 0)
        for odd in sorted(sizes.keys() ^ wanted.keys()):
            raise _damaged(place / odd, "none" if odd in wanted else "one file more")
        if size != work.size:
            raise _damaged(place, f"{size} bytes instead of {work.size}")
        return work

    def _drop(self, place: Path) -> None:
        """Remove finished work, first from its name, then from the disk.

        Raises:
            OSError: this user may not.
        """
        with atomic.folder_in(self._staging) as aside, suppress(FileNotFoundError):  # another process was faster
            place.rename(aside / "work")

    def _require_format(self) -> None:
        """Refuse a store that another version of this package has written, and another program's folder.

        Raises:
            StoreError: another format, or none.
        """
        stated, holds_work = self.folder / "VERSION", (self.folder / "work").exists()  # which comes last
        found = stated.read_text(encoding="utf-8", errors="replace").strip() if stated.is_file() else None
        if found == FORMAT or (found is None and not holds_work):
            return
        raise StoreError(
            f"{stated}: expected a store of finished work of format {FORMAT}",
            found="no such file" if found is None else repr(found),
            do="Name another folder in `store.folder`, or delete this one: what it kept is computed again.",
        )


def _fill(folder: Path, key: str, card: RunCard, outputs: Mapping[str, Path]) -> None:
    """Write a job's folder: its outputs, and what they are.

    Raises:
        StoreError: an output has not the content that the run card says.
    """
    held: dict[str, str | dict[str, str]] = {}
    for number, (name, path) in enumerate(sorted(outputs.items())):
        with atomic.folder_in(folder) as aside:
            kept = aside / path.name  # what a content's digest is of, the name tells
            if path.is_dir():
                kept.mkdir()
                files = {file.relative_to(path).as_posix(): file for file in contents.files_below(path)}
                held[name] = {below: _share(file, kept / below) for below, file in files.items()}
            else:
                held[name] = _share(path, kept)
            found, expected = contents.digest(kept), card.outputs.get(name)
            if found != expected:
                raise StoreError(
                    f"{path}: expected the content that the run card states for '{name}': {expected or 'none'}",
                    found=found,
                    do="Leave outputs alone until their job has ended; the next run makes it again.",
                )
            kept.rename(folder / str(number))
    work = Work(key=key, card=card, size=_bytes_of(folder), outputs=held)
    body = work.model_dump_json().encode() + b"\n"
    seal = hashlib.sha256(body).hexdigest().encode() + b"\n"
    atomic.write_file(folder / WORK, lambda handle: handle.write(seal + body))


def _take_out(place: Path, work: Work, outputs: Mapping[str, Path], placing: Callable[[], object] | None) -> None:
    """Put all outputs beside their targets, then give them their names.

    Raises:
        StoreError: a kept file is damaged.
    """
    beside = {name: atomic.temporary_in(target.parent) for name, target in outputs.items()}
    try:
        for number, (name, held) in enumerate(sorted(work.outputs.items())):
            beside[name].parent.mkdir(parents=True, exist_ok=True)
            if isinstance(held, dict):
                beside[name].mkdir()
            for path, sha256 in held.items() if isinstance(held, dict) else [("", held)]:
                source = place / str(number) / path
                if _share(source, beside[name] / path) != sha256:
                    raise _damaged(source, "another sha256")
            atomic.sweep(beside[name])
        if placing is not None:
            placing()
        for name, target in outputs.items():
            atomic.place(beside[name], target)
    finally:
        for temporary in beside.values():
            atomic.remove(temporary)


def _share(source: Path, target: Path) -> str:
    """Let a file be what another one is, by shared blocks, a second name or a copy; return the sha256 of what it is."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if not _cloned(source, target):
        with suppress(OSError):  # another file system, or another user's file
            if source.stat().st_nlink == 1:  # else two results would be one file
                target.hardlink_to(source)
        if not target.exists():
            with source.open("rb") as read, target.open("xb") as write:
                shutil.copyfileobj(read, write)
                write.flush()
                os.fsync(write.fileno())
    return storage.digest(target)


def _cloned(source: Path, target: Path) -> bool:
    with source.open("rb") as read, target.open("xb") as write:
        try:
            fcntl.ioctl(write.fileno(), FICLONE, read.fileno())
        except OSError:
            target.unlink()
            return False
        os.fsync(write.fileno())
        return True


def _require(sha256: str, path: Path) -> None:
    if (found := storage.digest(path)) != sha256:
        raise _damaged(path, f"the sha256 {found} instead of {sha256}")


def _damaged(path: Path, found: str) -> StoreError:
    return StoreError(
        f"{path}: expected finished work as it was stored",
        found=found,
        do="A run that needs it computes it again; `python -m lever_pipe store gc FOLDER` removes all such work.",
    )


def _agree(made_with: Mapping[str, str], here: Mapping[str, str]) -> bool:
    """Return whether the packages that both have are the same; Python's version is in the fingerprint."""
    return all(here[name] == version for name, version in made_with.items() if name in here and name != "python")


def _sizes_below(folder: Path) -> dict[str, int]:
    """Return the bytes of each file below a folder by its path there."""
    names = (Path(parent) / name for parent, _, names in os.walk(folder) for name in names)
    return {path.relative_to(folder).as_posix(): path.lstat().st_size for path in names}


def _bytes_of(path: Path) -> int:
    return sum(_sizes_below(path).values()) if path.is_dir() else path.lstat().st_size
