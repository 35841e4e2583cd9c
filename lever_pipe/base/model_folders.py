"""Check that a model folder is complete: by names and headers before loading, then by the loaded tensors."""

from __future__ import annotations

import errno
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from lever_pipe.base.errors import CheckpointError, LeverPipeError, shortened
from lever_pipe.base.storage import header_of, strict_json

INDEX = "model.safetensors.index.json"
GENERATION = "generation_config.json"
POINTER = b"version https://git-lfs"
MAKE = "Download the folder whole, or make it again with save_pretrained (safetensors)."
CONVERT = "lever-pipe convert"
"""Command that converts `.bin` weights to safetensors."""
VOCABULARY = ("tokenizer.json", ("vocab.json", "merges.txt"))
"""Files of a byte-pair tokenizer: one, or two parts. Without them a library makes one of a few special tokens."""
IMAGES = ("preprocessor_config.json", "processor_config.json")
"""Files with the settings of image preparation: of an image processor, and of a whole processor in the new format."""
LEAST_SHARE = 4
"""A layer of width H has at least H * H / 4 values: attention alone has about 4 H * H."""
DISPLAY_LIMIT = 5
TODAY = datetime(2024, 7, 26)
"""Fixed date for chat templates, so that prompts never change; Llama 3's template has the same default."""
CODES = ("a", "A", "b", "B", "d", "-d", "f", "H", "I", "j", "m", "-m", "M", "p", "S", "w", "x", "X", "y", "Y")
NOW = "".join(f"|replace('%{code}', '{TODAY.strftime(f'%{code}')}')" for code in CODES)
NOW = f"{{% macro strftime_now(format) %}}{{{{ format{NOW} }}}}{{% endmacro %}}\n"
"""Macro that replaces the clock function of templates; the library accepts no functions from its callers."""
AnyOf = str | tuple[str, ...]


def problems_of(folder: Path, *, files: Iterable[str], any_of: Iterable[AnyOf] = ()) -> list[str]:
    """Return the problems of a model folder, one text each; none for a complete folder.

    Args:
        folder: contains safetensors, as one file or as shards with an index.
        files: required JSON files.
        any_of: alternatives, of which one must exist; a group counts if all of its files exist.
    """
    if not folder.is_dir():
        return ["no such folder"]
    others = [(group,) if isinstance(group, str) else group for group in any_of]
    problems = [f"no {name}" for name in files if not (folder / name).is_file()]
    if others and not any(all((folder / name).is_file() for name in names) for names in others):
        problems.append(f"none of {', '.join(' with '.join(names) for names in others)}")
    weights = sorted(folder.glob("*.safetensors"))
    shards = _shards(folder) or {"model.safetensors"}
    problems += [f"no {name}" for name in sorted(shards - {path.name for path in weights})]
    # A pointer has the name of the weights; its own message is clearer than that of broken safetensors.
    pointers = [path for path in (*sorted(folder.glob("*.json")), *weights) if _begins(path) == POINTER]
    problems += [f"{path.name} is a git-lfs pointer" for path in pointers]
    for path in (path for path in weights if path not in pointers):
        try:
            header_of(path)
        except (OSError, ValueError) as error:
            problems.append(f"{path.name} is not whole ({error})")
    return problems


def _shards(folder: Path) -> set[str]:
    """Return the files in the index; none without a readable index."""
    try:
        return set(map(str, strict_json((folder / INDEX).read_bytes())["weight_map"].values()))
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return set()


def _begins(path: Path) -> bytes:
    with path.open("rb") as handle:
        return handle.read(len(POINTER))


def model_type(folder: Path) -> str:
    """Return the family in a model folder's `config.json`, or an empty text if the file or the entry is missing."""
    try:
        kind = strict_json((folder / "config.json").read_bytes()).get("model_type")
    except (OSError, ValueError, AttributeError):
        return ""
    return kind if isinstance(kind, str) else ""


def has_bin_only(folder: Path) -> bool:
    """Return whether a folder's weights are `.bin` files, which only `convert` reads."""
    return any(folder.glob("pytorch_model*.bin")) and not any(folder.glob("*.safetensors"))


def require_whole(folder: Path, kind: str, *, files: Iterable[str], any_of: Iterable[AnyOf] = ()) -> None:
    """Refuse an incomplete folder; see `problems_of`.

    Raises:
        CheckpointError: the folder is incomplete; `kind` describes the expected model.
    """
    if problems := problems_of(folder, files=files, any_of=any_of):
        remedy = f"Its weights are .bin files: {CONVERT} {folder}" if has_bin_only(folder) else MAKE
        raise CheckpointError(f"{folder}: expected {kind}", found="; ".join(problems), do=remedy)


def image_settings(folder: Path) -> Path:
    """Return the file of `IMAGES` with the settings for images; if both have them, the library prefers the second."""
    single, whole = (folder / name for name in IMAGES)
    return whole if whole.is_file() and "image_processor" in strict_json(whole.read_bytes()) else single


def require_keys(path: Path, *keys: str) -> None:
    """Refuse a settings file without required keys, for which a library would use its defaults.

    Raises:
        CheckpointError: names the file and the missing keys.
    """
    with readable(path.parent, path.name):
        settings = strict_json(path.read_bytes())
        # A whole processor's file nests these settings, an image processor's file does not.
        settings = settings.get("image_processor", settings)
    if missing := [key for key in keys if not isinstance(settings, dict) or key not in settings]:
        raise CheckpointError(f"{path}: expected {', '.join(keys)}", found=f"no {', '.join(missing)}", do=MAKE)


