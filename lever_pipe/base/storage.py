"""Rows, arrays and texts in files, written atomically and read strictly."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NoReturn, TypeVar

from pydantic import BaseModel, ValidationError

from lever_pipe.base.atomic import write_file
from lever_pipe.base.errors import RecordError, shortened
from lever_pipe.base.records import AnswerRow, Example, ExampleId, Selection

if TYPE_CHECKING:
    import numpy as np

M = TypeVar("M", bound=BaseModel)

UNIT_TOLERANCE = 1e-3  # of a vector's length; float32 rounds it by 1e-6
HALVES = ("\\ud", "\\uD")  # JSON's escapes of surrogates, the halves of a character


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text atomically."""
    write_file(path, lambda handle: handle.write(text.encode()))


def write_json(path: Path, value: Any) -> None:
    """Write sorted, indented JSON atomically; NaN is refused because JSON has none."""
    write_text(path, json.dumps(value, indent=2, sort_keys=True, allow_nan=False, ensure_ascii=False) + "\n")


def text_in(content: bytes) -> str:
    """Return UTF-8 text without the byte order mark that spreadsheets and some editors insert.

    Raises:
        UnicodeDecodeError: the text has another encoding.
    """
    return content.decode("utf-8-sig")


def strict_json(content: bytes) -> Any:
    """Return the value of a JSON text that has only one interpretation.

    Python's own reader accepts repeated keys (and uses the last one), non-finite numbers, numbers beyond a float's
    range, and unpaired surrogates, which cannot be written to a file again.

    Raises:
        ValueError: any of these, another encoding, text that is not JSON, or too deep nesting for Python.
    """
    text = text_in(content)
    try:
        value = json.loads(text, object_pairs_hook=distinct_keys, parse_float=_finite, parse_constant=_no_number)
    except RecursionError:
        raise ValueError("values nested too deeply") from None
    if any(half in text for half in HALVES):
        json.dumps(value, ensure_ascii=False).encode()  # fails for unpaired surrogates
    return value


