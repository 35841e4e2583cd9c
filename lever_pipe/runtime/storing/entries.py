"""What a store says about finished work, and where: the entries, their seals and the layout of the folder."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Literal, NamedTuple, Self

from pydantic import Field, ValidationError, model_validator

from lever_pipe.base.errors import StoreError
from lever_pipe.base.provenance import canonical_json
from lever_pipe.base.records import Row, RunCard
from lever_pipe.base.storage import shortened
from lever_pipe.runtime.storing import files

FORMAT = "1"
LARGEST_ENTRY = 64_000_000  # bytes; the largest run card lists a few thousand tensors
ID_DIGITS = 16
HEAD, MIDDLE, END = b'{"sha256":"', b'","entry":', b"}\n"
SEAL = len(HEAD) + 64 + len(MIDDLE)  # bytes before an entry's own JSON
SHARD = re.compile("[0-9a-f]{2}")
SHA256 = r"^[0-9a-f]{64}$"
AGAIN = (
    "A run that needs it computes it again. All such entries at once: python -m lever_pipe store verify --mend {folder}"
)


class StoredFile(Row):
    """A file of an output: its path below the output, empty for the output itself, and what it holds."""

    path: str
    sha256: str = Field(pattern=SHA256)
    size: int = Field(ge=0)


class StoredOutput(Row):
    """A file or folder that a job made; a folder lists its files by path."""

    kind: Literal["file", "folder"]
    files: tuple[StoredFile, ...]

    @model_validator(mode="after")
    def _stays_inside(self) -> Self:
        """Refuse paths that lead out of the output, or that cannot exist beside each other."""
        paths = [file.path for file in self.files]
        if self.kind == "file":
            if paths != [""]:
                raise ValueError(f"a file has one path, which is empty, not {paths[:3]}")
            return self
        for path in paths:
            if not all(_is_name(part) for part in path.split("/")):
                raise ValueError(f"{path!r} must be a path below its folder")
        parents = {str(parent) for path in paths for parent in PurePosixPath(path).parents}
        if len(set(paths)) < len(paths) or parents & set(paths):
            raise ValueError("a path must not be there twice, nor below a file")
        return self


class Entry(Row):
    """One finished job: its run card and the files that it made, by the names of the stage's parameters."""

    key: str = Field(pattern=SHA256)
    card: RunCard
    outputs: dict[str, StoredOutput]

    def blobs(self) -> dict[str, int]:
        """Return digest -> bytes of everything that this entry needs."""
        return {file.sha256: file.size for output in self.outputs.values() for file in output.files}


class Identity(NamedTuple):
    """What tells a file from one that took its name, and from itself before its last use."""

    inode: int
    changed_ns: int


class Loaded(NamedTuple):
    """An entry's file as it was read; `used` is the time of its last use in seconds."""

    path: Path
    content: bytes
    identity: Identity
    used: float


class Layout(NamedTuple):
    """Where things lie below the folder of a store."""

    folder: Path

    @property
    def version(self) -> Path:
        """The file that holds the number of the format."""
        return self.folder / "VERSION"

    @property
    def blobs(self) -> Path:
        """The folder of all contents, named by their digests."""
        return self.folder / "blobs"

    @property
    def entries(self) -> Path:
        """The folder of all entries, below their keys."""
        return self.folder / "entries"

    @property
    def staging(self) -> Path:
        """The folder of what is not whole yet, or about to go."""
        return self.folder / "staging"

    def blob(self, sha256: str) -> Path:
        """Return where a content lies."""
        return self.blobs / sha256[:2] / sha256

    def entry(self, key: str, versions: Mapping[str, str]) -> Path:
        """Return where the entry of a key lies that was made with these versions."""
        name = hashlib.sha256(canonical_json(dict(versions)).encode()).hexdigest()[:ID_DIGITS]
        return self.below(key) / f"{name}.json"

    def below(self, key: str) -> Path:
        """Return the folder of a key's entries."""
        return self.entries / key[:2] / key

    def entries_of(self, key: str) -> list[Path]:
        """Return a key's entries by name."""
        return _entries_in(self.below(key))

    def all_entries(self) -> Iterator[Path]:
        """Yield all entries by key."""
        for shard in _folders(self.entries):
            for key in _folders(shard):
                yield from _entries_in(key)

    def all_blobs(self) -> Iterator[os.DirEntry[str]]:
        """Yield all contents, by name."""
        for shard in _folders(self.blobs):
            if SHARD.fullmatch(shard.name):
                yield from files.scan(shard)

    def require_format(self, *, for_removal: bool = False) -> None:
        """Refuse a store that another version of this package has written.

        Args:
            for_removal: refuse a folder without a format too, if it holds anything: it may be another program's. Else
                it may be a store that is being made, which a network file system shows in parts.

        Raises:
            StoreError: another format, or none.
        """
        try:
            with files.open_file(self.version) as handle:
                found = handle.read(100).decode(errors="replace").strip()
        except FileNotFoundError:
            if not for_removal or not (self.entries.exists() or self.blobs.exists()):
                return
            found = "no such file"
        except OSError as fault:
            found = fault.strerror or str(fault)
        if found != FORMAT:
            raise StoreError(
                f"{self.version}: expected a store of finished work of format {FORMAT}",
                found=shortened(repr(found)) if found else "an empty file",
                do="Name another folder in `store.folder`, or delete this one: what it kept is computed again.",
            )