def require_size(folder: Path, config: Any) -> None:
    """Refuse settings of a larger model than the weights: a short `config.json` falls back to a library's defaults.

    Raises:
        CheckpointError: the settings do not fit; it is raised before memory for that model is allocated.
    """
    headers = [header_of(path)[1] for path in folder.glob("*.safetensors")]
    n_values = sum(math.prod(tensor["shape"]) for header in headers for tensor in header.values())
    for part in (config, *(getattr(config, name) for name in config.sub_configs)):
        depth, width = getattr(part, "num_hidden_layers", getattr(part, "depth", 0)), getattr(part, "hidden_size", 0)
        if (depth or 0) * (width or 0) ** 2 > LEAST_SHARE * n_values:
            found = f"{depth} layers of width {width}, and weights of {n_values} values"
            raise CheckpointError(f"{folder}: expected settings for these weights", found=found, do=MAKE)


@contextmanager
def readable(folder: Path, part: str) -> Iterator[None]:
    """Turn a library's error about a broken file, or about settings that do not fit, into one line.

    Raises:
        CheckpointError: the library raised an error.
        OSError: the machine refuses, for example because the disk is full.
    """
    try:
        yield
    except LeverPipeError:
        raise
    except Exception as error:  # tokenizers and configuration checks raise their own classes
        # A missing file is a problem of the folder; other system errors, such as a full disk, are not.
        if isinstance(error, OSError) and error.errno not in (None, errno.ENOENT):
            raise
        message = shortened(" ".join(str(error).split())).rstrip(".")
        found = f"{type(error).__name__}: {message}"
        raise CheckpointError(f"{folder}: expected a readable {part}", found=found, do=MAKE) from None


def end_tokens(folder: Path) -> tuple[int, ...]:
    """Return the tokens that end a model's text, from its `generation_config.json`; none without the file or entry.

    Raises:
        CheckpointError: the file is unreadable, or its entry contains no tokens.
    """
    path, named = folder / GENERATION, None
    if path.is_file():
        with readable(folder, GENERATION):
            named = strict_json(path.read_bytes()).get("eos_token_id")
    ends = named if isinstance(named, list) else [] if named is None else [named]
    # `type` and not `isinstance`: true and false are ints in Python.
    if not all(type(end) is int and end >= 0 for end in ends):
        raise CheckpointError(
            f"{path}: expected an eos_token_id that is a token or a list of them",
            found=shortened(repr(named)),
            do="Download the file again; for an LVLM lvlm.decode.ends may name the tokens instead.",
        )
    return tuple(ends)


def written(tokenizer: Any, messages: Sequence[Mapping[str, Any]], **options: Any) -> str:
    """Return messages in the format of a tokenizer's chat template, with `TODAY` as the date."""
    template = tokenizer.get_chat_template(tools=options.get("tools"))
    options["chat_template"] = NOW + template if "strftime_now" in template else template
    return str(tokenizer.apply_chat_template(list(messages), tokenize=False, **options))


def load_strictly(kind: Any, folder: Path, part: str, **options: Any) -> Any:
    """Return the model of a folder, whose tensors are exactly those of its configuration.

    Args:
        kind: a class of transformers with `from_pretrained`.
        folder: a complete folder (`require_whole`).
        part: name of the model in error messages.
        options: of the class, such as `dtype`.

    Raises:
        CheckpointError: unreadable files, or a model that `require_loaded` refuses.
    """
    with readable(folder, part):
        model, info = kind.from_pretrained(
            folder,
            local_files_only=True,
            use_safetensors=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # `require_loaded` refuses them by name, with all other differences
            **options,
        )
    require_loaded(folder, model, info)
    return model


def require_loaded(folder: Path, model: Any, differing: Mapping[str, Iterable[Any]]) -> None:
    """Refuse a model that differs from its folder's configuration, or that has untrained or broken values.

    Args:
        folder: source of the model.
        model: a torch module.
        differing: missing, unexpected and mismatched tensors, as reported by `from_pretrained`.

    Raises:
        CheckpointError: other tensors; values that are not finite; matrices of a single value, weights of zeros only.
    """
    problems = {kind: sorted(map(str, names)) for kind, names in differing.items() if names}
    if not problems:
        for name, tensor in model.named_parameters():
            if problem := _problem_of_values(name, tensor):
                problems.setdefault(problem, []).append(name)
    if problems:
        listed = "; ".join(
            f"{kind}: {', '.join(names[:DISPLAY_LIMIT])} ({len(names)})" for kind, names in problems.items()
        )
        expected = f"{folder}: expected exactly the tensors of its config.json, with trained values"
        raise CheckpointError(expected, found=listed, do=MAKE)


def _problem_of_values(name: str, tensor: Any) -> str:
    if not tensor.numel():
        return ""
    low, high = (float(value) for value in tensor.detach().aminmax())  # both are NaN if any value is
    if not (math.isfinite(low) and math.isfinite(high)):
        return "not finite"
    # Vectors may be constant, such as the ones of a fresh normalization; trained matrices are not.
    constant = low == high and tensor.numel() > 1 and (tensor.ndim > 1 or low == 0)
    return f"nothing but {low:g}" if constant and name.endswith("weight") else ""
