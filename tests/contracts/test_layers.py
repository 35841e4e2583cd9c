"""Imports go down the layers, and neighbors do not import each other."""

from __future__ import annotations

import ast
from collections import Counter
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from lever_pipe.base.provenance import modules_of, stages

from .workflow_model import rules

PACKAGE = Path(__file__).parents[2] / "lever_pipe"

FLOORS = [
    {"base"},
    {"experiment", "losses", "metrics", "statistics"},
    {"lvlms"},
    {"lever", "intention", "world"},
    {"report"},
    {"runtime"},
    {"stages", "commands"},
    {"__main__", "__init__"},
]
PURE = ("losses", "metrics", "statistics")
IMPURE = ("experiment", "base.sections", "base.storage")
# The largest import closures that the identity of a stage may have; growth is a deliberate edit.
CLOSURES = {"score_answers": 22, "train_rce_epoch": 41, "train_grpo_epoch": 46, "answer_prompts": 40}


def floor(room: str) -> int:
    return next(i for i, floor in enumerate(FLOORS) if room in floor)


def imports(path: Path) -> set[str]:
    """Return what a module imports of the package anywhere, type checking included, as `base.errors.ConfigError`."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return {name.removeprefix("lever_pipe.") for name in names if name.startswith("lever_pipe.")}


def violations() -> list[str]:
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        name = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        room = name.partition(".")[0]
        for other in sorted(imports(path)):
            there = other.partition(".")[0]
            if there != room and floor(there) >= floor(room):
                found.append(f"{name} (floor {floor(room)}) imports {other} (floor {floor(there)})")
            if name.startswith(PURE) and other.startswith(IMPURE):
                found.append(f"{name}: pure code imports {other}")
    return found


def test_every_room_has_a_floor_and_nothing_lies_next_to_them() -> None:
    names = {path.name.removesuffix(".py") for path in PACKAGE.iterdir() if path.name != "__pycache__"}
    assert names == set().union(*FLOORS)


def test_imports_go_down_and_neighbours_are_strangers() -> None:
    assert violations() == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    files = {".".join(path.relative_to(PACKAGE).with_suffix("").parts): path for path in PACKAGE.rglob("*.py")}
    graph = {
        name: {part for each in imports(path) for part in (each, each.rpartition(".")[0]) if part in files}
        for name, path in files.items()
    }
    assert sum(map(len, graph.values())) > 1000
    TopologicalSorter(graph).prepare()  # its error names the circle


def test_a_stage_imports_no_other_stage() -> None:
    for path in sorted((PACKAGE / "stages").glob("*.py")):
        assert "lever_pipe.stages" not in path.read_text().replace('"""', ""), path.name


def test_only_the_stages_of_the_emulation_import_it() -> None:
    """An emulated bug is a wrapper around the study, whose results never depend on it."""
    users = {path.stem for path in PACKAGE.rglob("*.py") if any(i.startswith("lever.emulation") for i in imports(path))}
    assert users == {"emulation"}
    reading = {name for name, rule in rules().items() if any("/emulation/" in str(file) for file in rule.input)}
    emulating = {stage for stage, module in stages().items() if module.endswith("stages.emulation")}
    assert reading - emulating <= {"collect_evidence", "build_report", "all"}


def test_no_stage_reaches_what_reads_pickles() -> None:
    """Only `convert` calls `torch.load` (`test_no_execution.py`), and only a person calls it or `import_checkpoint`."""
    for stage in stages():
        assert "lever_pipe.commands.convert_tool" not in modules_of(stage), stage
    users = [path.name for path in PACKAGE.rglob("*.py") if any("commands.convert_tool" in i for i in imports(path))]
    assert users == ["checkpoint_tool.py"]
    assert not any("checkpoint_tool" in name for path in PACKAGE.rglob("*.py") for name in imports(path))


def test_package_files_hold_a_docstring_only() -> None:
    """The root's own also chooses the numeric path (`tests/unit/base/test_numerics.py`)."""
    for path in PACKAGE.rglob("__init__.py"):
        body = ast.parse(path.read_text()).body
        extra = [s for s in body if not isinstance(s, ast.Expr | ast.Assign) and path.parent != PACKAGE]
        assert not extra, path


@pytest.mark.parametrize(("stage", "largest"), CLOSURES.items())
def test_a_stage_imports_few_modules(stage: str, largest: int) -> None:
    modules = modules_of(stage)
    assert len(modules) <= largest, f"{stage}: {len(modules)} modules: {sorted(modules)}"


def test_rce_does_not_depend_on_the_kl() -> None:
    assert "lever_pipe.losses.kl" in modules_of("train_grpo_epoch")
    assert "lever_pipe.losses.kl" not in modules_of("train_rce_epoch")


def test_a_class_name_exists_once() -> None:
    """A reader who meets a name finds one class; what a module keeps for itself counts too."""
    named = Counter(
        node.name
        for path in PACKAGE.rglob("*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef)
    )
    assert [name for name, times in named.items() if times > 1] == []
