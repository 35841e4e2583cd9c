"""Tensors in safetensors files, loaded strictly: a failed load reports every difference."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from lever_pipe.base.atomic import write_file
from lever_pipe.base.errors import CheckpointError, shortened

REBUILD = "Delete the file and rerun its rule."


def save_tensors(path: Path, tensors: Mapping[str, Tensor], *, about: Mapping[str, str | int | float]) -> None:
    """Write named tensors with a small header, atomically."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    # Safetensors stores texts only in its header, so the facts become one JSON text.
    header = {"about": json.dumps(dict(about), sort_keys=True)}
    write_file(path, lambda handle: handle.write(save(plain, metadata=header)))


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str | int | float]]:
    """Return the tensors and the header of a checkpoint.

    Raises:
        CheckpointError: a missing or damaged file.
    """
    try:
        with safe_open(path, framework="pt") as handle:
            about = json.loads((handle.metadata() or {}).get("about", "{}"))
            return {name: handle.get_tensor(name) for name in handle.keys()}, about  # noqa: SIM118 - not a mapping
    except FileNotFoundError:
        raise CheckpointError(f"{path}: expected a checkpoint", found="none", do="Run its rule.") from None
    except (OSError, SafetensorError, LookupError, TypeError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"{path}: expected safetensors", found=shortened(str(error)), do=REBUILD) from None


def require_same_tensors(path: Path, found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Refuse a checkpoint with another architecture or precision, or from a diverged training.

    Raises:
        CheckpointError: lists missing, extra and differently shaped or typed tensors, and those with NaN or infinity.
    """
    problems = [f"missing {name}" for name in sorted(expected.keys() - found.keys())]
    problems += [f"extra {name}" for name in sorted(found.keys() - expected.keys())]
    for name in sorted(found.keys() & expected.keys()):
        is_now, must = (f"{tensors[name].dtype} {list(tensors[name].shape)}" for tensors in (found, expected))
        problems += [f"{name} is {is_now}, expected {must}"] if is_now != must else []
    # A diverged checkpoint loads without errors and turns every later score into NaN.
    problems += [f"{name} is not finite" for name, tensor in sorted(found.items()) if not bool(tensor.isfinite().all())]
    if problems:
        raise CheckpointError(
            f"{path}: expected the {len(expected)} tensors of the configured architecture",
            found="; ".join(problems),
            do="Use the checkpoint's own config, or retrain with this one.",
        )
