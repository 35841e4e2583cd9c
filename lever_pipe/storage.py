"""Files that appear whole or not at all, and strict decoding at their boundary."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ValidationError

from lever_pipe.errors import RecordError

if TYPE_CHECKING:
    import numpy as np

M = TypeVar("M", bound=BaseModel)


def write_atomically(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Call `write` on a sibling temporary file, flush it to disk and rename it to `path`.

    A killed process or a power failure leaves the former file, or none, but never half of one. When this returns the
    name is on disk too, so what is written last says that all is there.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as handle:
            write(handle)
            handle.flush()
            os.fsync(handle.fileno())
        temporary.replace(path)
        sync_folder(path.parent)
    finally:
        with suppress(FileNotFoundError):
            temporary.unlink()


def sync_folder(path: Path) -> None:
    """Flush the names in a folder to disk, where the file system can."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with suppress(OSError):  # not every network file system can
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text atomically."""
    write_atomically(path, lambda handle: handle.write(text.encode()))


def write_json(path: Path, value: Any) -> None:
    """Write sorted, indented JSON atomically; NaN is refused because JSON has none."""
    write_text(path, json.dumps(value, indent=2, sort_keys=True, allow_nan=False, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Any:
    """Return the JSON value of a file.

    Raises:
        RecordError: the file is missing or not JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise _missing(path) from None
    except (json.JSONDecodeError, UnicodeDecodeError) as fault:
        raise RecordError(f"{path}: expected JSON", found=str(fault), do="Restore or rebuild the file.") from None


def write_rows(path: Path, rows: Iterable[BaseModel]) -> None:
    """Write one JSON object a line, atomically."""

    def write(handle: IO[bytes]) -> None:
        for row in rows:
            handle.write(row.model_dump_json().encode() + b"\n")

    write_atomically(path, write)


def read_rows(path: Path, model: type[M]) -> list[M]:
    """Return all rows of a JSON-lines file as `model`.

    Raises:
        RecordError: missing file, or a line that breaks the contract (file:line: key).
    """
    rows: list[M] = []
    try:
        with path.open(encoding="utf-8") as handle:
            for number, line in enumerate(handle, start=1):
                rows.append(_parse(model, line, f"{path}:{number}"))
    except FileNotFoundError:
        raise _missing(path) from None
    except UnicodeDecodeError as fault:
        raise _not_text(f"{path}:{len(rows) + 1}", fault) from None
    return rows


def write_row(path: Path, row: BaseModel) -> None:
    """Write one model as an indented JSON file, atomically."""
    write_json(path, row.model_dump(mode="json"))


def read_row(path: Path, model: type[M]) -> M:
    """Return the single model of a JSON file.

    Raises:
        RecordError: missing file, or a key that breaks the contract.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise _missing(path) from None
    except UnicodeDecodeError as fault:
        raise _not_text(str(path), fault) from None
    return _parse(model, text, str(path))


def write_arrays(path: Path, arrays: dict[str, np.ndarray[Any, Any]]) -> None:
    """Write named numpy arrays as safetensors, atomically."""
    import numpy as np
    from safetensors.numpy import save

    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    write_atomically(path, lambda handle: handle.write(save(contiguous)))


def read_arrays(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    """Return the named numpy arrays of a safetensors file.

    Raises:
        RecordError: missing or damaged file.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        return dict(load_file(path))
    except FileNotFoundError:
        raise _missing(path) from None
    except SafetensorError as fault:
        raise RecordError(f"{path}: expected safetensors", found=str(fault), do="Rebuild the file.") from None


def digest(path: Path) -> str:
    """Return the sha256 of a file, or of the sorted names and digests below a folder."""
    if path.is_dir():
        listing = (f"{p.relative_to(path)}\0{digest(p)}" for p in sorted(path.rglob("*")) if p.is_file())
        return hashlib.sha256("\n".join(listing).encode()).hexdigest()
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def _parse(model: type[M], text: str, where: str) -> M:
    try:
        return model.model_validate_json(text, strict=True)
    except ValidationError as fault:
        raise RecordError(
            f"{where}: expected a {model.__name__} row", found=_describe(fault), do="Mend or rebuild the file."
        ) from None


def _describe(fault: ValidationError) -> str:
    parts = []
    for error in fault.errors(include_url=False, include_context=False)[:5]:
        key = ".".join(str(part) for part in error["loc"]) or "row"
        kind = {"missing": "missing", "extra_forbidden": "unknown key"}.get(error["type"], error["msg"])
        parts.append(f"'{key}': {kind}")
    return "; ".join(parts)


def _not_text(where: str, fault: UnicodeDecodeError) -> RecordError:
    return RecordError(f"{where}: expected UTF-8 text", found=str(fault), do="Mend or rebuild the file.")


def _missing(path: Path) -> RecordError:
    return RecordError(f"{path}: expected a file", found="none", do="Run the rule that makes it.")
