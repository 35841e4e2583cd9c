"""One test of every second file, for checks that take long as a whole: others with every change of the code."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
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
    """Return 16 hex digits that identify the state of `CODE`."""
    parts = [ROOT / part for part in CODE]
    files = [path for part in parts for path in ([part] if part.is_file() else contents.files_below(part))]
    messages = [f"{path.relative_to(ROOT)} {storage.digest(path)}" for path in files if "__pycache__" not in path.parts]
    return hashlib.sha256("\n".join(messages).encode()).hexdigest()[:16]


def sample(tests: Iterable[str], digest: str) -> set[str]:
    """Return one test of every second file of each folder; which ones follows from the digest and from nothing else."""

    def rank(name: str) -> str:
        return hashlib.sha256(f"{digest} {name}".encode()).hexdigest()

    folders: dict[str, dict[str, str]] = {}
    for test in sorted(tests, key=rank):
        file = test.partition("::")[0]
        folders.setdefault(str(Path(file).parent), {}).setdefault(file, test)
    return {of[file] for of in folders.values() for file in sorted(of, key=rank)[: (len(of) + 1) // 2]}
