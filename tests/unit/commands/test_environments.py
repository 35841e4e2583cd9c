"""Every environment holds the versions of the lock file, and the main process needs no torch."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from lever_pipe.base.errors import ConfigError
from lever_pipe.commands import tools

ROOT = Path(__file__).parents[3]
HEAVY = ("torch", "transformers", "scipy", "matplotlib", "duckdb", "tokenizers", "PIL")


@pytest.fixture(autouse=True)
def _in_the_project(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def pins(name: str) -> dict[str, str]:
    listed = yaml.safe_load((ROOT / "envs" / f"{name}.yaml").read_text())["dependencies"][-1]["pip"]
    return {re.split("==", line)[0].lower(): line for line in listed}


def test_the_files_are_as_the_lock_file_says() -> None:
    assert tools.main(["environments", "--check"]) == 0


def test_a_moved_version_is_noticed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    lock = tmp_path / "requirements.lock"
    lock.write_text((ROOT / "requirements.lock").read_text().replace("snakemake==", "snakemake==0."))
    monkeypatch.setattr(tools, "LOCK", lock)
    with pytest.raises(ConfigError, match="envs/orchestrator"):
        tools.main(["environments", "--check"])


def test_the_main_process_plans_without_the_packages_of_the_rules(tmp_path: Path) -> None:
    """As in the environment `orchestrator`: what is not in it cannot be imported."""
    assert not pins("orchestrator").keys() & {name.lower() for name in (*HEAVY, "pillow")}
    for name in HEAVY:
        (tmp_path / f"{name}.py").write_text(f"raise ImportError('{name}: not in this environment')\n")
    words = [sys.executable, "-m", "snakemake", "--dry-run", "--quiet", "all", "--forceall"]
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
