"""Every environment has the versions of the lock file, and the main process needs no torch."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[3]
HEAVY = ("torch", "transformers", "scipy", "matplotlib", "duckdb", "tokenizers", "PIL")


def pins(name: str) -> dict[str, str]:
    listed = yaml.safe_load((ROOT / "envs" / f"{name}.yaml").read_text())["dependencies"][-1]["pip"]
    return {package(line): line for line in listed}


def package(requirement: str) -> str:
    return re.split("[=<> []", requirement)[0].lower().replace("_", "-")


def test_each_version_is_that_of_the_lock_file() -> None:
    locked = set((ROOT / "requirements.lock").read_text().splitlines())
    assert all(set(pins(name).values()) <= locked for name in ("cpu", "gpu", "orchestrator"))


@pytest.mark.parametrize("name", ["cpu", "gpu", "orchestrator"])
def test_what_a_package_needs_is_there_too(name: str) -> None:
    listed, locked = pins(name).keys(), set(map(package, (ROOT / "requirements.lock").read_text().splitlines()))
    texts = (text for held in listed for text in metadata.requires(held) or ())
    needed = [of for of in map(Requirement, texts) if of.marker is None or of.marker.evaluate({"extra": ""})]
    assert {package(of.name) for of in needed} & locked <= listed


def test_the_rules_have_all_that_the_project_needs() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = set(map(package, project["dependencies"]))
    assert all(needed <= pins(name).keys() for name in ("cpu", "gpu", "vllm"))
    assert pins("cpu") == pins("gpu")


def test_the_main_process_plans_without_the_packages_of_the_rules(tmp_path: Path) -> None:
    """As in the environment `orchestrator`: imports of other packages fail."""
    assert not pins("orchestrator").keys() & {name.lower() for name in (*HEAVY, "pillow")}
    for name in HEAVY:
        (tmp_path / f"{name}.py").write_text(f"raise ImportError('{name}: not in this environment')\n")
    words = [sys.executable, "-m", "snakemake", "--dry-run", "--quiet", "all", "--forceall"]
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
