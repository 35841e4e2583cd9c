"""Whether a model folder is whole, told from names, sizes and headers; no weight is read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from lever_pipe.storage import header_of, strict_json

INDEX = "model.safetensors.index.json"
LARGE_JSON = 1_000_000  # bytes beyond which only the first and last are looked at
POINTER = b"version https://git-lfs"


def faults_of(folder: Path, *, files: Iterable[str], any_of: Iterable[str] = ()) -> list[str]:
    """Return what a model folder lacks, one text a fault; none for a whole one.

    Args:
        folder: holds safetensors, as one file or as shards with an index.
        files: JSON files that must be there.
        any_of: files of which one must be there.
    """
    if not folder.is_dir():
        return ["no such folder"]
    others = list(any_of)
    missing = [f"no {name}" for name in files if not (folder / name).is_file()]
    if others and not any((folder / name).is_file() for name in others):
        missing.append(f"none of {', '.join(others)}")
    broken = [text for path in sorted(folder.glob("*.json")) for text in _json_faults(path)]
    return [*missing, *broken, *_weight_faults(folder)]


def bytes_of(folder: Path) -> int:
    """Return the size of a folder's files; 0 without a folder."""
    return sum(path.stat().st_size for path in folder.glob("*") if path.is_file())


def _weight_faults(folder: Path) -> Iterator[str]:
    present = {path.name for path in folder.glob("*.safetensors")}
    wanted = _shards(folder) or {"model.safetensors"}
    if not present:
        yield "no *.safetensors"
        return
    yield from (f"no {name}" for name in sorted(wanted - present))
    for name in sorted(present):
        yield from _safetensors_faults(folder / name)


def _shards(folder: Path) -> set[str]:
    """Return the files that the index names; none without a readable index."""
    try:
        return set(map(str, strict_json((folder / INDEX).read_bytes())["weight_map"].values()))
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return set()


def _json_faults(path: Path) -> Iterator[str]:
    content = path.read_bytes()
    if content.startswith(POINTER):
        yield f"{path.name} is a git-lfs pointer"
    elif len(content) > LARGE_JSON:
        if content.rstrip()[-1:] not in (b"}", b"]"):
            yield f"{path.name} ends early"
    elif not isinstance(_json(content), dict | list):
        yield f"{path.name} is no JSON"


def _safetensors_faults(path: Path) -> Iterator[str]:
    """Compare a file's length with the one that its header states: 8 bytes, the header, the last tensor's end."""
    with path.open("rb") as handle:
        if handle.read(len(POINTER)) == POINTER:
            yield f"{path.name} is a git-lfs pointer"
            return
    try:
        begin, tensors = header_of(path)
    except ValueError:
        yield f"{path.name} has no readable header"
        return
    size, whole = path.stat().st_size, begin + (tensors[-1].end if tensors else 0)
    if size != whole:
        yield f"{path.name} has {size} of {whole} bytes"


def _json(content: bytes) -> Any:
    try:
        return strict_json(content)
    except ValueError:
        return None
