"""`python -m lever_pipe environments`: write the conda environments and the container recipe from `requirements.lock`.

One list of versions serves them all. The environment of the main process, which plans and submits, is the part of it
that Snakemake, its SLURM plugin and the configuration need; there is no torch in it.
"""

from __future__ import annotations

import argparse
import re
import tomllib
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from lever_pipe.base import storage
from lever_pipe.base.errors import ConfigError

LOCK = Path("requirements.lock")
FOLDER = Path("envs")
PYTHON = "3.11"
PROJECT = Path("pyproject.toml")
MAIN_PROCESS = ("snakemake[reports]", "snakemake-executor-plugin-slurm", "pydantic", "pyyaml", "markupsafe", "tqdm")
"""What the modules behind the Snakefile and the cluster tools import."""


class CondaEnvironment(NamedTuple):
    """A conda environment."""

    name: str
    about: str
    roots: tuple[str, ...]
    """Requirements whose closure is installed."""


def environments() -> list[CondaEnvironment]:
    """Return all environments; those of the rules hold what the project requires, without its tools for developers."""
    with PROJECT.open("rb") as handle:
        rules = tuple(tomllib.load(handle)["project"]["dependencies"])
    login = "The main process on a login node: plans, submits and watches; no torch."
    return [
        CondaEnvironment("orchestrator", login, MAIN_PROCESS),
        CondaEnvironment(
            "cpu", "Rules that load no large model. The same versions: that of torch brings CUDA along, unused.", rules
        ),
        CondaEnvironment("gpu", "Rules that load the encoder, the LVLM or the agent; needs a driver for CUDA.", rules),
    ]


def main(words: Sequence[str]) -> int:
    """Write the files, or with --check compare them; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m lever_pipe environments", description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    options = parser.parse_args(words[1:])
    for name, text in files().items():
        path = FOLDER / name
        if not options.check:
            storage.write_text(path, text)
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            raise ConfigError(
                f"{path}: expected the versions of {LOCK}", found="others", do="python -m lever_pipe environments"
            )
    return 0


def files() -> dict[str, str]:
    """Return the content of each file below `envs/` by its name."""
    locked = locked_versions(LOCK)
    return {f"{one.name}.yaml": _conda(one, locked) for one in environments()}


def locked_versions(path: Path) -> dict[str, str]:
    """Return the line of each package in the lock file by its normalised name."""
    lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    pins = [line for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(re.split("[=<> @]", line)[0]): line for line in pins}


def closure(roots: Iterable[str]) -> set[str]:
    """Return the normalised names of all installed packages that these requirements need here, themselves included."""
    found: set[str] = set()
    todo = [(Requirement(text), "") for text in roots]
    while todo:
        requirement, extra = todo.pop()
        if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
            continue
        name = canonicalize_name(requirement.name)
        extras = requirement.extras or {""}
        if name in found and extras == {""}:
            continue
        found.add(name)
        needs = metadata.requires(name) or ()
        todo += [(Requirement(text), wanted) for text in needs for wanted in extras]
    return found


def _conda(environment: CondaEnvironment, locked: dict[str, str]) -> str:
    pins = [locked[name] for name in sorted(closure(environment.roots)) if name in locked]
    head = [
        f"# {environment.about}",
        f"# Written from {LOCK} by: python -m lever_pipe environments",
        f"name: lever-pipe-{environment.name}",
        "channels: [conda-forge]",
        "dependencies:",
        f"  - python={PYTHON}",
        "  - pip",
        "  - pip:",
    ]
    return "\n".join([*head, *(f"      - {pin}" for pin in pins)]) + "\n"
