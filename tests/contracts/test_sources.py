"""Every formula says where it is from, and the list of sources knows it."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import lever_pipe.losses
import lever_pipe.metrics
import lever_pipe.statistics

SOURCES = (Path(__file__).parents[2] / "docs" / "sources.md").read_text(encoding="utf-8")
KEYS = {line.split("|")[1].strip() for line in SOURCES.splitlines() if line.startswith("| ")}


def public_functions() -> Iterator[Callable[..., object]]:
    names = ["lever_pipe.rewards"]
    for package in (lever_pipe.losses, lever_pipe.metrics, lever_pipe.statistics):
        names += [f"{package.__name__}.{m.name}" for m in pkgutil.iter_modules(package.__path__)]
    for name in names:
        module = importlib.import_module(name)
        for attribute, function in inspect.getmembers(module, inspect.isfunction):
            if function.__module__ == name and not attribute.startswith("_"):
                yield function


FUNCTIONS = list(public_functions())


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f"{f.__module__}.{f.__name__}")
def test_every_public_function_names_a_listed_source(function: Callable[..., object]) -> None:
    named = re.findall(r"^Source: (.+)$", inspect.getdoc(function) or "", flags=re.MULTILINE)
    assert named, "no `Source:` line"
    assert set(named) <= KEYS, f"not a key of docs/sources.md: {set(named) - KEYS}"


def test_the_search_finds_the_functions() -> None:
    found = {function.__name__ for function in FUNCTIONS}
    assert {"grpo_terms", "k3", "vqa_accuracy", "hybrid", "paired_difference"} <= found
