"""Rows, arrays and texts in files: written whole or not at all, read strictly."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import stat
from collections import Counter
from collections.abc import Iterable
from io import BufferedReader
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeVar

from pydantic import BaseModel, ValidationError

from lever_pipe.base.atomic import write_file
from lever_pipe.base.errors import RecordError

if TYPE_CHECKING:
    import numpy as np

    from lever_pipe.base.records import Example, ExampleId

M = TypeVar("M", bound=BaseModel)

LARGE_HEADER = 100_000_000  # bytes of a safetensors file; the format allows no more
SHOWN = 200  # characters of a foreign text in a message
UNIT_TOLERANCE = 1e-3  # of a vector's length; float32 rounds it by 1e-6
HALVES = ("\\ud", "\\uD")  # how JSON spells a half of a character that needs two


def open_regular(path: Path) -> BufferedReader:
    """Open a user's file to read its bytes.

    Raises:
        OSError: as `regular`.
    """
    return open(path, "rb", opener=regular)


def regular(name: str, flags: int) -> int:
    """Open a regular file, as `opener` of `open`: a pipe or device may have no end, and is not waited for.

    Raises:
        OSError: no regular file, or none that can be opened.
    """
    descriptor = os.open(name, flags | os.O_NONBLOCK, 0o666)  # else a pipe without a writer is waited for
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):  # `open` refuses a folder itself
        return descriptor
    os.close(descriptor)
    raise no_regular_file(name)


def no_regular_file(path: str | Path) -> OSError:
    """Return the refusal of a pipe, a device or a socket."""
    return OSError(errno.ENODEV, "no regular file", str(path))


def read_bytes(path: Path) -> bytes:
    """Return what a regular file holds.

    Raises:
        OSError: as `open_regular`.
    """
    with open_regular(path) as handle:
        return handle.read()


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text atomically."""
    write_file(path, lambda handle: handle.write(text.encode()))


def write_json(path: Path, value: Any) -> None:
    """Write sorted, indented JSON atomically; NaN is refused because JSON has none."""
    write_text(path, json.dumps(value, indent=2, sort_keys=True, allow_nan=False, ensure_ascii=False) + "\n")


def strict_json(content: bytes) -> Any:
    """Return the value of a JSON text that has one reading only.

    Python's own reader takes the last of several equal keys, numbers that are none or beyond a float, and halves of
    characters, which no file can hold again.

    Raises:
        ValueError: any of these, another encoding, no JSON, or nesting beyond what Python bears.
    """
    text = content.decode()
    try:
        value = json.loads(text, object_pairs_hook=distinct_keys, parse_float=_finite, parse_constant=_no_number)
    except RecursionError:
        raise ValueError("values nested too deeply") from None
    if any(half in text for half in HALVES):
        json.dumps(value, ensure_ascii=False).encode()  # refuses what has no other half
    return value


