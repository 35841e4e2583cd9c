"""Every environment holds the versions of the lock file, and the main process needs no torch."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import yaml

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


def test_the_rules_have_all_that_the_project_needs() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = set(map(package, project["dependencies"]))
    assert all(needed <= pins(name).keys() for name in ("cpu", "gpu", "vllm"))
    assert pins("cpu") == pins("gpu")


def test_the_main_process_plans_without_the_packages_of_the_rules(tmp_path: Path) -> None:
    """As in the environment `orchestrator`: what is not in it cannot be imported."""
    assert not pins("orchestrator").keys() & {name.lower() for name in (*HEAVY, "pillow")}
    for name in HEAVY:
        (tmp_path / f"{name}.py").write_text(f"raise ImportError('{name}: not in this environment')\n")
    words = [sys.executable, "-m", "snakemake", "--dry-run", "--quiet", "all", "--forceall"]
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
