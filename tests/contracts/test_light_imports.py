"""What the Snakefile, the command line and the page import stays light: every cluster job parses the workflow again."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

HEAVY = ("torch", "transformers", "pandas", "numpy", "scipy", "matplotlib", "PIL")


@pytest.mark.parametrize(
    ("modules", "heavy"),
    [
        ("lever_pipe.runtime.plan, lever_pipe.base.parsing, lever_pipe.base.errors", HEAVY),
        ("lever_pipe.__main__", HEAVY),  # before a stage runs
        ("lever_pipe.stages.build_report", ("torch", "transformers", "scipy.stats", "matplotlib", "PIL")),
    ],
)
def test_no_heavy_package_is_imported(modules: str, heavy: tuple[str, ...]) -> None:
    probe = f"import json, sys, {modules}; print(json.dumps([name for name in {heavy} if name in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []
