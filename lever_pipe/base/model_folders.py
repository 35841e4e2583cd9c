"""Whether a model folder is whole: from names and headers before a weight is read, then from what was loaded."""

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
"""The command that makes safetensors of `.bin` weights."""
VOCABULARY = ("tokenizer.json", ("vocab.json", "merges.txt"))
"""Of a byte-pair tokenizer: its whole, or its two parts. Without either a library makes one of a few special tokens."""
IMAGES = ("preprocessor_config.json", "processor_config.json")
"""Files that say how images are prepared: of an image processor, and of a whole processor as it is saved today."""
LEAST_SHARE = 4
"""A layer of width H has at least H * H / 4 values: attention alone has about 4 H * H."""
DISPLAY_LIMIT = 5
TODAY = datetime(2024, 7, 26)
"""The day that every chat template is told, so that a prompt is the same tomorrow; Llama 3's takes it if told none."""
CODES = ("a", "A", "b", "B", "d", "-d", "f", "H", "I", "j", "m", "-m", "M", "p", "S", "w", "x", "X", "y", "Y")
NOW = "".join(f"|replace('%{code}', '{TODAY.strftime(f'%{code}')}')" for code in CODES)
NOW = f"{{% macro strftime_now(format) %}}{{{{ format{NOW} }}}}{{% endmacro %}}\n"
"""What stands in a template for the function that asks the clock; the library lets no caller pass a function."""
AnyOf = str | tuple[str, ...]


def problems_of(folder: Path, *, files: Iterable[str], any_of: Iterable[AnyOf] = ()) -> list[str]:
    """Return what a model folder lacks, one text a problem; none for a whole one.

    Args:
        folder: holds safetensors, as one file or as shards with an index.
        files: JSON files that must be there.
        any_of: files of which one must be there, or the files of one group together.
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
    pointers = [path for path in (*sorted(folder.glob("*.json")), *weights) if _begins(path) == POINTER]
    problems += [f"{path.name} is a git-lfs pointer" for path in pointers]
    for path in (path for path in weights if path not in pointers):
        try:
            header_of(path)
        except (OSError, ValueError) as error:
            problems.append(f"{path.name} is not whole ({error})")
    return problems


def _shards(folder: Path) -> set[str]:
    """Return the files that the index names; none without a readable index."""
    try:
        return set(map(str, strict_json((folder / INDEX).read_bytes())["weight_map"].values()))
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return set()


def _begins(path: Path) -> bytes:
    with path.open("rb") as handle:
        return handle.read(len(POINTER))


def model_type(folder: Path) -> str:
    """Return the family that a model folder's `config.json` names; empty where it names none or is not there."""
    try:
        kind = strict_json((folder / "config.json").read_bytes()).get("model_type")
    except (OSError, ValueError, AttributeError):
        return ""
    return kind if isinstance(kind, str) else ""


def has_bin_only(folder: Path) -> bool:
    """Return whether a folder's weights are `.bin` files, which nothing but `convert` reads."""
    return any(folder.glob("pytorch_model*.bin")) and not any(folder.glob("*.safetensors"))


def require_whole(folder: Path, kind: str, *, files: Iterable[str], any_of: Iterable[AnyOf] = ()) -> None:
    """Refuse a folder that lacks something; see `problems_of`.

    Raises:
        CheckpointError: `kind` says what was expected.
    """
    if problems := problems_of(folder, files=files, any_of=any_of):
        remedy = f"Its weights are .bin files: {CONVERT} {folder}" if has_bin_only(folder) else MAKE
        raise CheckpointError(f"{folder}: expected {kind}", found="; ".join(problems), do=remedy)


def image_settings(folder: Path) -> Path:
    """Return which of `IMAGES` says how images are prepared: a whole processor's where both do, as in the library."""
    single, whole = (folder / name for name in IMAGES)
    return whole if whole.is_file() and "image_processor" in strict_json(whole.read_bytes()) else single


def require_keys(path: Path, *keys: str) -> None:
    """Refuse a file that leaves settings to a library's defaults, as another file under its name does.

    Raises:
        CheckpointError: names the file and what it lacks.
    """
    with readable(path.parent, path.name):
        settings = strict_json(path.read_bytes())
        settings = settings.get("image_processor", settings)
    if missing := [key for key in keys if not isinstance(settings, dict) or key not in settings]:
        raise CheckpointError(f"{path}: expected {', '.join(keys)}", found=f"no {', '.join(missing)}", do=MAKE)


def require_size(folder: Path, config: Any) -> None:
    """Refuse settings of a larger model than the weights: of a library's default, where `config.json` says little.

    Raises:
        CheckpointError: before memory for that model is taken.
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
    """Turn what the libraries say of a broken file, or of settings that do not fit, into one line.

    Raises:
        CheckpointError: they said something.
        OSError: the machine refuses, as a full disk does.
    """
    try:
        yield
    except LeverPipeError:
        raise
    except Exception as error:  # tokenizers and the checks of configurations raise classes of their own
        if isinstance(error, OSError) and error.errno not in (None, errno.ENOENT):  # a full disk breaks no model
            raise
        message = shortened(" ".join(str(error).split())).rstrip(".")
        found = f"{type(error).__name__}: {message}"
        raise CheckpointError(f"{folder}: expected a readable {part}", found=found, do=MAKE) from None


def end_tokens(folder: Path) -> tuple[int, ...]:
    """Return the tokens that a folder's `generation_config.json` names as ends of what a model says, if there are any.

    Raises:
        CheckpointError: the file is unreadable, or names no tokens.
    """
    path, named = folder / GENERATION, None
    if path.is_file():
        with readable(folder, GENERATION):
            named = strict_json(path.read_bytes()).get("eos_token_id")
    ends = named if isinstance(named, list) else [] if named is None else [named]
    if not all(type(end) is int and end >= 0 for end in ends):
        raise CheckpointError(
            f"{path}: expected an eos_token_id that is a token or a list of them",
            found=shortened(repr(named)),
            do="Download the file again; for an LVLM lvlm.decode.ends may name the tokens instead.",
        )
    return tuple(ends)


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
    low, high = (float(value) for value in tensor.detach().aminmax())  # NaN is both if there is one
    if not (math.isfinite(low) and math.isfinite(high)):
        return "not finite"
    constant = low == high and tensor.numel() > 1 and (tensor.ndim > 1 or low == 0)
    return f"nothing but {low:g}" if constant and name.endswith("weight") else ""