def distinct_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the object for the key-value pairs of a JSON text; a hook of the library's reader.

    Raises:
        ValueError: a key occurs twice.
    """
    values = dict(pairs)
    if len(values) != len(pairs):
        counts = Counter(key for key, _ in pairs)
        raise ValueError(f"the key {shortened(repr(counts.most_common(1)[0][0]))} twice in one object")
    return values


def _finite(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _no_number(text)


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{float(text)} is no finite number")


def is_unicode(text: str) -> bool:
    """Return whether a text can be encoded: JSON and YAML can contain escapes of unpaired surrogates."""
    return text.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in text)


def read_json(path: Path) -> Any:
    """Return the JSON value of a file.

    Raises:
        RecordError: the file cannot be read, or is not JSON with one interpretation (see `strict_json`).
    """
    try:
        return strict_json(path.read_bytes())
    except OSError as error:
        raise _unreadable(path, error) from None
    except ValueError as error:
        found = shortened(str(error))
        raise RecordError(f"{path}: expected JSON", found=found, do="Restore or rebuild the file.") from None


def read_csv(path: Path) -> list[tuple[int, list[str]]]:
    """Return line number and cells of each line of a CSV file, without blank lines, which spreadsheets append.

    Raises:
        RecordError: the file cannot be read, or is not CSV in UTF-8.
    """
    try:
        # `newline=None` accepts the line ends of all systems.
        reader = csv.reader(io.StringIO(text_in(path.read_bytes()), newline=None), strict=True)
        return [(reader.line_num, cells) for cells in reader if any(cell.strip() for cell in cells)]
    except OSError as error:
        raise _unreadable(path, error) from None
    except (UnicodeDecodeError, csv.Error) as error:
        do = "Save it as CSV with commas, in UTF-8."
        raise RecordError(f"{path}: expected a CSV file in UTF-8", found=str(error), do=do) from None


def read_yaml(path: Path, expected: str) -> Any:
    """Return the value of a YAML file; `expected` describes it in errors.

    Raises:
        RecordError: the file is missing, or is not YAML of plain values in UTF-8.
    """
    from lever_pipe.base import plain_yaml

    try:
        return plain_yaml.read(text_in(path.read_bytes()))
    except FileNotFoundError:
        raise RecordError(f"{path}: expected {expected}", found="none", do="Restore it.") from None
    except plain_yaml.PlainYamlError as error:
        raise RecordError(f"{path}:{error.line}: expected {error.expected}", found=error.found, do=error.do) from None
    except UnicodeDecodeError as error:
        raise RecordError(f"{path}: expected YAML in UTF-8", found=str(error), do="Restore it.") from None


def write_rows(path: Path, rows: Iterable[BaseModel]) -> None:
    """Write one JSON object a line, atomically."""

    def write(handle: IO[bytes]) -> None:
        for row in rows:
            handle.write(row.model_dump_json().encode() + b"\n")

    write_file(path, write)


def read_rows(path: Path, model: type[M]) -> list[M]:
    """Return all rows of a JSON-lines file as `model`.

    Raises:
        RecordError: the file cannot be read, or a line breaks the contract (file:line: key).
    """
    try:
        with path.open("rb") as handle:
            return [_parse(model, line, f"{path}:{number}") for number, line in enumerate(handle, start=1)]
    except OSError as error:
        raise _unreadable(path, error) from None


def read_examples(path: Path) -> list[Example]:
    """Return a split's examples; the list index is the example id.

    Raises:
        RecordError: as `read_rows`; no examples, or ids that do not count the examples in the order of question ids.
    """
    examples = read_rows(path, Example)
    earlier = -1
    for index, example in enumerate(examples):
        if example.example_id != index or example.question_id <= earlier:
            raise RecordError(
                f"{path}:{index + 1}: expected example_id {index} and a question_id above {earlier}",
                found=f"{example.example_id} and {example.question_id}",
                do="Rerun prepare_examples, which sorts them.",
            )
        earlier = example.question_id
    if not examples:
        raise RecordError(f"{path}: expected examples", found="none", do="Rerun prepare_examples.")
    return examples


def read_selections(path: Path) -> dict[ExampleId, tuple[ExampleId, ...]]:
    """Return the ordered demonstrations of one policy for each query.

    Raises:
        RecordError: as `read_rows`.
    """
    return {row.query_id: row.demonstrations for row in read_rows(path, Selection)}


def read_answers(path: Path) -> dict[tuple[ExampleId, tuple[ExampleId, ...]], str]:
    """Return the LVLM's answer to each query with each ordered list of demonstrations.

    Raises:
        RecordError: as `read_rows`.
    """
    return {(row.query_id, row.demonstrations): row.answer for row in read_rows(path, AnswerRow)}


def write_row(path: Path, row: BaseModel) -> None:
    """Write one model as an indented JSON file, atomically."""
    write_json(path, row.model_dump(mode="json"))


def read_row(path: Path, model: type[M]) -> M:
    """Return the single model of a JSON file.

    Raises:
        RecordError: the file cannot be read, or a key breaks the contract.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise _unreadable(path, error) from None
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
        RecordError: the file is missing or damaged, or contains numbers that are not finite.
    """
    import numpy as np
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        arrays = dict(load_file(path))
        endless = [name for name, array in sorted(arrays.items()) if not np.isfinite(array).all()]
    except OSError as error:
        raise _unreadable(path, error) from None
    except (SafetensorError, AttributeError, LookupError, TypeError, ValueError) as error:  # numpy lacks some dtypes
        found = shortened(f"{type(error).__name__}: {error}")
        raise RecordError(f"{path}: expected safetensors", found=found, do="Rebuild the file.") from None
    if endless:
        raise RecordError(f"{path}: expected finite numbers", found=f"others in {', '.join(endless)}", do="Rebuild it.")
    return arrays


def read_embeddings(path: Path, n_examples: int | None = None) -> dict[str, np.ndarray[Any, Any]]:
    """Return `image` and `question` of a split, float32 [N, D], each row of length 1.

    Args:
        path: the file.
        n_examples: N, if known.

    Raises:
        RecordError: other arrays, another number of rows, or rows of another length than 1.
    """
    import numpy as np

    arrays = read_arrays(path)
    names = {"image", "question"}
    problems = [f"the arrays {sorted(arrays)}"] if arrays.keys() != names else []
    widths = {array.shape[1:] for array in arrays.values()}
    for name, array in sorted(arrays.items()):
        n = n_examples if n_examples is not None else len(arrays.get("image", array)) if array.ndim else 0
        if array.dtype != np.float32 or array.ndim != 2 or len(array) != n or len(widths) > 1:
            problems.append(f"{name} {array.dtype} {list(array.shape)} for {n} examples")
        elif array.size and not np.allclose(np.linalg.norm(array, axis=1), 1, rtol=0, atol=UNIT_TOLERANCE):
            problems.append(f"{name} with rows of another length than 1")
    if problems:
        raise RecordError(
            f"{path}: expected {', '.join(sorted(names))}: float32, one unit row an example, one width",
            found="; ".join(problems),
            do="Rerun embed_examples, or make them so.",
        )
    return arrays


def header_of(path: Path) -> tuple[int, dict[str, Any]]:
    """Return the offset of the tensors in a safetensors file, and each tensor's dtype, shape and data_offsets by name.

    Raises:
        OSError: the file is missing.
        ValueError: the file is incomplete.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy"):  # compares the header with the file's size
            pass
    except SafetensorError as error:
        raise ValueError(shortened(str(error))) from None
    with path.open("rb") as handle:
        # The format: the header's length in 8 bytes, the header, then the tensors.
        length = int.from_bytes(handle.read(8), "little")
        header: dict[str, Any] = json.loads(handle.read(length))
    header.pop("__metadata__", None)
    return 8 + length, header


