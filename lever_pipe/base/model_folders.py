"""Whether a model folder is whole: from names, sizes and headers before a weight is read, then from what was loaded."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from lever_pipe.base import os_faults
from lever_pipe.base.errors import CheckpointError, LeverPipeError
from lever_pipe.base.storage import header_of, open_regular, read_bytes, shortened, strict_json

INDEX = "model.safetensors.index.json"
LARGE_JSON = 1_000_000  # bytes beyond which only the first and last are looked at
POINTER = b"version https://git-lfs"
FLOATS = ("F64", "F32", "F16", "BF16")
"""What weights are stored in; readers would take the integers and bytes of a quantised model for numbers."""
DEPTHS = ("num_hidden_layers", "depth")
MAKE = "Download the folder whole, or make it again with save_pretrained (safetensors)."
CONVERT = "python -m lever_pipe convert"
"""The command that makes safetensors of `.bin` weights."""
VOCABULARY = ("tokenizer.json", ("vocab.json", "merges.txt"))
"""Of a byte-pair tokenizer: its whole, or its two parts. Without either a library makes one of a few special tokens."""
LEAST_SHARE = 4
"""A layer of width H has at least H * H / 4 values: attention alone has about 4 H * H."""
SHOWN = 5
TODAY = datetime(2024, 7, 26)
"""The day that every chat template is told, so that a prompt is the same tomorrow; Llama 3's takes it if told none."""
CODES = ("a", "A", "b", "B", "d", "-d", "f", "H", "I", "j", "m", "-m", "M", "p", "S", "w", "x", "X", "y", "Y")
NOW = "".join(f"|replace('%{code}', '{TODAY.strftime(f'%{code}')}')" for code in CODES)
NOW = f"{{% macro strftime_now(format) %}}{{{{ format{NOW} }}}}{{% endmacro %}}\n"
"""What stands in a template for the function that asks the clock; the library lets no caller pass a function."""
AnyOf = str | tuple[str, ...]


def faults_of(folder: Path, *, files: Iterable[str], any_of: Iterable[AnyOf] = ()) -> list[str]:
    """Return what a model folder lacks, one text a fault; none for a whole one.

    Args:
        folder: holds safetensors, as one file or as shards with an index.
        files: JSON files that must be there.
        any_of: files of which one must be there, or the files of one group together.
    """
    if not folder.is_dir():
        return ["no such folder"]
    others = [(each,) if isinstance(each, str) else each for each in any_of]
    missing = [f"no {name}" for name in files if not (folder / name).is_file()]
    if others and not any(all((folder / name).is_file() for name in names) for names in others):
        missing.append(f"none of {', '.join(' with '.join(names) for names in others)}")
    broken = [text for path in sorted(folder.glob("*.json")) for text in _faults_read(path, _json_faults)]
    broken += _weight_faults(folder)
    return [*missing, *(broken or _size_faults(folder, _settings(folder)))]


def model_type(folder: Path) -> str:
    """Return the family that a model folder's `config.json` names; empty where it names none or is not there."""
    try:
        kind = strict_json(read_bytes(folder / "config.json")).get("model_type")
    except (OSError, ValueError, AttributeError):
        return ""
    return kind if isinstance(kind, str) else ""


def has_bin_only(folder: Path) -> bool:
    """Return whether a folder's weights are `.bin` files, which nothing but `convert` reads."""
    return any(folder.glob("pytorch_model*.bin")) and not any(folder.glob("*.safetensors"))


def require_whole(folder: Path, kind: str, *, files: Iterable[str], any_of: Iterable[AnyOf] = ()) -> None:
    """Refuse a folder that lacks something; see `faults_of`.

    Raises:
        CheckpointError: `kind` says what was expected.
    """
    if faults := faults_of(folder, files=files, any_of=any_of):
        remedy = f"Its weights are .bin files: {CONVERT} {folder}" if has_bin_only(folder) else MAKE
        raise CheckpointError(f"{folder}: expected {kind}", found="; ".join(faults), do=remedy)


def require_keys(path: Path, *keys: str) -> None:
    """Refuse a file that leaves settings to a library's defaults, as another file under its name does.

    Raises:
        CheckpointError: names the file and what it lacks.
    """
    settings = _json(read_bytes(path))
    if missing := [key for key in keys if not isinstance(settings, dict) or key not in settings]:
        raise CheckpointError(f"{path}: expected {', '.join(keys)}", found=f"no {', '.join(missing)}", do=MAKE)


def require_size(folder: Path, config: Any) -> None:
    """Refuse settings of a larger model than the weights, defaults of what `config.json` leaves out included.

    Raises:
        CheckpointError: before memory for that model is taken.
    """
    if faults := list(_size_faults(folder, config.to_dict())):
        raise CheckpointError(f"{folder}: expected settings for these weights", found="; ".join(faults), do=MAKE)


@contextmanager
def readable(folder: Path, part: str) -> Iterator[None]:
    """Turn what the libraries say of a broken file, or of settings that do not fit, into one line.

    Raises:
        CheckpointError: they said something.
        OSError: the machine refuses, as a full disk does.
    """
    try:
        yield
    except LeverPipeError:
        raise
    except Exception as fault:  # tokenizers and the checks of configurations raise classes of their own
        if isinstance(fault, OSError) and os_faults.named(fault):  # of the machine: a full disk breaks no model
            raise
        said = shortened(" ".join(str(fault).split())).rstrip(".")
        found = f"{type(fault).__name__}: {said}"
        raise CheckpointError(f"{folder}: expected a readable {part}", found=found, do=MAKE) from None


