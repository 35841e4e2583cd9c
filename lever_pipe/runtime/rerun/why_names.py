"""Readable names of jobs and artifacts for messages, derived from the paths of their manifests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from lever_pipe.base.policy_names import PolicyName, values_in

STUDIES = ("lever", "intention")
"""Folders below the results with a study's artifacts."""
DISPLAY_LIMIT = 3


def label(stage: str, path: str) -> str:
    """Return an artifact's name: `GRPO beta 0.15 epoch 2 of seed 1 (world, base 5)`, `score_answers of ...`."""
    is_answer = "answers" in PurePath(path).parts
    run = None if is_answer else PolicyName.in_path(path)
    if run:
        name = run.label
        is_training = stage.startswith(("train_", "initialise_"))
        return name if is_training else f"{stage} of {name}"
    parts = [f"{name} {value}" for name, value in values_in(path).items()]
    if is_answer:
        parts = parts or [PurePath(path).parts[-2]]
    return f"{stage} ({', '.join(parts)})" if parts else stage


def flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """Return the leaves of nested mappings by dotted key; a list is a leaf."""
    if not isinstance(value, Mapping) or (prefix and not value):
        return {prefix: value}
    leaves: dict[str, Any] = {}
    for key, inner in value.items():
        leaves |= flat(inner, f"{prefix}.{key}" if prefix else str(key))
    return leaves


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, as `1 job` or `1,200 jobs`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def first(names: Sequence[str], most: int = DISPLAY_LIMIT) -> str:
    """Return the first few names and the number of further ones."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
