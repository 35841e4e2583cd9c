"""An emulated fault is a wrapper: only the stages of the emulation know it, and no other result depends on it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from lever_pipe.base.provenance import modules_of, stages

from .workflow_model import ROOT, rules, working_in

PACKAGE = ROOT / "lever_pipe"
EMULATED = {"emulate_untouched", "emulate_selections", "emulate_first_items", "score_emulation"}


def imported(path: Path) -> set[str]:
    """Return every dotted name that a module imports, type checking included."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            names |= {str(node.module)} | {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return names


def test_only_the_stages_of_the_emulation_import_it() -> None:
    users = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if any(name.startswith("lever_pipe.lever.emulation") for name in imported(path))
    }
    assert users == {"stages/emulation.py"}
    assert {stage for stage, module in stages().items() if module == "lever_pipe.stages.emulation"} == EMULATED


@pytest.mark.parametrize("stage", sorted(set(stages()) - EMULATED))
def test_no_other_stage_depends_on_it(stage: str) -> None:
    assert not [name for name in modules_of(stage) if name.startswith("lever.emulation")]


def test_no_result_of_the_study_reads_an_emulated_file() -> None:
    reading = {
        name
        for name, rule in rules().items()
        if any("/emulation/" in str(file) for file in rule.input if not callable(file))
    }
    assert reading - EMULATED <= {
        "collect_evidence",
        "build_report",
        "all",
    }  # its rows name the emulation, and so do the pages


def test_without_the_section_there_is_no_rule() -> None:
    assert set(rules()) >= EMULATED
    assert names_of({"emulate": None}) & EMULATED == {"emulate_first_items"}  # of the grid, which has its own switch


def names_of(config: dict[str, object]) -> set[str]:
    """Return the names of the workflow's rules under a changed configuration."""
    from snakemake.api import SnakemakeApi
    from snakemake.settings.types import ConfigSettings, OutputSettings, ResourceSettings, StorageSettings

    with working_in(ROOT), SnakemakeApi(OutputSettings(quiet=None)) as api:
        workflow = api.workflow(
            resource_settings=ResourceSettings(cores=1),
            config_settings=ConfigSettings(config=config),
            storage_settings=StorageSettings(),
            snakefile=ROOT / "Snakefile",
        )
        return {rule.name for rule in workflow._workflow.rules}
