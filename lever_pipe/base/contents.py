"""Digests of the contents of files and folders, independent of times and of the layout of safetensors files.

An artifact that is recomputed with the same content, copied or touched keeps its digest, so its readers need not rerun.
Two kinds of files contain more than their content. A safetensors file may order its tensors and pad its header in any
way: its digest covers each tensor's name, dtype, shape and bytes. A manifest also records a job's duration, the paths
of its files, and digests of its outputs and of single tensors: its digest excludes these (`BOOKKEEPING`). All other
files count byte by byte.

`Digests` remembers digests by a file's size, times and inode, as git's index does, so that large files are read once.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO

from lever_pipe.base import atomic, storage
from lever_pipe.base.errors import CheckpointError, LeverPipeError

CHUNK = 1 << 22  # bytes
TENSOR_DIGITS = 16
RACY_NS = 2_000_000_000
"""A file that changed less than this before it was read may change again with the same time, on a coarse clock."""
BOOKKEEPING = frozenset(("seconds", "outputs", "replaced", "tensors", "paths"))
"""Keys of a manifest that do not describe the computation."""
MEMORY = Path(".snakemake/lever_pipe/digests.json")
"""File that remembers the digests of a working directory's files."""
FORMAT = 1
"""Version of the memory file and of the definition of a digest; remembered digests of other versions are invalid."""
UNREADABLE = ""
"""Used instead of a digest: the file exists but is incomplete or unreadable."""
REMEDY = "Delete the file: the next run makes it again."


def digest(path: Path) -> str:
    """Return the digest of a file's or folder's content, 64 hexadecimal digits.

    Hidden files of a folder do not count: workflow and download tools keep notes there.

    Raises:
        FileNotFoundError: the path does not exist.
        CheckpointError: a safetensors file is incomplete.
    """
    if path.is_dir():
        return _of_listing(path, digest)
    if path.suffix == ".safetensors":
        return of_tensors(tensors_of(path))
    if is_manifest(path):
        # An invalid manifest has no keys to exclude, so its bytes count.
        with suppress(ValueError, AttributeError, RecursionError):
            return _of_manifest(path)
    return storage.digest(path)


def is_manifest(path: Path) -> bool:
    """Return whether a file is a manifest, according to its name."""
    return path.name == "run.json" or path.name.endswith(".run.json")


def tensors_of(path: Path) -> dict[str, str]:
    """Return name -> dtype, shape and digest of each tensor of a safetensors file, as `F32[2,3] 0f5a...`.

    Raises:
        FileNotFoundError: the path does not exist.
        CheckpointError: the file is incomplete.
    """
    try:
        start, tensors = storage.header_of(path)
    except ValueError as error:
        raise CheckpointError(f"{path}: expected whole safetensors", found=str(error), do=REMEDY) from None
    with path.open("rb") as handle:
        return {
            name: f"{tensor['dtype']}[{','.join(map(str, tensor['shape']))}] "
            + _of_range(handle, *(start + offset for offset in tensor["data_offsets"]))
            for name, tensor in sorted(tensors.items())
        }


def in_short(tensors: dict[str, str]) -> dict[str, str]:
    """Return the entries of `tensors_of` with shortened digests, which suffice for readers to compare tensors."""
    return {name: text[: text.index(" ") + 1 + TENSOR_DIGITS] for name, text in tensors.items()}


def of_tensors(tensors: dict[str, str]) -> str:
    """Return the digest of a safetensors file with these tensors, as `tensors_of` returns them."""
    return hashlib.sha256(json.dumps(tensors, sort_keys=True).encode()).hexdigest()


