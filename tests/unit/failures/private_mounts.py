"""Scripts that run in a private mount namespace: their mounts are invisible outside, and end with them."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

UNIT = Path(__file__).parents[1]
ROOT = UNIT.parents[1]


@cache
def _prefix() -> tuple[str, ...]:
    """Return how a command gets such a namespace here: as root, or as root of a user namespace; empty if neither."""
    for words in (("unshare", "--mount"), ("unshare", "--map-root-user", "--mount")):
        try:
            tried = subprocess.run(
                [*words, "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True, timeout=20, check=False
            )
        except (OSError, subprocess.SubprocessError):
            continue
        if tried.returncode == 0:
            return words
    return ()


def privately(*command: str, folder: Path = ROOT, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    """Run a command that may mount in a copy of the project; skip the test if this machine forbids mounts."""
    if not _prefix():
        pytest.skip("needs leave to mount (root, or user namespaces)")
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    environment = {**os.environ, "PATH": path, "PYTHONPATH": os.pathsep.join((str(folder), str(UNIT)))}
    return subprocess.run(
        [*_prefix(), *command],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        env=environment,
        cwd=folder,
    )


def python(script: Path, *words: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    """Run a Python script as `privately` does."""
    return privately(sys.executable, str(script), *words, timeout=timeout)
