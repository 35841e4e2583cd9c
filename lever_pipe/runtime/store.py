"""A store of finished work: what a job made, by what it was made from, so that it is never computed twice.

The folder may be shared by several working directories, users and machines. Each finished job has a folder in it, named
by the digest of the job's spec and inputs and by that of its library versions:

    VERSION                              number of the format
    work/ab/<key>.<versions>/work.json   the job's run card, and the sha256 of each file
    work/ab/<key>.<versions>/0, 1, ...   its outputs, files or folders, in the order of their names
    staging/                             what is being written or removed

Nothing is trusted: `work.json` carries the digest of its own bytes, and every file is digested while it is copied to a
place beside its target. Only when all of an artefact is there and right does any of it get its final name. What is
damaged is named, removed and never used. The digests have no key: they tell of accidents, not of forgers who may write
here.

There are no locks. A job's folder appears by one rename, complete and on disk, and goes by another; its modification
time is that of its last use. Who reads what goes meanwhile misses it. Copies share blocks where the file system can,
but never are they hard links: an edit of a result stays outside.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import Field, ValidationError

from lever_pipe.base import atomic, contents, storage
from lever_pipe.base.errors import LeverPipeError, StoreError, shortened
from lever_pipe.base.provenance import canonical_json
from lever_pipe.base.records import Row, RunCard
from lever_pipe.runtime import copying

log = logging.getLogger(__name__)

GB = 1_000_000_000  # bytes
FORMAT = "2"
WORK = "work.json"
LEDGER = "ledger"
"""A folder beside the store's own that keeps LVLM answers; nothing here touches it."""
LARGEST = 64_000_000  # bytes of a `work.json`; the largest run card lists a few thousand tensors
ID_DIGITS = 16
PLACE = re.compile(rf"[0-9a-f]{{2}}/[0-9a-f]{{64}}\.[0-9a-f]{{{ID_DIGITS}}}")
"""Where finished work lies below `work`."""
AGAIN = "A run that needs it computes it again. All such work at once: python -m lever_pipe store gc {}"


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
            if isinstance(held, str):
                found[str(place)] = held
            else:
                found |= {f"{place}/{path}": sha256 for path, sha256 in held.items()}
        return found


class Held(NamedTuple):
    """A folder of finished work as it was met.

    Attributes:
        mark: inode and time of change: what tells the folder from one that took its name, or that was used since.
        used: time of its last use in seconds.
        fault: what is wrong with it; then `work` is None.
    """

    place: Path
    mark: tuple[int, int]
    used: float
    work: Work | None
    fault: StoreError | OSError | None


class Trimmed(NamedTuple):
    """What was removed, and what is left.

    Attributes:
        entries: finished jobs removed, least recently used first, and those that are damaged.
        bytes: what these took.
        temporary: leftovers of killed processes removed.
        entries_left: finished jobs that stay.
        bytes_left: what they take.
    """

    entries: int
    bytes: int
    temporary: int
    entries_left: int
    bytes_left: int


class Stats(NamedTuple):
    """What lies in a store.

    Attributes:
        entries: finished jobs.
        stages: name of a stage -> its finished jobs.
        damaged: those that cannot be read, or whose files lack something.
        files: of all jobs.
        bytes: what the files take.
        temporary: what processes work on, or killed ones have left.
        ledger_bytes: what LVLM answers take that are kept beside it; `gc` leaves them alone.
    """

    entries: int
    stages: dict[str, int]
    damaged: int
    files: int
    bytes: int
    temporary: int
    ledger_bytes: int


class Damage(NamedTuple):
    """Finished work that is damaged, and whether it is gone."""

    fault: StoreError
    mended: bool

    def __str__(self) -> str:
        """Return one line."""
        return f"{'removed: ' if self.mended else ''}{self.fault}"