class Digests:
    """Digests of files by path, remembered while size, times and inode are unchanged.

    Args:
        memory: a file that keeps them between processes; without it they last as long as this object.
    """

    def __init__(self, memory: Path | None = None) -> None:
        self.read_bytes = 0
        self._memory = memory
        self._digests: dict[str, tuple[list[int], str]] = {}
        if memory is not None:
            # A damaged memory only costs time: files are read again.
            with suppress(OSError, ValueError, TypeError, AttributeError, LookupError):
                content = json.loads(memory.read_bytes())
                entries = content["digests"] if content["format"] == FORMAT else {}
                self._digests = {str(name): (list(map(int, stat)), str(text)) for name, (stat, text) in entries.items()}
        self._is_saved = True

    def of(self, path: Path) -> str:
        """Return the digest of a file's or folder's content.

        Raises:
            FileNotFoundError: the path does not exist.
            CheckpointError: a safetensors file is incomplete.
        """
        return _of_listing(path, self._of_file) if path.is_dir() else self._of_file(path)

    def find(self, path: Path) -> str | None:
        """Return the digest of a file's or folder's content: None if it is missing, `UNREADABLE` if incomplete."""
        try:
            return self.of(path)
        except FileNotFoundError:
            return None
        except (CheckpointError, OSError):
            return UNREADABLE

    def save(self) -> None:
        """Write the digests to the memory file; if that fails, files are read again next time."""
        if self._memory is None or self._is_saved:
            return
        # Without deleted files; otherwise the memory would grow with every run.
        entries = {name: entry for name, entry in sorted(self._digests.items()) if os.path.lexists(name)}
        content = json.dumps({"format": FORMAT, "digests": entries})
        with suppress(OSError, LeverPipeError):
            atomic.write_file(self._memory, lambda handle: handle.write(content.encode()))
            self._is_saved = True

    def _of_file(self, path: Path) -> str:
        name, stat = os.path.abspath(path), _identity(path)  # noqa: PTH100 - `resolve` reads each part from the disk
        entry = self._digests.get(name)
        if entry is not None and entry[0] == stat:
            return entry[1]
        started = time.time_ns()
        content_digest = digest(path)
        self.read_bytes += stat[0]
        self._digests.pop(name, None)
        # Remember a file only if it was settled before the reading and did not change during it.
        if max(stat[1:3]) + RACY_NS < started and _identity(path) == stat:
            self._digests[name] = (stat, content_digest)
        self._is_saved = False
        return content_digest


def remembered() -> Digests:
    """Return the digests that `MEMORY` in the working directory keeps, of files anywhere; one object per process."""
    return _remembered(Path.cwd() / MEMORY)


@cache
def _remembered(memory: Path) -> Digests:
    return Digests(memory)


def model_identity(folder: str) -> str:
    """Return 16 digits of a model folder's digest, or `absent`; unchanged weights are read only once."""
    root = Path(folder)
    try:
        return remembered().of(root)[:16] if root.is_dir() else "absent"
    except CheckpointError:  # the check before the first job reports the file and its problem
        return _of_listing(root, storage.digest)[:16]


def _identity(path: Path) -> list[int]:
    stat = path.stat()
    return [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino]


def files_below(folder: Path) -> Iterator[Path]:
    """Yield the files below a folder that belong to its content, by name."""
    # Sorted, because file systems list names in any order.
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not any(part.startswith(".") for part in path.relative_to(folder).parts):
            yield path


def _of_listing(folder: Path, digest_of: Callable[[Path], str]) -> str:
    listing = "\n".join(f"{path.relative_to(folder)}\0{digest_of(path)}" for path in files_below(folder))
    return hashlib.sha256(os.fsencode(listing)).hexdigest()  # names need not be UTF-8


def _of_manifest(path: Path) -> str:
    values = {key: value for key, value in json.loads(path.read_bytes()).items() if key not in BOOKKEEPING}
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def _of_range(handle: IO[bytes], begin: int, end: int) -> str:
    handle.seek(begin)
    whole = hashlib.sha256()
    while begin < end:
        chunk = handle.read(min(CHUNK, end - begin))
        whole.update(chunk)
        begin += len(chunk)
    return whole.hexdigest()
