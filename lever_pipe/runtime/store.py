"""A store of finished jobs' outputs, addressed by the jobs' inputs, so that no job is computed twice.

The folder may be shared by several working directories, users and machines. It contains a folder for each finished job,
named by two digests: one of the job's spec and inputs, one of its library versions.

    work/ab/<key>.<versions>/work.json   the job's manifest
    work/ab/<key>.<versions>/0/NAME      its outputs, files or folders, in the order of their names in the manifest
    staging/                             entries that are being written or removed

A file of the store is a hard link to the result of one working directory, or a copy where linking fails. A second
working directory gets a copy, so that an edit there changes no other result. Write access to results means write access
to the store, so the store is not trusted. `work.json` starts with the digest of its own bytes. Each output's content is
compared with the manifest before any output gets its final name. Damaged work, and work of another version of this
package, is removed and never used. The digests have no key: they detect corruption, not tampering.

There are no locks. A job's folder is added by one rename, complete and on disk, and removed by another; its
modification time is the time of its last use. Reading an entry while it is being removed is a cache miss.
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
"""Paths of finished work below `work`; the store does not touch other files there."""


class Work(NamedTuple):
    """Finished work.

    Attributes:
        entry: its folder in the store.
        outputs: output name -> its path in the store.
    """

    entry: Path
    manifest: Manifest
    outputs: dict[str, Path]

    def serves(self, names: Collection[str], versions: Mapping[str, str]) -> bool:
        """Return whether the work has these outputs and equal versions of the packages in both lists.

        Python's version is excluded, because it is part of the code's fingerprint.
        """
        both = (self.manifest.versions.keys() & versions.keys()) - {"python"}
        return self.outputs.keys() == set(names) and all(self.manifest.versions[n] == versions[n] for n in both)

    def require_sound(self, outputs: Mapping[str, Path]) -> None:
        """Compare the content of outputs, in the store or copied from it, with the manifest.

        Raises:
            StoreError: a content differs; the error names the file in the store.
        """
        for name, path in outputs.items():
            try:
                digest = contents.digest(path)
            except CheckpointError as error:
                digest = error.found
            if digest != self.manifest.outputs[name]:
                raise _damaged(self.outputs[name], f"other content: {digest}")


def key_of(stage: str, spec: str, inputs: Mapping[str, str]) -> str:
    """Return the key of a job's work, 64 hexadecimal digits: equal for equal computations only.

    Args:
        stage: name of the stage.
        spec: JSON of its config and code, as `plan.spec_of` returns it; blanks and the order of keys do not matter.
        inputs: name -> digest of the content; the name of a list's item contains its index, as `cells[0]`.
    """
    work = {"stage": stage, "spec": json.loads(spec), "inputs": dict(inputs)}
    return hashlib.sha256(canonical_json(work).encode()).hexdigest()


def opened(settings: Mapping[str, Any]) -> Store:
    """Open the store of the configuration's section `store`."""
    return Store(Path(settings["folder"]).expanduser(), max_bytes=int(settings["max_gb"] * GB))


