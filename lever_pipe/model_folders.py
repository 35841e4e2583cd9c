"""Whether a model folder is whole: from names, sizes and headers before a weight is read, then from what was loaded."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lever_pipe.errors import CheckpointError, LeverPipeError
from lever_pipe.storage import header_of, shortened, strict_json

INDEX = "model.safetensors.index.json"
LARGE_JSON = 1_000_000  # bytes beyond which only the first and last are looked at
POINTER = b"version https://git-lfs"
FLOATS = ("F64", "F32", "F16", "BF16")
"""What weights are stored in; readers would take the integers and bytes of a quantised model for numbers."""
DEPTHS = ("num_hidden_layers", "depth")
MAKE = "Download the folder whole, or make it again with save_pretrained (safetensors)."
SHOWN = 5


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
    broken += _weight_faults(folder)
    return [*missing, *(broken or _size_faults(folder))]


def require_whole(folder: Path, kind: str, *, files: Iterable[str], any_of: Iterable[str] = ()) -> None:
    """Refuse a folder that lacks something; see `faults_of`.

    Raises:
        CheckpointError: `kind` says what was expected.
    """
    if faults := faults_of(folder, files=files, any_of=any_of):
        raise CheckpointError(f"{folder}: expected {kind}", found="; ".join(faults), do=MAKE)


@contextmanager
def readable(folder: Path, part: str) -> Iterator[None]:
    """Turn what the libraries say of a broken file, or of settings that do not fit, into one line.

    Raises:
        CheckpointError: they said something.
    """
    try:
        yield
    except LeverPipeError:
        raise
    except Exception as fault:  # noqa: BLE001 - tokenizers and the checks of configurations raise classes of their own
        said = shortened(" ".join(str(fault).split())).rstrip(".")
        found = f"{type(fault).__name__}: {said}"
        raise CheckpointError(f"{folder}: expected a readable {part}", found=found, do=MAKE) from None


def require_loaded(folder: Path, model: Any, differing: Mapping[str, Iterable[Any]]) -> None:
    """Refuse a model that is not what its folder's configuration says, or that can compute nothing.

    Args:
        folder: where it was loaded from.
        model: a torch module.
        differing: what `from_pretrained` says of missing, unexpected and mismatched tensors.

    Raises:
        CheckpointError: other tensors; values that are not finite; matrices of a single value, weights of zeros only.
    """
    faults = {kind: sorted(map(str, names)) for kind, names in differing.items() if names}
    if not faults:
        for name, tensor in model.named_parameters():
            if fault := _fault_of_values(name, tensor):
                faults.setdefault(fault, []).append(name)
    if faults:
        listed = "; ".join(f"{kind}: {', '.join(names[:SHOWN])} ({len(names)})" for kind, names in faults.items())
        where = f"{folder}: expected exactly the tensors of its config.json, with trained values"
        raise CheckpointError(where, found=listed, do=MAKE)


def require_pixel_settings(folder: Path, processor: Any) -> None:
    """Refuse an image processor that would not take pixels of 0 to 255 to around 0.

    Raises:
        CheckpointError: names `preprocessor_config.json` and the settings.
    """
    scale, mean, deviation = processor.rescale_factor, processor.image_mean, processor.image_std
    try:
        plausible = {
            "rescale_factor": abs(255 * scale - 1) < 1e-3,
            "image_mean": len(mean) == 3 and all(0 <= value <= 1 for value in mean),
            "image_std": len(deviation) == 3 and all(0 < value <= 1 for value in deviation),
        }
    except TypeError:
        plausible = {"rescale_factor, image_mean, image_std": False}
    if wrong := [name for name, fits in plausible.items() if not fits]:
        raise CheckpointError(
            f"{folder}/preprocessor_config.json: expected three means and deviations of pixels that are scaled to 0..1",
            found=f"rescale_factor {scale}, image_mean {mean}, image_std {deviation} ({', '.join(wrong)})",
            do=MAKE,
        )


def _fault_of_values(name: str, tensor: Any) -> str:
    if not tensor.numel():
        return ""
    low, high = (float(value) for value in tensor.detach().aminmax())  # NaN is both if there is one
    if not (math.isfinite(low) and math.isfinite(high)):
        return "not finite"
    constant = low == high and tensor.numel() > 1 and (tensor.ndim > 1 or low == 0)
    return f"nothing but {low:g}" if constant and name.endswith("weight") else ""


def bytes_of(folder: Path) -> int:
    """Return the size of a folder's files; 0 without a folder."""
    return sum(path.stat().st_size for path in folder.glob("*") if path.is_file())


def _weight_faults(folder: Path) -> Iterator[str]:
    present = {path.name for path in folder.glob("*.safetensors")}
    wanted = _shards(folder) or {"model.safetensors"}
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
    integers = [t for t in tensors if t.name.endswith("weight") and t.dtype not in FLOATS]
    if integers:
        names = ", ".join(f"{tensor.name} {tensor.dtype}" for tensor in integers[:SHOWN])
        yield f"{path.name} holds {len(integers)} weights that are no floating-point numbers ({names})"
    size, whole = path.stat().st_size, begin + (tensors[-1].end if tensors else 0)
    if size != whole:
        yield f"{path.name} has {size} of {whole} bytes"


def _size_faults(folder: Path) -> Iterator[str]:
    """Compare what a configuration counts with all tensors there are, before a model of that size is built."""
    try:
        config = strict_json((folder / "config.json").read_bytes())
    except (OSError, ValueError):
        return
    tensors = [tensor for path in folder.glob("*.safetensors") for tensor in header_of(path)[1]]
    most = {True: len(tensors), False: sum(math.prod(tensor.shape) for tensor in tensors)}
    for key, value in _counts(config):
        if value > most[key in DEPTHS]:
            what = "tensors" if key in DEPTHS else "values"
            yield f"config.json: {key} {value}, and the weights hold {most[key in DEPTHS]} {what}"


def _counts(config: Any) -> Iterator[tuple[str, int]]:
    for key, value in config.items() if isinstance(config, dict) else ():
        if isinstance(value, dict):
            yield from _counts(value)
        elif type(value) is int and (key in DEPTHS or key.endswith("_size")):
            yield key, value


def _json(content: bytes) -> Any:
    try:
        return strict_json(content)
    except ValueError:
        return None