def written(tokenizer: Any, messages: Sequence[Mapping[str, Any]], **options: Any) -> str:
    """Return messages as a tokenizer's chat template writes them on `TODAY`."""
    template = tokenizer.get_chat_template(tools=options.get("tools"))
    options["chat_template"] = NOW + template if "strftime_now" in template else template
    return str(tokenizer.apply_chat_template(list(messages), tokenize=False, **options))


def load_strictly(kind: Any, folder: Path, part: str, **options: Any) -> Any:
    """Return the model of a folder, whose tensors are exactly those of its configuration.

    Args:
        kind: a class of transformers with `from_pretrained`.
        folder: a whole one (`require_whole`).
        part: what errors call what cannot be read.
        options: of the class, as `dtype`.

    Raises:
        CheckpointError: unreadable files, or what `require_loaded` refuses.
    """
    with readable(folder, part):
        model, info = kind.from_pretrained(
            folder,
            local_files_only=True,
            use_safetensors=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # refused by name, as every other difference
            **options,
        )
    require_loaded(folder, model, info)
    return model


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
    plausible |= {name: bool(getattr(processor, name)) for name in ("do_resize", "do_rescale", "do_normalize")}
    plausible["resample"] = processor.resample in range(6)  # as Pillow numbers its filters
    if wrong := [name for name, fits in plausible.items() if not fits]:
        raise CheckpointError(
            f"{folder}/preprocessor_config.json: expected three means and deviations of pixels that are scaled to 0..1",
            found=", ".join(f"{name} {getattr(processor, name, '')}" for name in wrong),
            do=MAKE,
        )


def faults_of_vocabulary(ids: Mapping[str, int], size: int) -> list[str]:
    """Return what of a tokenizer's ids does not fit a model's embeddings of `size` tokens, which may be padded."""
    largest = max(ids.values(), default=-1)
    faults = []
    if not size // 2 < largest + 1 <= size:
        faults.append(f"{largest + 1} tokens for a vocabulary of {size}")
    if n_holes := largest + 1 - len(set(ids.values())):
        faults.append(f"{n_holes} ids without a token")
    return faults


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
        yield from _faults_read(folder / name, _safetensors_faults)


def _shards(folder: Path) -> set[str]:
    """Return the files that the index names; none without a readable index."""
    try:
        return set(map(str, strict_json(read_bytes(folder / INDEX))["weight_map"].values()))
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return set()


def _faults_read(path: Path, look: Callable[[Path], Iterator[str]]) -> Iterator[str]:
    try:
        yield from look(path)
    except OSError as fault:
        yield f"{path.name}: {(fault.strerror or str(fault)).lower()}"


def _json_faults(path: Path) -> Iterator[str]:
    content = read_bytes(path)
    if content.startswith(POINTER):
        yield f"{path.name} is a git-lfs pointer"
    elif len(content) > LARGE_JSON:
        if content.rstrip()[-1:] not in (b"}", b"]"):
            yield f"{path.name} ends early"
    elif not isinstance(_json(content), dict | list):
        yield f"{path.name} is no JSON"


def _safetensors_faults(path: Path) -> Iterator[str]:
    """Look for weights that are stored as floating-point numbers, in a file of the size that its header states."""
    with open_regular(path) as handle:
        if handle.read(len(POINTER)) == POINTER:
            yield f"{path.name} is a git-lfs pointer"
            return
    try:
        tensors = header_of(path)[1]
    except ValueError as fault:
        yield f"{path.name} is not whole ({shortened(str(fault))})"
        return
    integers = [t for t in tensors if t.name.endswith("weight") and t.dtype not in FLOATS]
    if integers:
        names = ", ".join(f"{tensor.name} {tensor.dtype}" for tensor in integers[:SHOWN])
        yield f"{path.name} holds {len(integers)} weights that are no floating-point numbers ({names})"


def _settings(folder: Path) -> Any:
    path = folder / "config.json"
    return _json(read_bytes(path)) if path.is_file() else None


def _size_faults(folder: Path, config: Any) -> Iterator[str]:
    """Compare what a configuration counts with all tensors there are, before a model of that size is built."""
    tensors = [tensor for path in folder.glob("*.safetensors") for tensor in header_of(path)[1]]
    n_values = sum(math.prod(tensor.shape) for tensor in tensors)
    for settings in _sections(config):
        sizes = {key: value for key, value in settings.items() if type(value) is int}
        depth, width = max(sizes.get(key, 0) for key in DEPTHS), sizes.get("hidden_size", 0)
        too_large = [key for key, value in sizes.items() if key.endswith("_size") and value > n_values]
        if too_large or depth > len(tensors) or depth * width**2 > LEAST_SHARE * n_values:
            told = ", ".join(f"{key} {sizes[key]}" for key in (*too_large, *DEPTHS, "hidden_size") if key in sizes)
            yield f"config.json: {told}, and weights of {len(tensors)} tensors with {n_values} values"


def _sections(config: Any) -> Iterator[dict[str, Any]]:
    if isinstance(config, dict):
        yield config
        for value in config.values():
            yield from _sections(value)


def _json(content: bytes) -> Any:
    try:
        return strict_json(content)
    except ValueError:
        return None
