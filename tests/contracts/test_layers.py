"""Imports go down the layers, and parts do not know each other."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from lever_pipe.provenance import closure_of

PACKAGE = Path(__file__).parents[2] / "lever_pipe"

LAYERS = [
    {"errors", "shapes", "seeding", "progress", "numerics"},
    {
        "records",
        "sections",
        "config",
        "agent_config",
        "agent_records",
        "agent_stage_configs",
        "experiment",
        "faults",
        "stage_configs",
        "parsing",
        "configuration",
    },
    {"losses", "metrics", "statistics", "rewards", "prompts", "rowwise"},
    {
        "storage",
        "provenance",
        "folders",
        "checkpoints",
        "ledger",
        "run_card",
        "rl_data_io",
        "trajectories",
        "trajectory_rewards",
        "execution",
        "snapshot",
        "ownership",
        "model_folders",
        "gpu_slots",
        "contents",
        "store",
        "storing",
        "temporaries",
        "os_faults",
        "images",
    },
    {"datasets", "encoders", "samplers", "selector", "lvlms", "proposers", "baselines", "intention"},
    {"training", "world_models", "answering", "emulation", "tables", "figures", "claims", "page", "agent", "verl"},
    {"stages"},
    {
        "plan",
        "agent_plan",
        "tools",
        "compare_tool",
        "ledger_tools",
        "glossary_tool",
        "environments_tool",
        "cluster",
        "incremental",
        "store_tool",
        "forks",
        "snakemake_adapter",
        "__main__",
        "__init__",
    },
]
PURE = {"losses", "metrics", "statistics", "rewards", "prompts"}
PARTS = LAYERS[4]
# The largest import closures that the identity of a stage may have; growth is a deliberate edit.
CLOSURES = {"score_answers": 19, "train_rce_epoch": 34, "train_grpo_epoch": 38, "answer_prompts": 20}


def rank(name: str) -> int:
    return next(i for i, layer in enumerate(LAYERS) if name in layer)


def imports(path: Path) -> set[str]:
    """Return the top-level lever_pipe names that a module imports anywhere, type checking included."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("lever_pipe"):
            parts = node.module.split(".")
            names |= {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {a.name.split(".")[1] for a in node.names if a.name.startswith("lever_pipe.")}
    return names


def violations() -> list[str]:
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        relative = path.relative_to(PACKAGE)
        name = relative.parts[0].removesuffix(".py")
        for other in sorted(imports(path) - {name}):
            if rank(other) > rank(name) or (name in PARTS and other in PARTS):
                found.append(f"lever_pipe/{relative}: {name} (L{rank(name)}) imports {other} (L{rank(other)})")
            if name in PURE and other in {"sections", "config", "stage_configs", "storage"}:
                found.append(f"lever_pipe/{relative}: pure code imports {other}")
    return found


def test_every_module_has_a_layer() -> None:
    names = {p.name.removesuffix(".py") for p in PACKAGE.iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()}
    assert names == set().union(*LAYERS)


def test_imports_go_down_and_parts_are_strangers() -> None:
    assert violations() == []


def test_a_stage_imports_no_other_stage() -> None:
    for path in sorted((PACKAGE / "stages").glob("*.py")):
        assert "lever_pipe.stages" not in path.read_text().replace('"""', ""), path.name


def test_package_files_hold_a_docstring_only() -> None:
    """The root's own also chooses the numeric path (`tests/unit/test_numerics.py`)."""
    for path in PACKAGE.rglob("__init__.py"):
        body = ast.parse(path.read_text()).body
        extra = [s for s in body if not isinstance(s, ast.Expr | ast.Assign) and path.parent != PACKAGE]
        assert not extra, path


@pytest.mark.parametrize(("stage", "largest"), CLOSURES.items())
def test_import_closures_stay_small(stage: str, largest: int) -> None:
    modules = [m for m in closure_of(f"lever_pipe.stages.{stage}") if not m.endswith("__init__")]
    assert len(modules) <= largest, f"{stage}: {len(modules)} modules: {modules}"


def test_rce_does_not_depend_on_the_kl(tmp_path: Path) -> None:
    assert "lever_pipe.losses.kl" in closure_of("lever_pipe.stages.train_grpo_epoch")
    assert "lever_pipe.losses.kl" not in closure_of("lever_pipe.stages.train_rce_epoch")