def key_of(stage: str, spec: str, inputs: Mapping[str, str]) -> str:
    """Return the key of a job's work, 64 hexadecimal digits: equal exactly where the same is computed.

    Args:
        stage: name of the stage.
        spec: JSON of its config and code, as `plan.spec_of` returns it; blanks and the order of keys do not matter.
        inputs: name -> digest of the content; a member of a list has its place in its name, as `cells[0]`.

    Raises:
        ValueError: the spec is not JSON.
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

        It is not if it is there already or larger than the store may be; and, with a warning, if there is no room, no
        permission, another format, or an output that is gone or differs from what the card says. No fault is raised:
        the work is done, and only cannot be kept.

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
            size = sum(map(copying.bytes_of, outputs.values()))
            if size > self.max_bytes:
                log.info("%s: %s is not kept: %d bytes are more than all of it may take", self.folder, card.stage, size)
                return False
            with atomic.folder_in(self._staging) as folder:
                _fill(folder, key, card, outputs)
                if self._format() is None:
                    storage.write_text(self.folder / "VERSION", f"{FORMAT}\n")
                place.parent.mkdir(parents=True, exist_ok=True)
                try:
                    atomic.place(folder, place)
                except OSError:
                    if self._holds(place, card):  # another job has kept it meanwhile
                        return False
                    raise
        except (OSError, ValueError, LeverPipeError) as fault:
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
        """Copy finished work to where it belongs and return its run card, or None if there is none of this key.

        What is damaged or incomplete is named in a warning, removed if permitted, and no finished work. Then, or where
        a target cannot be written, the targets stay as they are.

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
        try:
            for place in _folders(self._place(key, {}).parent):
                if place.name.startswith(key) and (card := self._restored(place, outputs, versions, placing)):
                    return card
        except OSError as fault:
            log.warning("%s: nothing is taken from it: %s", self.folder, fault)
        return None

    def find(self, key: str, names: Collection[str], *, versions: Mapping[str, str]) -> Work | None:
        """Return the finished work that `restore` would copy, by the sizes of its files; None without."""
        with suppress(StoreError, OSError):
            for place in _folders(self._place(key, {}).parent):
                work = self._held(place).work if place.name.startswith(key) else None
                if work is not None and work.outputs.keys() == set(names) and _agree(work.card.versions, versions):
                    return work
        return None

    def trim(self) -> Trimmed:
        """Remove what is damaged, then what was not used for the longest time until the rest is within `max_bytes`.

        And what killed processes have left.

        Raises:
            StoreError: the folder holds a store of another format.
        """
        self._require_format(for_removal=True)
        sizes: dict[Held, int] = {}
        gone = freed = 0
        for held in self._all():
            if held.work is not None:
                sizes[held._replace(work=None)] = held.work.size  # without the cards, which are large
            elif isinstance(held.fault, StoreError):
                log.warning("%s", held.fault)
                gone += self._drop(held)
        left, n_left = sum(sizes.values()), len(sizes)
        for held in sorted(sizes, key=lambda each: (each.used, each.place)):
            if left > self.max_bytes and self._drop(held):
                gone, freed, left, n_left = gone + 1, freed + sizes[held], left - sizes[held], n_left - 1
        if left > self.max_bytes:
            log.warning("%d bytes stay where %d are allowed: some work cannot be removed here", left, self.max_bytes)
        return Trimmed(gone, freed, self._sweep(), n_left, left)

    def stats(self) -> Stats:
        """Return how much there is.

        Raises:
            StoreError: the folder holds a store of another format.
        """
        self._require_format()
        stages: Counter[str] = Counter()
        damaged = files = size = 0
        for held in self._all():
            if held.work is None:
                damaged += 1
            else:
                stages[held.work.card.stage] += 1
                files, size = files + len(held.work.files()), size + held.work.size
        return Stats(
            entries=stages.total(),
            stages=dict(sorted(stages.items())),
            damaged=damaged,
            files=files,
            bytes=size,
            temporary=len(list(self._staging.iterdir())) if self._staging.is_dir() else 0,
            ledger_bytes=copying.bytes_of(self.folder / LEDGER) if (self.folder / LEDGER).is_dir() else 0,
        )

    def verify(self, *, mend: bool = False) -> list[Damage]:
        """Read everything and return what is damaged.

        Args:
            mend: remove it.

        Raises:
            StoreError: the folder holds a store of another format.
        """
        self._require_format(for_removal=mend)
        found = []
        for held in self._all(read_files=True):
            if isinstance(held.fault, StoreError):
                found.append(Damage(held.fault, mend and self._drop(held)))
            elif held.fault is not None:
                expected, why = f"{held.place}: expected files that can be read", held.fault.strerror or str(held.fault)
                found.append(Damage(StoreError(expected, found=why, do="Mend the disk or the permissions."), False))
        return found

    def _place(self, key: str, versions: Mapping[str, str]) -> Path:
        name = hashlib.sha256(canonical_json(dict(versions)).encode()).hexdigest()[:ID_DIGITS]
        return self.folder / "work" / key[:2] / f"{key}.{name}"

    def _all(self, *, read_files: bool = False) -> Iterator[Held]:
        """Yield all finished work, by key; what goes meanwhile is left out."""
        for shard in _folders(self.folder / "work"):
            for place in _folders(shard):
                if PLACE.fullmatch(f"{shard.name}/{place.name}"):  # all else is somebody's own
                    with suppress(FileNotFoundError):
                        yield self._held(place, read_files=read_files)

    def _held(self, place: Path, *, read_files: bool = False) -> Held:
        """Return what a folder holds, its files in their sizes and, if they are read, in their contents.

        Raises:
            FileNotFoundError: it is gone.
        """
        stat = place.lstat()
        held = Held(place, (stat.st_ino, stat.st_ctime_ns), stat.st_mtime, None, None)
        try:
            work = self._read(place)
            for path, sha256 in work.files().items() if read_files else ():
                self._require(sha256, copying.digest_of(place / path), place / path)
        except FileNotFoundError:
            raise
        except (StoreError, OSError) as fault:
            return held._replace(fault=fault)
        return held._replace(work=work)

    def _holds(self, place: Path, card: RunCard) -> bool:
        """Return whether this work is there, undamaged.

        Other work of the same key is replaced: who forces a job does not trust what it made before.
        """
        with suppress(FileNotFoundError):
            work = self._held(place, read_files=True).work
            return work is not None and work.card.outputs == card.outputs
        return False

    def _read(self, place: Path) -> Work:
        """Return what a job's folder says, which is what was written there; its files are there in their sizes.

        Raises:
            StoreError: it was changed since, or lies at another place than its own.
            FileNotFoundError: it is gone.
        """
        path = place / WORK
        try:
            with copying.open_file(path) as handle:
                content = handle.read(LARGEST + 1)
        except FileNotFoundError:
            if not place.is_dir():
                raise
            raise self._damaged(path, "none") from None
        if len(content) > LARGEST:
            raise self._damaged(path, f"more than {LARGEST} bytes")
        seal, _, body = content.partition(b"\n")
        if seal != hashlib.sha256(body).hexdigest().encode():
            raise self._damaged(path, "other content than its digest says")
        try:
            work = Work.model_validate_json(body, strict=True)
        except ValidationError as fault:
            first = fault.errors(include_url=False, include_context=False)[0]
            where = ".".join(map(str, first["loc"])) or "work"
            raise self._damaged(path, f"{where}: {shortened(first['msg'])}") from None
        if (own := self._place(work.key, work.card.versions)) != place:
            raise self._damaged(path, f"the one that belongs to {own}")
        wanted, sizes = work.files(), copying.sizes_below(place)
        size = sum(sizes.values()) - sizes.pop(WORK, 0)
        for odd in sorted(sizes.keys() ^ wanted.keys()):
            raise self._damaged(place / odd, "none" if odd in wanted else "one file more")
        if size != work.size:
            raise self._damaged(place, f"{size} bytes instead of {work.size}")
        return work

    def _restored(
        self,
        place: Path,
        outputs: Mapping[str, Path],
        versions: Mapping[str, str],
        placing: Callable[[], object] | None,
    ) -> RunCard | None:
        held: Held | None = None
        try:
            held = self._held(place)
            work = held.work
            if work is None:
                raise held.fault or AssertionError
            if work.outputs.keys() != outputs.keys() or not _agree(work.card.versions, versions):
                return None
            self._copy_out(place, work, outputs, placing)
        except FileNotFoundError as fault:
            if place.exists():  # else it was removed meanwhile
                log.warning("%s: not restored: %s", place, fault)
            return None
        except StoreError as fault:
            if held is not None and _mark(place) == held.mark:  # else another has its name by now, or none
                log.warning("%s%s", fault, "" if self._drop(held) else f" {place} stays: it cannot be removed here.")
            return None
        with suppress(OSError):
            os.utime(place)
        return work.card

    def _copy_out(
        self, place: Path, work: Work, outputs: Mapping[str, Path], placing: Callable[[], object] | None
    ) -> None:
        """Copy all outputs beside their targets, then give them their names."""
        for parent in {target.parent for target in outputs.values()}:
            parent.mkdir(parents=True, exist_ok=True)
        beside = {name: atomic.temporary_in(target.parent) for name, target in outputs.items()}
        try:
            for number, (name, held) in enumerate(sorted(work.outputs.items())):
                files = {"": held} if isinstance(held, str) else held
                if not isinstance(held, str):
                    beside[name].mkdir()
                for path, sha256 in files.items():
                    source, target = place / str(number) / path, beside[name] / path
                    target.parent.mkdir(parents=True, exist_ok=True)
                    self._require(sha256, copying.copy_file(source, target), source)
                atomic.sweep(beside[name])
            if placing is not None:
                placing()
            for name, target in outputs.items():
                atomic.place(beside[name], target)
        finally:
            for temporary in beside.values():
                atomic.remove(temporary)

    def _drop(self, held: Held) -> bool:
        """Remove finished work if it is what was met, unused since; return whether it is gone."""
        with suppress(OSError):
            if _mark(held.place) == held.mark:
                with atomic.folder_in(self._staging) as aside:
                    held.place.rename(aside / "work")
        return not os.path.lexists(held.place)

    def _sweep(self) -> int:
        """Remove what killed processes have left; return how many of them."""
        if self._format() != FORMAT:
            return 0
        try:
            with atomic.folder_in(self._staging) as own:
                return atomic.sweep(own)
        except OSError:  # nothing can be removed here
            return 0

    def _format(self) -> str | None:
        """Return the format that the folder states; None without one."""
        try:
            with copying.open_file(self.folder / "VERSION") as handle:
                return handle.read(100).decode(errors="replace").strip()
        except FileNotFoundError:
            return None
        except OSError as fault:
            return fault.strerror or str(fault)

    def _require_format(self, *, for_removal: bool = False) -> None:
        """Refuse a store that another version of this package has written.

        Args:
            for_removal: refuse a folder without a format too, if it holds anything: it may be another program's. Else
                it may be a store that is being made, which a network file system shows in parts.

        Raises:
            StoreError: another format, or none.
        """
        found = self._format()
        if found == FORMAT or (found is None and not (for_removal and _folders(self.folder / "work"))):
            return
        raise StoreError(
            f"{self.folder / 'VERSION'}: expected a store of finished work of format {FORMAT}",
            found=shortened(repr(found)) if found else "an empty file" if found == "" else "no such file",
            do="Name another folder in `store.folder`, or delete this one: what it kept is computed again.",
        )

    def _require(self, sha256: str, found: str, path: Path) -> None:
        if found != sha256:
            raise self._damaged(path, f"the sha256 {found} instead of {sha256}")

    def _damaged(self, path: Path, found: str) -> StoreError:
        return StoreError(f"{path}: expected finished work as it was stored", found=found, do=AGAIN.format(self.folder))