def load(path: Path) -> Loaded:
    """Return an entry's file.

    Raises:
        StoreError: no file, or one larger than any entry.
        OSError: it cannot be read.
    """
    with files.open_file(path) as handle:
        stat, content = os.fstat(handle.fileno()), handle.read(LARGEST_ENTRY + 1)
    if len(content) > LARGEST_ENTRY:
        raise _damaged(path, f"more than {LARGEST_ENTRY} bytes")
    return Loaded(path, content, Identity(stat.st_ino, stat.st_ctime_ns), stat.st_mtime)


def parse(loaded: Loaded) -> Entry:
    """Return an entry that is what was written under this name.

    Raises:
        StoreError: it was changed since, was never whole, or lies at another place than its own.
    """
    path, content = loaded.path, loaded.content
    body = content[SEAL : -len(END)]
    if content != _sealed(body):
        raise _damaged(path, "other content than its digest says" if content.startswith(HEAD) else "no digest of it")
    try:
        entry = Entry.model_validate_json(body, strict=True)
    except ValidationError as fault:
        first = fault.errors(include_url=False, include_context=False)[0]
        where = ".".join(map(str, first["loc"])) or "entry"
        raise _damaged(path, f"{where}: {shortened(first['msg'])}") from None
    place = Layout(path.parents[3]).entry(entry.key, entry.card.versions)
    if place != path:
        raise _damaged(path, f"the one that belongs to {place}")
    return entry


def sealed_entry(entry: Entry) -> bytes:
    """Return the bytes of an entry's file: its JSON and the digest of that."""
    return _sealed(entry.model_dump_json().encode())


def size_of(path: Path) -> int | None:
    """Return a file's bytes; None where none is."""
    try:
        return path.lstat().st_size
    except FileNotFoundError:
        return None


def discard(loaded: Loaded) -> bool:
    """Remove an entry if it is still the one that was read, unused since; return whether it is gone."""
    try:
        if identity_of(loaded.path) == loaded.identity:
            loaded.path.unlink()
            loaded.path.parent.rmdir()  # fails where the key has other entries
    except OSError:
        pass
    return not os.path.lexists(loaded.path)


def identity_of(path: Path) -> Identity | None:
    """Return what tells a file from others of its name; None if there is none."""
    try:
        stat = path.lstat()
    except OSError:
        return None
    return Identity(stat.st_ino, stat.st_ctime_ns)


def wrong_blob(path: Path, sha256: str, size: int, found: str) -> StoreError:
    """Return the fault of a content that is not what an entry needs."""
    return StoreError(
        f"{path}: expected {size} bytes with the sha256 {sha256}",
        found=found,
        do=AGAIN.format(folder=path.parents[2]),
    )


def _sealed(body: bytes) -> bytes:
    return HEAD + hashlib.sha256(body).hexdigest().encode() + MIDDLE + body + END


def _is_name(part: str) -> bool:
    return not part.startswith(".") and part != "" and "\0" not in part


def _entries_in(folder: Path) -> list[Path]:
    return [Path(found.path) for found in files.scan(folder) if found.name.endswith(".json")]


def _folders(folder: Path) -> Iterator[Path]:
    return (Path(entry.path) for entry in files.scan(folder) if entry.is_dir(follow_symlinks=False))


def _damaged(path: Path, found: str) -> StoreError:
    do = AGAIN.format(folder=path.parents[3])
    return StoreError(f"{path}: expected a store's entry as it was written", found=found, do=do)
