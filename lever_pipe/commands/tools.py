"""Small commands beside the stages: the config schema, the environments, original RL data.

The conda environments are written from `requirements.lock`: one list of versions serves them and the container. That of
the main process, which plans and submits, is the part that Snakemake, its SLURM plugin and the configuration need;
there is no torch in it.
"""

from __future__ import annotations

import argparse
import difflib
import json
import re
import tomllib
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from lever_pipe.base import storage
from lever_pipe.base.errors import ConfigError
from lever_pipe.experiment.studies import Experiment

SCHEMA = Path("workflow/schemas/config.schema.json")
LOCK = Path("requirements.lock")
FOLDER = Path("envs")
PYTHON = "3.11"
PROJECT = Path("pyproject.toml")
MAIN_PROCESS = (
    "snakemake[reports]",
    "snakemake-executor-plugin-slurm",
    "pydantic",
    "pyyaml",
    "markupsafe",
    "safetensors",
)
"""What the modules behind the Snakefile and the cluster tools import."""


ABOUT = {
    "orchestrator": "The main process on a login node: plans, submits and watches; no torch.",
    "cpu": "Rules that load no large model. The same versions: that of torch brings CUDA along, unused.",
    "gpu": "Rules that load the encoder, the LVLM or the agent; needs a driver for CUDA.",
    "vllm": "Rules that ask an LVLM by vLLM, which says itself which versions it needs.",
}
"""The environments; those of the rules hold what the project requires, without its tools for developers."""


def main(words: Sequence[str]) -> int:
    """Run one tool and return its exit status."""
    parser = argparse.ArgumentParser(prog="lever-pipe", description=__doc__)
    tools = parser.add_subparsers(dest="tool", required=True)
    schema = tools.add_parser("schema", help=f"write {SCHEMA} from the config models")
    schema.add_argument("--check", action="store_true", help="compare instead, and show the difference")
    conda = tools.add_parser("environments", help=f"write {FOLDER} from {LOCK}")
    conda.add_argument("--check", action="store_true", help="compare instead of writing")
    export = tools.add_parser("export_rl_data", help="write RL data in the original rl_data_k64_v3.json format")
    export.add_argument("rl_data", type=Path, help="rows of a run: results/lever/rl_data/rl_data_k64_v3.jsonl")
    export.add_argument("original", type=Path, help="the JSON file to write")
    options = parser.parse_args(words)
    if options.tool == "schema":
        _write(SCHEMA, schema_text(), check=options.check, do="make schema")
    elif options.tool == "environments":
        for name, text in environments().items():
            _write(FOLDER / name, text, check=options.check, do="lever-pipe environments")
    else:
        from lever_pipe.base.records import RlGroup
        from lever_pipe.lever.rl_data_files import write_original

        write_original(options.original, storage.read_rows(options.rl_data, RlGroup))
    return 0


def _write(path: Path, text: str, *, check: bool, do: str) -> None:
    """Write a file, or refuse one that differs from what would be written."""
    if not check:
        storage.write_text(path, text)
        return
    written = path.read_text(encoding="utf-8") if path.exists() else ""
    if written != text:
        sides = (written.splitlines(), text.splitlines())
        difference = list(difflib.unified_diff(*sides, str(path), "expected", lineterm="", n=1))[:40]
        found = "\n".join(["this difference:", *difference, ""])
        raise ConfigError(f"{path}: expected what {do} writes", found=found, do=f"Run: {do}")


def schema_text() -> str:
    """Return the JSON schema of the configuration."""
    schema = Experiment.model_json_schema()
    schema["title"] = "config.yaml of lever-pipe"
    return json.dumps(schema, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def environments() -> dict[str, str]:
    """Return the content of each file below `envs/` by its name."""
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    locked, files = locked_versions(LOCK), {}
    for name, about in ABOUT.items():
        roots = MAIN_PROCESS if name == "orchestrator" else project["dependencies"]
        pins = [locked[package] for package in sorted(needed_by(roots)) if package in locked]
        if name == "vllm":
            pins = sorted(project["dependencies"] + project["optional-dependencies"]["vllm"])
        lines = [
            f"# {about}",
            f"# Written from {LOCK} by: lever-pipe environments",
            f"name: lever-pipe-{name}",
            "channels: [conda-forge]",
            "dependencies:",
            f"  - python={PYTHON}",
            "  - pip",
            "  - pip:",
            *(f"      - {pin}" for pin in pins),
        ]
        files[f"{name}.yaml"] = "\n".join(lines) + "\n"
    return files


def locked_versions(path: Path) -> dict[str, str]:
    """Return the line of each package in the lock file by its normalised name."""
    lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    pins = [line for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(re.split("[=<> @]", line)[0]): line for line in pins}


def needed_by(roots: Iterable[str]) -> set[str]:
    """Return the normalised names of all installed packages that these requirements need here, themselves included."""
    needed: set[str] = set()
    todo = [(Requirement(text), "") for text in roots]
    while todo:
        requirement, extra = todo.pop()
        if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
            continue
        name = canonicalize_name(requirement.name)
        extras = requirement.extras or {""}
        if name in needed and extras == {""}:
            continue
        needed.add(name)
        texts = metadata.requires(name) or ()
        todo += [(Requirement(text), group) for text in texts for group in extras]
    return needed
