"""What the Snakefile imports stays light: every cluster job parses the workflow again."""

from __future__ import annotations

import json
import subprocess
import sys

PROBE = """
import json, sys
import lever_pipe.runtime.plan, lever_pipe.base.parsing, lever_pipe.base.errors
heavy = ["torch", "transformers", "pandas", "numpy", "scipy", "matplotlib", "PIL"]
print(json.dumps([name for name in heavy if name in sys.modules]))
"""


def test_the_workflow_side_imports_no_heavy_package() -> None:
    done = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []


def test_the_command_line_imports_no_heavy_package_before_a_stage_runs() -> None:
    probe = PROBE.replace(
        "lever_pipe.runtime.plan, lever_pipe.base.parsing, lever_pipe.base.errors", "lever_pipe.__main__"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []


def test_the_page_imports_no_slow_package() -> None:
    probe = PROBE.replace("lever_pipe.runtime.plan, lever_pipe.base.parsing", "lever_pipe.stages.build_report")
    probe = probe.replace('"scipy"', '"scipy.stats"').replace('"numpy", ', "")
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []
