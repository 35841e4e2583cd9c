"""Public functions of the pure layer name the errors they raise and the shapes they take."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "lever_pipe"
FILES = [
    *sorted((PACKAGE / "losses").glob("*.py")),
    *sorted((PACKAGE / "metrics").glob("*.py")),
    *sorted((PACKAGE / "statistics").glob("*.py")),
    PACKAGE / "rewards.py",
]
SHAPES = re.compile(r"\[[A-Z ,.]*\]|\[B|\[\.\.\.|(one|any) shape|_[BGKSDN]+\b")


def public_functions() -> list[tuple[str, ast.FunctionDef]]:
    return [
        (f"{path.relative_to(PACKAGE)}::{node.name}", node)
        for path in FILES
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
    ]


FUNCTIONS = public_functions()
LOSSES = [(place, function) for place, function in FUNCTIONS if place.startswith("losses/")]


@pytest.mark.parametrize(("place", "function"), FUNCTIONS, ids=[place for place, _ in FUNCTIONS])
def test_a_function_that_raises_says_so(place: str, function: ast.FunctionDef) -> None:
    raised = {
        node.exc.func.id
        for node in ast.walk(function)
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and isinstance(node.exc.func, ast.Name)
    }
    text = ast.get_docstring(function) or ""
    assert all(f"{name}:" in text for name in raised), f"{place} raises {raised}"


@pytest.mark.parametrize(("place", "function"), LOSSES, ids=[place for place, _ in LOSSES])
def test_a_loss_of_tensors_gives_shapes(place: str, function: ast.FunctionDef) -> None:
    takes_tensors = any(isinstance(a.annotation, ast.Name) and a.annotation.id == "Tensor" for a in function.args.args)
    if takes_tensors:
        text = (ast.get_docstring(function) or "") + " ".join(a.arg for a in function.args.args)
        assert SHAPES.search(text), f"{place} gives no shape"
