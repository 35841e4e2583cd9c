"""What jobs and artefacts are called in sentences, told by where their run card lies."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

STUDIES = ("lever", "intention")
"""Folders below the results that hold a study's artefacts."""
METHODS = {
    "init": "initialisation",
    "rce": "RCE",
    "grpo": "GRPO",
    "on_policy": "on-policy GRPO",
    "reinforce": "REINFORCE",
    "distil": "oracle distillation",
    "dropout": "GRPO with dropout",
}
"""Part of a path that says what a run is trained by -> its name."""
SHOWN = 3

_RUN = re.compile(
    r"(?:^|/)("
    r"preset~[^/]+/(?:init|rce)/seed~\d+(?:/epoch~\d+)?"
    r"|preset~[^/]+/(?:grpo|on_policy|reinforce|distil)/base~\d+(?:/beta~[^/]+)?/seed~\d+/epoch~\d+"
    r"|emulation/dropout/base~\d+/beta~[^/]+/seed~\d+/epoch~\d+"
    r"|baseline/[^/]+"
    r"|arm~[^/]+/seed~\d+"
    r")(?:/|$)"
)


def run_of(path: str) -> str:
    """Return the policy or agent whose folder a path lies in, as `preset~world/rce/seed~0/epoch~1`; empty: in none."""
    found = _RUN.search(path if "answers/" not in path else "")
    return found[1] if found else ""


def label(stage: str, path: str) -> str:
    """Return what an artefact is called: `GRPO beta 0.15 epoch 2 of seed 1 (world, base 5)`, `score_answers of ...`."""
    run = run_of(path)
    if run:
        name = run_label(run)
        is_training = stage.startswith(("train_", "initialise_", "emulate_grpo"))
        return name if is_training else f"{stage} of {name}"
    values = values_in(path)
    told = [f"{name} {value}" for name, value in values.items()]
    if "answers" in PurePath(path).parts:
        told = told or [PurePath(path).parts[-2]]
    return f"{stage} ({', '.join(told)})" if told else stage


def run_label(run: str) -> str:
    """Return what a policy or agent is called, as `RCE epoch 5 of seed 1 (world)`."""
    parts, values = run.split("/"), values_in(run)
    if parts[0] == "baseline":
        return f"baseline {parts[1]}"
    if "arm" in values:
        return f"arm {values['arm']}" + (f" of seed {values['seed']}" if "seed" in values else "")
    told = [METHODS[parts[1]], *(f"{name} {values[name]}" for name in ("beta", "epoch") if name in values)]
    told += [f"of seed {values['seed']}"] if "seed" in values else []
    start = [values.get("preset", ""), f"base {values['base']}" if "base" in values else ""]
    return f"{' '.join(told)} ({', '.join(part for part in start if part)})"


def values_in(path: str) -> dict[str, str]:
    """Return the values that a path names, as `seed~1`; values of file names do not count."""
    return dict(part.split("~", 1) for part in path.split("/") if "~" in part)


def flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """Return the leaves of nested mappings by dotted key; a list is a leaf."""
    if not isinstance(value, Mapping) or (prefix and not value):
        return {prefix: value}
    leaves: dict[str, Any] = {}
    for key, inner in value.items():
        leaves |= flat(inner, f"{prefix}.{key}" if prefix else str(key))
    return leaves


def first(names: list[str] | tuple[str, ...]) -> str:
    """Return the first few names, and how many more there are."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