def distinct_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the object of a JSON text; a hook of the library's reader.

    Raises:
        ValueError: a key stands in it twice.
    """
    found = dict(pairs)
    if len(found) != len(pairs):
        counts = Counter(key for key, _ in pairs)
        raise ValueError(f"the key {shortened(repr(counts.most_common(1)[0][0]))} twice in one object")
    return found


def _finite(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _no_number(text)


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{float(text)} is no finite number")


def is_unicode(text: str) -> bool:
    """Return whether a file or a message can hold a text: JSON and YAML can spell halves of a character."""
    return text.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in text)


def shortened(text: str) -> str:
    """Return a text as a message shows it, cut where it is long."""
    return text if len(text) <= SHOWN else f"{text[:SHOWN]} ... ({len(text)} characters)"


def read_json(path: Path) -> Any:
    """Return the JSON value of a file.

    Raises:
        RecordError: the file cannot be read or is not JSON that has one reading (see `strict_json`).
    """
    try:
        return strict_json(read_bytes(path))
    except OSError as fault:
        raise _unreadable(path, fault) from None
    except ValueError as fault:
        found = shortened(str(fault))
        raise RecordError(f"{path}: expected JSON", found=found, do="Restore or rebuild the file.") from None


def read_yaml(path: Path, expected: str) -> Any:
    """Return the value of a file, which holds what is `expected`; the compiled reader is seven times as fast.

    Raises:
        RecordError: there is none, or it is not YAML of plain values in UTF-8.
    """
    import yaml

    try:
        text = read_bytes(path).decode()
        return yaml.load(text, Loader=yaml.CSafeLoader) if yaml.__with_libyaml__ else yaml.safe_load(text)
    except FileNotFoundError:
        raise RecordError(f"{path}: expected {expected}", found="none", do="Restore it.") from None
    except (yaml.YAMLError, UnicodeDecodeError) as fault:
        raise RecordError(f"{path}: expected YAML", found=" ".join(str(fault).split()), do="Restore it.") from None


def write_rows(path: Path, rows: Iterable[BaseModel]) -> None:
    """Write one JSON object a line, atomically."""

    def write(handle: IO[bytes]) -> None:
        for row in rows:
            handle.write(row.model_dump_json().encode() + b"\n")

    write_file(path, write)


def read_rows(path: Path, model: type[M]) -> list[M]:
    """Return all rows of a JSON-lines file as `model`.

    Raises:
        RecordError: a file that cannot be read, or a line that breaks the contract (file:line: key).
    """
    try:
        with open_regular(path) as handle:
            return [_parse(model, line, f"{path}:{number}") for number, line in enumerate(handle, start=1)]
    except OSError as fault:
        raise _unreadable(path, fault) from None


def read_examples(path: Path) -> list[Example]:
    """Return a split's examples; the list index is the example id.

    Raises:
        RecordError: as `read_rows`; no example, or ids that are not the places of the examples by rising question id.
    """
    from lever_pipe.base.records import Example

    examples = read_rows(path, Example)
    earlier = -1
    for place, example in enumerate(examples):
        if example.example_id != place or example.question_id <= earlier:
            raise RecordError(
                f"{path}:{place + 1}: expected example_id {place} and a question_id above {earlier}",
                found=f"{example.example_id} and {example.question_id}",
                do="Rerun prepare_examples, which sorts them.",
            )
        earlier = example.question_id
    if not examples:
        raise RecordError(f"{path}: expected examples", found="none", do="Rerun prepare_examples.")
    return examples


def read_selections(path: Path) -> dict[ExampleId, tuple[ExampleId, ...]]:
    """Return the ordered demonstrations that one policy gives each query.

    Raises:
        RecordError: as `read_rows`.
    """
    from lever_pipe.base.records import Selection

    return {row.query_id: row.demonstrations for row in read_rows(path, Selection)}


def write_row(path: Path, row: BaseModel) -> None:
    """Write one model as an indented JSON file, atomically."""
    write_json(path, row.model_dump(mode="json"))


def read_row(path: Path, model: type[M]) -> M:
    """Return the single model of a JSON file.

    Raises:
        RecordError: a file that cannot be read, or a key that breaks the contract.
    """
    try:
        content = read_bytes(path)
    except OSError as fault:
        raise _unreadable(path, fault) from None
    return _parse(model, content, str(path))


def write_arrays(path: Path, arrays: dict[str, np.ndarray[Any, Any]]) -> None:
    """Write named numpy arrays as safetensors, atomically."""
    import numpy as np
    from safetensors.numpy import save

    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    write_file(path, lambda handle: handle.write(save(contiguous)))


def read_arrays(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    """Return the named numpy arrays of a safetensors file.

    Raises:
        RecordError: missing or damaged file, or numbers that are not finite.
    """
    import numpy as np
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        header_of(path)  # the library takes the last of several equal names
        arrays = dict(load_file(path))
        endless = [name for name, array in sorted(arrays.items()) if not np.isfinite(array).all()]
    except OSError as fault:
        raise _unreadable(path, fault) from None
    except (SafetensorError, AttributeError, LookupError, TypeError, ValueError) as fault:  # numpy knows fewer types
        found = shortened(f"{type(fault).__name__}: {fault}")
        raise RecordError(f"{path}: expected safetensors", found=found, do="Rebuild the file.") from None
    if endless:
        raise RecordError(f"{path}: expected finite numbers", found=f"others in {', '.join(endless)}", do="Rebuild it.")
    return arrays


def read_embeddings(path: Path, n_examples: int | None = None) -> dict[str, np.ndarray[Any, Any]]:
    """Return `image` and `question` of a split, float32 [N, D], each row of length 1.

    Args:
        path: the file.
        n_examples: N, where it is known.

    Raises:
        RecordError: other arrays, or another number of rows.
    """
    import numpy as np

    arrays = read_arrays(path)
    names = {"image", "question"}
    faults = [f"the arrays {sorted(arrays)}"] if arrays.keys() != names else []
    widths = {array.shape[1:] for array in arrays.values()}
    for name, array in sorted(arrays.items()):
        n = n_examples if n_examples is not None else len(arrays.get("image", array)) if array.ndim else 0
        if array.dtype != np.float32 or array.ndim != 2 or len(array) != n or len(widths) > 1:
            faults.append(f"{name} {array.dtype} {list(array.shape)} for {n} examples")
        elif array.size and not np.allclose(np.linalg.norm(array, axis=1), 1, rtol=0, atol=UNIT_TOLERANCE):
            faults.append(f"{name} with rows of another length than 1")
    if faults:
        raise RecordError(
            f"{path}: expected {', '.join(sorted(names))}: float32, one unit row an example, one width",
            found="; ".join(faults),
            do="Rerun embed_examples, or make them so.",
        )
    return arrays


class StoredTensor(NamedTuple):
    """Where a tensor lies in a safetensors file: bytes after the header, from `begin` to before `end`."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


