"""From what a job has made to copies in the store's own folder that are known to be what the run card says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from lever_pipe.base import contents
from lever_pipe.base.errors import StoreError
from lever_pipe.runtime.storing import files
from lever_pipe.runtime.storing.entries import StoredFile, StoredOutput


def stage(name: str, path: Path, folder: Path, expected: str | None, staged: dict[str, Path]) -> StoredOutput:
    """Copy an output into the store's own folder and return what it holds; `staged` gets each content once.

    The digest is of the copy, so what the store holds is what the run card says, whatever happens to the output.

    Raises:
        StoreError: it has not the content that the run card says, or is no file or folder.
    """
    copy = folder / path.name
    is_folder = path.is_dir()
    (copy if is_folder else folder).mkdir(parents=True)
    listed = []
    for relative, source in files_of(path):
        target = copy / relative
        target.parent.mkdir(parents=True, exist_ok=True)
        sha256, size = files.copy_file(source, target)
        listed.append(StoredFile(path=relative, sha256=sha256, size=size))
        staged[sha256] = target
    found = contents.digest(copy)
    if found != expected:
        raise StoreError(
            f"{path}: expected the content that the run card states for '{name}': {expected or 'it names none'}",
            found=found,
            do="Leave outputs alone until their job has ended; the next run makes it again.",
        )
    return StoredOutput(kind="folder" if is_folder else "file", files=tuple(listed))


def files_of(path: Path) -> Iterator[tuple[str, Path]]:
    """Yield the files of an output with their paths below it.

    Raises:
        StoreError: a symbolic link: what it names is not the output's own.
    """
    if path.is_symlink() or not path.is_dir():
        yield "", path
        return
    for found in sorted(path.rglob("*")):
        relative = found.relative_to(path)
        if found.is_symlink() and not any(part.startswith(".") for part in relative.parts):
            files.open_file(found).close()
    for file in contents.files_below(path):
        yield file.relative_to(path).as_posix(), file


def place_entry(temporary: Path, place: Path) -> None:
    """Give an entry its name, though a collector may remove the empty folder of its key meanwhile."""
    for attempt in range(files.ATTEMPTS):
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            files.place(temporary, place)
        except FileNotFoundError:
            if attempt + 1 == files.ATTEMPTS or not temporary.exists():
                raise
        else:
            return
