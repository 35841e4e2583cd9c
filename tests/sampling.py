"""One test of each stratum, for checks that take long as a whole: another one with every change of the code."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

from lever_pipe.base import contents, storage

ROOT = Path(__file__).parents[1]
CODE = (
    "Snakefile",
    "config.yaml",
    "config",
    "envs",
    "lever_pipe",
    "profiles",
    "pyproject.toml",
    "resources",
    "snakemake_executor_plugin_lever_slurm",
    "snakemake_executor_plugin_local",
    "workflow",
)
"""What the workflow runs."""


@cache
def digest_of_code() -> str:
    """Return 16 hex digits that tell one state of `CODE` from another."""
    parts = [ROOT / part for part in CODE]
    files = [path for part in parts for path in ([part] if part.is_file() else contents.files_below(part))]
    told = [f"{path.relative_to(ROOT)} {storage.digest(path)}" for path in files if "__pycache__" not in path.parts]
    return hashlib.sha256("\n".join(told).encode()).hexdigest()[:16]


def sample(names: Iterable[str], stratum: Callable[[str], str], digest: str) -> set[str]:
    """Return one name of each stratum; which one follows from the digest and from nothing else."""
    strata: dict[str, list[str]] = {}
    for name in names:
        strata.setdefault(stratum(name), []).append(name)
    return {min(members, key=lambda name: _rank(digest, name)) for members in strata.values()}


def function_of(test: str) -> str:
    """Return a test's name without its parameters."""
    return test.partition("[")[0]


def file_of(test: str) -> str:
    """Return the file of a test."""
    return test.partition("::")[0]


STRATA: dict[str, Callable[[str], str]] = {"function": function_of, "file": file_of}


def _rank(digest: str, name: str) -> str:
    return hashlib.sha256(f"{digest} {name}".encode()).hexdigest()
