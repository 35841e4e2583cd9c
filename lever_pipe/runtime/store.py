"""A store of finished work: what a job made, by what it was made from, so that it is never computed twice.

The folder may be shared by several working directories, users and machines. Each finished job has a folder in it, named
by the digest of the job's spec and inputs and by that of its library versions:

    work/ab/<key>.<versions>/work.json   the job's manifest
    work/ab/<key>.<versions>/0/NAME      its outputs, files or folders, in the order of their names in the manifest
    staging/                             what is being written or removed

A file of the store is a hard link to the result of one working directory, or a copy where linking fails. A second
working directory gets a copy, so that an edit there changes no other result. Write access to results means write access
to the store, so the store is not trusted: `work.json` carries the digest of its own bytes, and the content of each
output is compared with the manifest next to its target, before any output gets its final name. Damaged work, and work
of another version of this package, is removed and never used. The digests have no key: they detect corruption, not
tampering.

There are no locks. A job's folder appears by one rename, complete and on disk, and goes by another; its modification
time is that of its last use. Who reads what goes meanwhile misses it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from lever_pipe.base import atomic, contents
from lever_pipe.base.errors import CheckpointError, LeverPipeError, StoreError
from lever_pipe.base.provenance import canonical_json
from lever_pipe.base.records import Manifest

log = logging.getLogger(__name__)

GB = 1_000_000_000  # bytes
WORK = "work.json"
WORK_FOLDER = re.compile(r"[0-9a-f]{2}/[0-9a-f]{64}\.[0-9a-f]{16}")
"""Where finished work lies below `work`; all else there is somebody's own."""


class Work(NamedTuple):
    """Finished work.

    Attributes:
        entry: its folder in the store.
        outputs: where each output is kept.
    """

    entry: Path
    manifest: Manifest
    outputs: dict[str, Path]

    def serves(self, names: Collection[str], versions: Mapping[str, str]) -> bool:
        """Return whether it has these outputs, made with the same versions of the packages that both name.

        Python's version is in the fingerprint of the code.
        """
        both = (self.manifest.versions.keys() & versions.keys()) - {"python"}
        return self.outputs.keys() == set(names) and all(self.manifest.versions[n] == versions[n] for n in both)

    def require_sound(self, outputs: Mapping[str, Path]) -> None:
        """Refuse outputs, here or beside their targets, whose content is not what the manifest says.

        Raises:
            StoreError: names the kept file.
        """
        for name, path in outputs.items():
            try:
                digest = contents.digest(path)
            except CheckpointError as error:
                digest = error.found
            if digest != self.manifest.outputs[name]:
                raise _damaged(self.outputs[name], f"other content: {digest}")