class Store:
    """A folder of finished work, created by the first `put`.

    Args:
        folder: the store's path.
        max_bytes: size limit of its files after `trim`.
    """

    def __init__(self, folder: Path, *, max_bytes: int) -> None:
        self.folder = folder
        self.max_bytes = max_bytes
        self._staging = folder / "staging"

    def put(self, key: str, manifest: Manifest) -> bool:
        """Store a job's outputs, unless they are stored already or exceed the size limit; return whether it did.

        If the store is not writable, or an output differs from its manifest, log a warning: the job itself succeeded.
        Other work of the same key is replaced, because a user who forces a job does not trust its earlier outputs.

        Args:
            key: see `key_of`.
            manifest: the job's manifest with path and content of each output; hidden files of folders are skipped.
        """
        entry = self._entry(key, manifest.versions)
        outputs = {name: Path(manifest.paths[name]) for name in manifest.outputs}
        try:
            if self._holds(entry, manifest) or sum(map(bytes_of, outputs.values())) > self.max_bytes:
                return False
            with atomic.folder_in(self._staging) as folder:
                work = _work_in(folder, manifest)
                for name, path in outputs.items():
                    _share(path, work.outputs[name])
                work.require_sound(work.outputs)  # after sharing: the results may change while they are copied
                body = manifest.model_dump_json().encode()
                seal = hashlib.sha256(body).hexdigest().encode()
                atomic.write_file(folder / WORK, lambda handle: handle.write(seal + b"\n" + body))
                entry.parent.mkdir(parents=True, exist_ok=True)
                atomic.place(folder, entry)  # the entry appears complete, because readers take no lock
        except (OSError, LeverPipeError) as error:
            log.warning("%s: the outputs of %s are not stored: %s", self.folder, manifest.stage, error)
            return False
        return True

    def restore(self, key: str, outputs: Mapping[str, Path], *, versions: Mapping[str, str]) -> Manifest | None:
        """Restore finished work to its targets and return its manifest; None if there is none of this key.

        Damaged work causes a warning and a miss, and is removed if permitted. In this case, or if a target is not
        writable, the targets stay unchanged.

        Args:
            key: see `key_of`.
            outputs: name -> target path of the file or folder; exactly the stored names. An existing target is
                replaced, a folder as a whole.
            versions: installed package versions; work made with other versions is not used.
        """
        for entry in self._entries(key):
            try:
                work = self._read(entry)
                if work.serves(outputs, versions):
                    _take_out(work, outputs)
                    with suppress(OSError):  # the entry belongs to another user
                        os.utime(entry)
                    return work.manifest
            except StoreError as error:
                log.warning("%s", error)
                with suppress(OSError):
                    self._drop(entry)
            except OSError as error:
                if entry.exists():  # otherwise another process removed it
                    log.warning("%s: not restored: %s", entry, error)
        return None

    def find(self, key: str, names: Collection[str], *, versions: Mapping[str, str]) -> Work | None:
        """Return the finished work that `restore` would use, without checking contents; None if there is none."""
        for entry in self._entries(key):
            with suppress(StoreError, OSError):
                work = self._read(entry)
                if work.serves(names, versions):
                    return work
        return None

    def works(self) -> Iterator[Work]:
        """Yield all readable finished work."""
        for entry in self._entries():
            with suppress(StoreError, FileNotFoundError):
                yield self._read(entry)

    def trim(self) -> int:
        """Remove the least recently used jobs until the rest fits in `max_bytes`; return the number of removed jobs.

        Also remove unreadable entries and leftovers of killed processes.

        Raises:
            OSError: no permission to remove an entry.
        """
        readable, dropped = list[tuple[float, Path, int]](), list[Path]()
        for entry in self._entries():
            try:
                self._read(entry)
                readable.append((entry.stat().st_mtime, entry, bytes_of(entry)))
            except StoreError:
                dropped.append(entry)
            except FileNotFoundError:  # another process removed it
                continue
        left = sum(size for _, _, size in readable)
        for _, entry, size in sorted(readable):
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
        """Check the content of all entries; yield an error for each damaged one, and remove it if `remove` is set.

        Raises:
            OSError: no permission to read or remove an entry.
        """
        for entry in self._entries():
            with suppress(FileNotFoundError):  # another process removed it
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
        """Return the folders of all finished work, or only those of a key."""
        folders = self.folder.glob(f"work/{key[:2] or '*'}/{key}*")  # one per combination of library versions
        return sorted(path for path in folders if WORK_FOLDER.fullmatch(f"{path.parent.name}/{path.name}"))

    def _holds(self, entry: Path, manifest: Manifest) -> bool:
        """Return whether the store contains this work, undamaged."""
        try:
            work = self._read(entry)
            work.require_sound(work.outputs)
        except (StoreError, FileNotFoundError):
            return False
        return work.manifest.outputs == manifest.outputs

    def _read(self, entry: Path) -> Work:
        """Read the work in a folder and check that all its outputs exist.

        Raises:
            StoreError: the entry is damaged or incomplete.
            FileNotFoundError: the entry was removed.
        """
        path = entry / WORK
        seal, _, body = path.read_bytes().partition(b"\n")
        if seal != hashlib.sha256(body).hexdigest().encode():
            raise _damaged(path, "other content than its digest says")
        try:
            work = _work_in(entry, Manifest.model_validate_json(body, strict=True))
        except (ValidationError, KeyError):
            raise _damaged(path, "a manifest of another version") from None
        for output in work.outputs.values():
            if not output.exists():
                raise _damaged(output, "none")
        return work

    def _drop(self, entry: Path) -> None:
        """Remove finished work: rename it first, so that readers never see a partly deleted entry.

        Raises:
            OSError: no permission.
        """
        with atomic.folder_in(self._staging) as aside, suppress(FileNotFoundError):  # another process was faster
            entry.rename(aside / "work")


def bytes_of(path: Path) -> int:
    """Return the size of a file, or of a folder's files without hidden ones."""
    return sum(file.stat().st_size for file in (contents.files_below(path) if path.is_dir() else [path]))


def _work_in(entry: Path, manifest: Manifest) -> Work:
    """Return the work of a folder; outputs keep their file names, because the kind of digest depends on them."""
    names = enumerate(sorted(manifest.outputs))
    return Work(entry, manifest, {name: entry / str(i) / Path(manifest.paths[name]).name for i, name in names})


def _take_out(work: Work, outputs: Mapping[str, Path]) -> None:
    """Copy or link all outputs next to their targets, check them, then rename them to the targets.

    Raises:
        StoreError: a stored file is damaged.
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
    """Hard-link a file, or each file of a folder, to a new path; copy it where linking fails."""
    if source.is_dir():
        target.mkdir(parents=True)
        for file in contents.files_below(source):
            _share(file, target / file.relative_to(source))
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with suppress(OSError):  # another file system, or another user's file
        if source.stat().st_nlink == 1:  # a third name would make an edit of one result change another
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
