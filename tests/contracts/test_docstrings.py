"""Public functions of the pure layer name the errors they raise and the shapes they take."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "lever_pipe"
FILES = [
    *sorted((PACKAGE / "losses").glob("*.py")),
    *sorted((PACKAGE / "metrics").glob("*.py")),
    *sorted((PACKAGE / "statistics").glob("*.py")),
    PACKAGE / "lever/rewards.py",
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


def unsaid(function: ast.FunctionDef) -> set[str]:
    """Return the errors that a function raises and does not name."""
    raised = {
        node.exc.func.id
        for node in ast.walk(function)
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and isinstance(node.exc.func, ast.Name)
    }
    text = ast.get_docstring(function) or ""
    return {name for name in raised if f"{name}:" not in text}


def gives_shapes(function: ast.FunctionDef) -> bool:
    """Whether a function says which shapes its tensors have, if it takes any."""
    takes_tensors = any(isinstance(a.annotation, ast.Name) and a.annotation.id == "Tensor" for a in function.args.args)
    text = (ast.get_docstring(function) or "") + " ".join(a.arg for a in function.args.args)
    return not takes_tensors or SHAPES.search(text) is not None


def test_a_function_that_raises_says_so() -> None:
    assert {place: unsaid(function) for place, function in FUNCTIONS if unsaid(function)} == {}


def test_a_loss_of_tensors_gives_shapes() -> None:
    assert [place for place, function in LOSSES if not gives_shapes(function)] == []


def test_what_is_missing_is_found() -> None:
    silent = ast.parse('def f(x: Tensor) -> None:\n    """Say nothing."""\n    raise ShapeError("a")').body[0]
    assert isinstance(silent, ast.FunctionDef)
    assert unsaid(silent) == {"ShapeError"}
    assert not gives_shapes(silent)
