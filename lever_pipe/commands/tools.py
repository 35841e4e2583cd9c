"""Small commands beside the stages: the config schema, the environments, a stage's import closure, original RL data.

The conda environments are written from `requirements.lock`: one list of versions serves them and the container. That of
the main process, which plans and submits, is the part that Snakemake, its SLURM plugin and the configuration need;
there is no torch in it.
"""

from __future__ import annotations

import argparse
import difflib
import json
import re
import sys
import tomllib
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from lever_pipe.base import storage
from lever_pipe.base.errors import ConfigError
from lever_pipe.base.provenance import code_of, modules_of, stages
from lever_pipe.experiment.studies import Experiment

SCHEMA = Path("workflow/schemas/config.schema.json")
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
    """Run one tool and return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m lever_pipe", description=__doc__)
    tools = parser.add_subparsers(dest="tool", required=True)
    schema = tools.add_parser("schema", help=f"write {SCHEMA} from the config models")
    schema.add_argument("--check", action="store_true", help="compare instead, and show the difference")
    conda = tools.add_parser("environments", help=f"write {FOLDER} from {LOCK}")
    conda.add_argument("--check", action="store_true", help="compare instead of writing")
    closure = tools.add_parser("closure", help="list the declarations and modules whose code a stage's identity holds")
    closure.add_argument("stage", choices=sorted(stages()), metavar="stage")
    export = tools.add_parser("export_rl_data", help="write RL data in the original rl_data_k64_v3.json format")
    export.add_argument("rl_data", type=Path)
    export.add_argument("original", type=Path)
    options = parser.parse_args(words)
    if options.tool == "schema":
        _write(SCHEMA, schema_text(), options, expected="the schema of the config models", do="Run: make schema")
    elif options.tool == "environments":
        for name, text in files().items():
            told = {"expected": f"the versions of {LOCK}", "do": "python -m lever_pipe environments"}
            _write(FOLDER / name, text, options, **told)
    elif options.tool == "closure":
        names = sorted(modules_of(options.stage))
        sys.stdout.write("\n".join([*names, f"fingerprint {code_of(options.stage)}"]) + "\n")
    else:
        from lever_pipe.base.records import RlGroup
        from lever_pipe.lever.rl_data_files import write_original

        write_original(options.original, storage.read_rows(options.rl_data, RlGroup))
    return 0


def _write(path: Path, text: str, options: argparse.Namespace, *, expected: str, do: str) -> None:
    if options.check:
        check_written(path, text, expected=expected, do=do)
    else:
        storage.write_text(path, text)


def schema_text() -> str:
    """Return the JSON schema of the configuration."""
    schema = Experiment.model_json_schema()
    schema["title"] = "config.yaml of lever-pipe"
    return json.dumps(schema, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def check_written(path: Path, text: str, *, expected: str, do: str) -> None:
    """Compare a committed file with what would be written.

    Raises:
        ConfigError: they differ; the message holds the difference.
    """
    committed = path.read_text(encoding="utf-8") if path.exists() else ""
    if committed != text:
        sides = (committed.splitlines(), text.splitlines())
        difference = list(difflib.unified_diff(*sides, str(path), "expected", lineterm="", n=1))
        found = "this difference:\n" + "\n".join(difference[:40]) + "\n"
        raise ConfigError(f"{path}: expected {expected}", found=found, do=do)


def files() -> dict[str, str]:
    """Return the content of each file below `envs/` by its name."""
    locked = locked_versions(LOCK)
    return {f"{one.name}.yaml": _conda(one, locked) for one in environments()}


def locked_versions(path: Path) -> dict[str, str]:
    """Return the line of each package in the lock file by its normalised name."""
    lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    pins = [line for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(re.split("[=<> @]", line)[0]): line for line in pins}


def needed_by(roots: Iterable[str]) -> set[str]:
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
    pins = [locked[name] for name in sorted(needed_by(environment.roots)) if name in locked]
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
