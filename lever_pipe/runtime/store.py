"""A store of finished work: what a job made, by what it was made from, so that it is never computed twice.

The folder may be shared by several working directories, users and machines. It holds contents, named by the sha256 of
their bytes, and entries: the run card of a job and which contents its outputs consist of, below a key that is the
digest of the job's spec and inputs. An entry of other library versions is another entry of the same key.

    VERSION                       number of the format
    blobs/ab/<sha256>             a file's bytes
    entries/ab/<key>/<id>.json    an entry; its modification time is that of its last use
    staging/                      what is being written or removed

Nothing is trusted: an entry carries the digest of its own bytes, and every content is digested while it is copied to a
place beside its target. Only when all of an artefact is there and right does any of it get its final name. What is
damaged is named and never used. The digests have no key: they tell of accidents, not of forgers who may write here.

There are no locks, because there is nothing that two processes could do to each other but cost work.
* Everything appears by a rename of a whole file that is on disk, and is never written again. A content's name says what
  it holds, so writers of one name write the same; an entry is written after all that it names. A reader sees a file or
  none.
* Who collects garbage takes contents aside, looks then for entries that appeared meanwhile, and puts back what they
  name. Who writes an entry looks then whether all that it names is there, and writes again what is not. Whichever of
  the two acts last sees the other. Where a network file system shows old listings, the worst is an entry whose content
  is gone: a miss.
* Copies share blocks where the file system can, but never are they hard links: an edit of a result stays outside.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from lever_pipe.base import os_faults, storage
from lever_pipe.base.errors import LeverPipeError, StoreError
from lever_pipe.base.provenance import canonical_json
from lever_pipe.base.records import RunCard
from lever_pipe.runtime.storing import files, staging, trimming, verifying
from lever_pipe.runtime.storing.entries import (
    FORMAT,
    Entry,
    Layout,
    Loaded,
    StoredFile,
    discard,
    load,
    parse,
    sealed_entry,
    size_of,
    wrong_blob,
)
from lever_pipe.runtime.storing.trimming import Trimmed
from lever_pipe.runtime.storing.verifying import Fault, Stats

log = logging.getLogger(__name__)

GB = 1_000_000_000  # bytes


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
        max_bytes: how much its contents may take after `trim`.
    """

    def __init__(self, folder: Path, *, max_bytes: int) -> None:
        self.folder = folder
        self.max_bytes = max_bytes
        self._layout = Layout(folder)

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
            self._layout.require_format()
            place = self._layout.entry(key, card.versions)
            if self._holds(place, card):
                return False
            size = sum(file.lstat().st_size for path in outputs.values() for _, file in staging.files_of(path))
            if size > self.max_bytes:
                log.info("%s: %s is not kept: %d bytes are more than all of it may take", self.folder, card.stage, size)
                return False
            return self._put(place, key, card, outputs)
        except (OSError, ValueError, LeverPipeError) as fault:
            told = os_faults.named(fault) if isinstance(fault, OSError) else None
            log.warning("%s: what %s has made is not kept: %s", self.folder, card.stage, told or fault)
            return False

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
        self._layout.require_format()
        try:
            candidates = self._layout.entries_of(key)
            return next(
                (card for path in candidates if (card := self._restored(path, outputs, versions, placing))), None
            )
        except OSError as fault:
            log.warning("%s: nothing is taken from it: %s", self.folder, fault)
            return None

    def trim(self) -> Trimmed:
        """Remove what was not used for the longest time until the contents are within `max_bytes`; then leftovers.

        Leftovers are contents that no entry names and temporary files, if older than an hour.

        Raises:
            StoreError: the folder holds a store of another format.
        """
        self._layout.require_format(for_removal=True)
        return trimming.trim(self._layout, self.max_bytes)

    def stats(self) -> Stats:
        """Return how much there is.

        Raises:
            StoreError: the folder holds a store of another format.
        """
        self._layout.require_format()
        return verifying.stats(self._layout)

    def verify(self, *, mend: bool = False) -> list[Fault]:
        """Read everything and return a fault for each content or entry that is damaged or missing.

        Args:
            mend: remove what is damaged, and the entries that need it.

        Raises:
            StoreError: the folder holds a store of another format.
        """
        self._layout.require_format(for_removal=mend)
        return verifying.verify(self._layout, mend=mend)

    def _holds(self, place: Path, card: RunCard) -> bool:
        """Return whether this work is there, undamaged.

        Other work of the same key is replaced: who forces a job does not trust what it made before.
        """
        with suppress(OSError, StoreError):
            entry = parse(load(place))
            sizes = {name: verifying.require_blob(self._layout, self._layout.blob(name)) for name in entry.blobs()}
            return entry.card.outputs == card.outputs and sizes == entry.blobs()
        return False

    def _missing(self, entry: Entry) -> list[str]:
        return [sha256 for sha256, size in entry.blobs().items() if size_of(self._layout.blob(sha256)) != size]

    def _put(self, place: Path, key: str, card: RunCard, outputs: Mapping[str, Path]) -> bool:
        """Store an entry with all that it names, again if a collector has taken some of it meanwhile."""
        for _ in range(files.ATTEMPTS):
            with files.temporary_below(self._layout.staging) as folder:
                entry = self._written(folder, place, key, card, outputs)
            missing = self._missing(entry)
            if not missing:
                return True
        discard(load(place))
        raise StoreError(
            f"{self.folder}: expected to find what was written a moment ago",
            found=f"none of {len(missing)} contents, {self._layout.blob(missing[0])} for one",
            do="See what removes files there; the next run computes this again.",
        )

    def _written(self, folder: Path, place: Path, key: str, card: RunCard, outputs: Mapping[str, Path]) -> Entry:
        self._state_format(folder)
        staged: dict[str, Path] = {}
        stored = {}
        for number, (name, path) in enumerate(sorted(outputs.items())):
            stored[name] = staging.stage(name, path, folder / str(number), card.outputs.get(name), staged)
        entry = Entry(key=key, card=card, outputs=stored)
        content = sealed_entry(entry)  # first: what cannot be said is not stored
        for sha256, temporary in staged.items():
            blob = self._layout.blob(sha256)
            blob.parent.mkdir(parents=True, exist_ok=True)
            os.utime(temporary)  # collectors count from here
            files.place(temporary, blob)
        storage.write_atomically(folder / "entry", lambda handle: handle.write(content))
        staging.place_entry(folder / "entry", place)
        return entry

    def _state_format(self, folder: Path) -> None:
        if not self._layout.version.exists():
            storage.write_text(folder / "version", f"{FORMAT}\n")
            files.place(folder / "version", self._layout.version)

    def _restored(
        self,
        path: Path,
        outputs: Mapping[str, Path],
        versions: Mapping[str, str],
        placing: Callable[[], object] | None,
    ) -> RunCard | None:
        loaded: Loaded | None = None
        try:
            loaded = load(path)
            entry = parse(loaded)
            if entry.outputs.keys() != outputs.keys() or not _agree(entry.card.versions, versions):
                return None
            self._copy_all(entry, outputs, placing)
        except FileNotFoundError as fault:
            if path.exists():
                log.warning("%s: not restored: %s", path, fault)
            return None
        except StoreError as fault:
            if os.path.lexists(path):  # else it was collected meanwhile
                removed = loaded is not None and discard(loaded)
                log.warning("%s%s", fault, "" if removed else f" {path} stays: it cannot be removed here.")
            return None
        with suppress(OSError):
            os.utime(path)
        return entry.card

    def _copy_all(self, entry: Entry, outputs: Mapping[str, Path], placing: Callable[[], object] | None) -> None:
        """Copy all outputs beside their targets, then give them their names."""
        with files.all_beside(outputs) as beside:
            for name, output in entry.outputs.items():
                if output.kind == "folder":
                    beside[name].mkdir()
                for file in output.files:
                    self._copy_blob(file, beside[name] / file.path)
                if output.kind == "folder":
                    files.sync_below(beside[name])
            if placing is not None:
                placing()
            for name, target in outputs.items():
                files.place(beside[name], target)

    def _copy_blob(self, file: StoredFile, target: Path) -> None:
        blob = self._layout.blob(file.sha256)
        try:
            size = size_of(blob)
            if size != file.size:
                found = "none" if size is None else f"{size} bytes"
                raise wrong_blob(blob, file.sha256, file.size, found)
            target.parent.mkdir(parents=True, exist_ok=True)
            copied = files.copy_file(blob, target)
            if copied.sha256 != file.sha256:
                raise wrong_blob(blob, file.sha256, file.size, f"{copied.size} bytes with the sha256 {copied.sha256}")
        except StoreError:
            verifying.remove_damaged(self._layout, blob)  # other entries that name it miss it then
            raise


def _agree(made_with: Mapping[str, str], here: Mapping[str, str]) -> bool:
    """Return whether the packages that both have are the same; Python's version is in the fingerprint."""
    return all(here[name] == version for name, version in made_with.items() if name in here and name != "python")