def header_of(path: Path) -> tuple[int, list[StoredTensor]]:
    """Return where the tensors begin in a safetensors file, and which there are, in the order of their bytes.

    Raises:
        OSError: no such file.
        ValueError: no header, one that states no tensors one behind another, or a file of another size than it states.
    """
    with open_regular(path) as handle:
        length, size = int.from_bytes(handle.read(8), "little"), path.stat().st_size
        if not 2 <= length <= min(LARGE_HEADER, size - 8):
            raise ValueError(f"a header of {length} bytes")
        header: Any = strict_json(handle.read(length))
    entries = header.items() if isinstance(header, dict) else [("header", header)]
    tensors = [_stored(name, entry) for name, entry in entries if name != "__metadata__"]
    tensors.sort(key=lambda tensor: (tensor.begin, tensor.end))
    ends = [0, *(tensor.end for tensor in tensors)]
    if any(tensor.begin != end for tensor, end in zip(tensors, ends[:-1], strict=True)):
        raise ValueError("tensors that overlap or leave a gap")
    if size != (whole := 8 + length + ends[-1]):
        raise ValueError(f"{size} of {whole} bytes")
    return 8 + length, tensors


def _stored(name: str, entry: Any) -> StoredTensor:
    try:
        dtype, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
        numbers = [*shape, begin, end]
    except (LookupError, TypeError, ValueError):
        raise ValueError("a tensor without type, shape and place") from None
    if not isinstance(shape, list) or not all(type(number) is int and number >= 0 for number in numbers) or begin > end:
        raise ValueError("a shape or place that holds no counts")
    return StoredTensor(name, str(dtype), tuple(shape), begin, end)


def digest(path: Path) -> str:
    """Return the sha256 of a file's bytes; of what a file holds, see `contents`."""
    with open_regular(path) as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def _parse(model: type[M], content: bytes, where: str) -> M:
    try:
        strict_json(content)  # pydantic takes the last of several equal keys
        return model.model_validate_json(content, strict=True)
    except ValidationError as fault:
        found = _describe(fault)
    except UnicodeDecodeError as fault:
        raise RecordError(f"{where}: expected UTF-8 text", found=str(fault), do="Mend or rebuild the file.") from None
    except ValueError as fault:
        found = f"'row': Invalid JSON: {shortened(str(fault))}"
    raise RecordError(f"{where}: expected a {model.__name__} row", found=found, do="Mend or rebuild the file.")


def _describe(fault: ValidationError) -> str:
    parts = []
    for error in fault.errors(include_url=False, include_context=False)[:5]:
        key = shortened(".".join(str(part) for part in error["loc"]) or "row")
        kind = {"missing": "missing", "extra_forbidden": "unknown key"}.get(error["type"], error["msg"])
        parts.append(f"'{key}': {kind}")
    return "; ".join(parts)


def _unreadable(path: Path, fault: OSError) -> RecordError:
    if isinstance(fault, FileNotFoundError):
        return RecordError(f"{path}: expected a file", found="none", do="Run the rule that makes it.")
    found = fault.strerror or str(fault)
    return RecordError(f"{path}: expected a file that can be read", found=found, do="Mend the path or its permissions.")