def write_listing(path: Path, digests: Mapping[str, str]) -> None:
    """Write one line for each file in the format of `sha256sum`, atomically: digest, two blanks, name."""
    content = os.fsencode("".join(f"{digests[name]}  {name}\n" for name in sorted(digests)))
    write_file(path, lambda handle: handle.write(content))


def read_listing(path: Path) -> dict[str, str]:
    """Return name -> digest of a listing.

    Raises:
        RecordError: the file cannot be read.
    """
    try:
        # Not `splitlines`, because names may contain other line separators.
        lines = os.fsdecode(path.read_bytes()).split("\n")
    except OSError as error:
        raise _unreadable(path, error) from None
    return {name: digest for digest, _, name in (line.partition("  ") for line in lines if line)}


def digest(path: Path) -> str:
    """Return the sha256 of a file's bytes; for digests of contents, see `contents`."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def _parse(model: type[M], content: bytes, location: str) -> M:
    try:
        strict_json(content)  # pydantic accepts repeated keys
        # Strict: a file with "1" for 1 breaks the contract.
        return model.model_validate_json(text_in(content), strict=True)
    except ValidationError as error:
        found = _describe(error)
    except UnicodeDecodeError as error:
        raise RecordError(f"{location}: expected UTF-8 text", found=str(error), do="Fix or rebuild the file.") from None
    except ValueError as error:
        found = f"'row': Invalid JSON: {shortened(str(error))}"
    raise RecordError(f"{location}: expected a {model.__name__} row", found=found, do="Fix or rebuild the file.")


def _describe(problem: ValidationError) -> str:
    parts = []
    for error in problem.errors(include_url=False, include_context=False)[:5]:
        key = shortened(".".join(str(part) for part in error["loc"]) or "row")
        kind = {"missing": "missing", "extra_forbidden": "unknown key"}.get(error["type"], error["msg"])
        parts.append(f"'{key}': {kind}")
    return "; ".join(parts)


def _unreadable(path: Path, problem: OSError) -> RecordError:
    if isinstance(problem, FileNotFoundError):
        do = "Run the rule that makes it, or name its folder."
        return RecordError(f"{path}: expected a file", found="none", do=do)
    found = problem.strerror or str(problem)
    return RecordError(f"{path}: expected a file that can be read", found=found, do="Fix the path or its permissions.")