def key_of(stage: str, spec: str, inputs: Mapping[str, str]) -> str:
    """Return the key of a job's work, 64 hexadecimal digits: equal exactly where the same is computed.

    Args:
        stage: name of the stage.
        spec: JSON of its config and code, as `plan.spec_of` returns it; blanks and the order of keys do not matter.
        inputs: name -> digest of the content; a member of a list has its place in its name, as `cells[0]`.
    """
    work = {"stage": stage, "spec": json.loads(spec), "inputs": dict(inputs)}
    return hashlib.sha256(canonical_json(work).encode()).hexdigest()


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

    def put(self, key: str, manifest: Manifest) -> bool:
        """Store what a job made, unless it is there or larger than the store may be; return whether it was stored.

        A store that cannot be written, or an output that is not as its manifest says, is a warning and no problem: the
        work is done, and only cannot be kept. Other work of the same key is replaced: who forces a job does not trust
        what it made before.

        Args:
            key: see `key_of`.
            manifest: the job's manifest, which names path and content of each output; hidden files of folders are left
                out.
        """
        entry = self._entry(key, manifest.versions)
        artefacts = {name: Path(manifest.paths[name]) for name in manifest.outputs}
        try:
            if self._holds(entry, manifest) or sum(map(bytes_of, artefacts.values())) > self.max_bytes:
                return False
            with atomic.folder_in(self._staging) as folder:
                work = _work_in(folder, manifest)
                for name, path in artefacts.items():
                    _share(path, work.outputs[name])
                work.require_sound(work.outputs)
                body = manifest.model_dump_json().encode()
                seal = hashlib.sha256(body).hexdigest().encode()
                atomic.write_file(folder / WORK, lambda handle: handle.write(seal + b"\n" + body))
                entry.parent.mkdir(parents=True, exist_ok=True)
                atomic.place(folder, entry)
        except (OSError, LeverPipeError) as error:
            log.warning("%s: what %s has made is not kept: %s", self.folder, manifest.stage, error)
            return False
        return True

    def restore(self, key: str, outputs: Mapping[str, Path], *, versions: Mapping[str, str]) -> Manifest | None:
        """Put finished work where it belongs and return its manifest, or None if there is none of this key.

        What is damaged is named in a warning, removed if permitted, and no finished work. Then, or where a target
        cannot be written, the targets stay as they are.

        Args:
            key: see `key_of`.
            outputs: name -> where the file or folder is to be; exactly the names that were stored. What is there is
                replaced, a folder as a whole.
            versions: versions of the packages here; work of others is not taken.
        """
        for entry in self._entries(key):
            try:
                work = self._read(entry)
                if work.serves(outputs, versions):
                    _take_out(work, outputs)
                    with suppress(OSError):  # another user's
                        os.utime(entry)
                    return work.manifest
            except StoreError as error:
                log.warning("%s", error)
                with suppress(OSError):
                    self._drop(entry)
            except OSError as error:
                if entry.exists():  # else it was removed meanwhile
                    log.warning("%s: not restored: %s", entry, error)
        return None

    def find(self, key: str, names: Collection[str], *, versions: Mapping[str, str]) -> Work | None:
        """Return the finished work that `restore` would take unless it is damaged; None without."""
        for entry in self._entries(key):
            with suppress(StoreError, OSError):
                work = self._read(entry)
                if work.serves(names, versions):
                    return work
        return None

    def works(self) -> Iterator[Work]:
        """Yield all finished work that can be read."""
        for entry in self._entries():
            with suppress(StoreError, FileNotFoundError):
                yield self._read(entry)

    def trim(self) -> int:
        """Remove what was not used for the longest time until the rest is within `max_bytes`; return how many jobs.

        And what cannot be read, and what killed processes have left.

        Raises:
            OSError: something may not be removed here.
        """
        selected, dropped = list[tuple[float, Path, int]](), list[Path]()
        for entry in self._entries():
            try:
                self._read(entry)
                selected.append((entry.stat().st_mtime, entry, bytes_of(entry)))
            except StoreError:
                dropped.append(entry)
            except FileNotFoundError:  # removed meanwhile
                continue
        left = sum(size for _, _, size in selected)
        for _, entry, size in sorted(selected):
            if left <= self.max_bytes:
                break
            dropped.append(entry)
            left -= size
        for entry in dropped:
            self._drop(entry)
        if self._staging.is_dir():
            with atomic.folder_in(self._staging) as staged:
                atomic.sweep(staged)
        return len(dropped)

    def verify(self, *, remove: bool = False) -> Iterator[StoreError]:
        """Read everything, and yield what is damaged; remove it if wanted.

        Raises:
            OSError: something may not be read or removed here.
        """
        for entry in self._entries():
            with suppress(FileNotFoundError):  # removed meanwhile
                try:
                    work = self._read(entry)
                    work.require_sound(work.outputs)
                except StoreError as error:
                    if remove:
                        self._drop(entry)
                    yield error

    def _entry(self, key: str, versions: Mapping[str, str]) -> Path:
        name = hashlib.sha256(canonical_json(dict(versions)).encode()).hexdigest()[:16]
        return self.folder / "work" / key[:2] / f"{key}.{name}"

    def _entries(self, key: str = "") -> list[Path]:
        """Return the folders of all finished work, or of that of a key."""
        folders = self.folder.glob(f"work/{key[:2] or '*'}/{key}*")
        return sorted(path for path in folders if WORK_FOLDER.fullmatch(f"{path.parent.name}/{path.name}"))

    def _holds(self, entry: Path, manifest: Manifest) -> bool:
        """Return whether this work is there, undamaged."""
        try:
            work = self._read(entry)
            work.require_sound(work.outputs)
        except (StoreError, FileNotFoundError):
            return False
        return work.manifest.outputs == manifest.outputs

    def _read(self, entry: Path) -> Work:
        """Return the work in a folder, all outputs of which are there.

        Raises:
            StoreError: it is not what was written.
            FileNotFoundError: it is gone.
        """
        path = entry / WORK
        seal, _, body = path.read_bytes().partition(b"\n")
        if seal != hashlib.sha256(body).hexdigest().encode():
            raise _damaged(path, "other content than its digest says")
        try:
            work = _work_in(entry, Manifest.model_validate_json(body, strict=True))
        except (ValidationError, KeyError):
            raise _damaged(path, "a manifest of another version") from None
        for selected in work.outputs.values():
            if not selected.exists():
                raise _damaged(selected, "none")
        return work

    def _drop(self, entry: Path) -> None:
        """Remove finished work, first from its name, then from the disk.

        Raises:
            OSError: this user may not.
        """
        with atomic.folder_in(self._staging) as aside, suppress(FileNotFoundError):  # another process was faster
            entry.rename(aside / "work")


def bytes_of(path: Path) -> int:
    """Return the size of a file, or of the files below a folder that belong to its content."""
    return sum(file.stat().st_size for file in (contents.files_below(path) if path.is_dir() else [path]))


def _work_in(entry: Path, manifest: Manifest) -> Work:
    """Return the work of a folder; an output keeps the name of its file, which tells what a content's digest is of."""
    names = enumerate(sorted(manifest.outputs))
    return Work(entry, manifest, {name: entry / str(i) / Path(manifest.paths[name]).name for i, name in names})


def _take_out(work: Work, outputs: Mapping[str, Path]) -> None:
    """Put all outputs beside their targets, then give them their names.

    Raises:
        StoreError: a kept file is damaged.
    """
    with ExitStack() as stack:
        copies = dict[str, Path]()
        for name, target in outputs.items():
            aside = stack.enter_context(atomic.folder_in(target.parent))
            atomic.sweep(aside)
            copies[name] = aside / target.name
            _share(work.outputs[name], copies[name])
        work.require_sound(copies)
        for name, target in outputs.items():
            atomic.place(copies[name], target)


def _share(source: Path, target: Path) -> None:
    """Let a file, or each file of a folder, be another's content, as a hard link or a copy."""
    if source.is_dir():
        target.mkdir(parents=True)
        for file in contents.files_below(source):
            _share(file, target / file.relative_to(source))
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with suppress(OSError):  # another file system, or another user's file
        if source.stat().st_nlink == 1:  # else two results would be one file
            target.hardlink_to(source)
    if not target.exists():
        with source.open("rb") as original:
            atomic.write_file(target, lambda handle: shutil.copyfileobj(original, handle))


def _damaged(path: Path, found: str) -> StoreError:
    return StoreError(
        f"{path}: expected finished work as it was stored",
        found=found,
        do="A run that needs it computes it again; `lever-pipe store gc FOLDER` removes all such work.",
    )