def _fill(folder: Path, key: str, card: RunCard, outputs: Mapping[str, Path]) -> None:
    """Write a job's folder: its outputs, and what they are.

    The digest is of the copy, so what the store holds is what the run card says, whatever happens to the output.

    Raises:
        StoreError: an output has not the content that the run card says, or is no file or folder.
    """
    held: dict[str, str | dict[str, str]] = {}
    for number, (name, path) in enumerate(sorted(outputs.items())):
        with atomic.folder_in(folder) as aside:
            copy = aside / path.name  # what a content's digest is of, the name tells
            held[name] = _copy_in(path, copy)
            found, expected = contents.digest(copy), card.outputs.get(name)
            if found != expected:
                raise StoreError(
                    f"{path}: expected the content that the run card states for '{name}': {expected or 'none'}",
                    found=found,
                    do="Leave outputs alone until their job has ended; the next run makes it again.",
                )
            copy.rename(folder / str(number))
    work = Work(key=key, card=card, size=copying.bytes_of(folder), outputs=held)
    body = work.model_dump_json().encode() + b"\n"
    seal = hashlib.sha256(body).hexdigest().encode() + b"\n"
    atomic.write_file(folder / WORK, lambda handle: handle.write(seal + body))


def _copy_in(path: Path, copy: Path) -> str | dict[str, str]:
    """Copy an output and return the sha256 of its content; of a folder's files, those that are not hidden.

    Raises:
        StoreError: it is a symbolic link, or holds one: what that names is not the output's own.
    """
    if path.is_symlink() or not path.is_dir():
        return copying.copy_file(path, copy)
    copy.mkdir()
    held = {}
    for source in sorted(path.rglob("*")):
        below = source.relative_to(path)
        if any(part.startswith(".") for part in below.parts) or not (source.is_symlink() or source.is_file()):
            continue
        (copy / below).parent.mkdir(parents=True, exist_ok=True)
        held[below.as_posix()] = copying.copy_file(source, copy / below)
    return held


def _agree(made_with: Mapping[str, str], here: Mapping[str, str]) -> bool:
    """Return whether the packages that both have are the same; Python's version is in the fingerprint."""
    return all(here[name] == version for name, version in made_with.items() if name in here and name != "python")


def _folders(folder: Path) -> list[Path]:
    """Return the folders in a folder, by name; none where there is none."""
    try:
        return sorted(path for path in folder.iterdir() if path.is_dir() and not path.is_symlink())
    except (FileNotFoundError, NotADirectoryError):
        return []


def _mark(place: Path) -> tuple[int, int] | None:
    try:
        stat = place.lstat()
    except OSError:
        return None
    return stat.st_ino, stat.st_ctime_ns
