"""Every formula says where it is from, and the list of sources knows it."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import lever_pipe.losses
import lever_pipe.metrics
import lever_pipe.statistics

SOURCES = (Path(__file__).parents[2] / "docs" / "sources.md").read_text(encoding="utf-8")
KEYS = {line.split("|")[1].strip() for line in SOURCES.splitlines() if line.startswith("| ")}


def public_functions() -> Iterator[Callable[..., object]]:
    names = ["lever_pipe.lever.rewards"]
    for package in (lever_pipe.losses, lever_pipe.metrics, lever_pipe.statistics):
        names += [f"{package.__name__}.{m.name}" for m in pkgutil.iter_modules(package.__path__)]
    for name in names:
        module = importlib.import_module(name)
        for attribute, function in inspect.getmembers(module, inspect.isfunction):
            if function.__module__ == name and not attribute.startswith("_"):
                yield function


FUNCTIONS = list(public_functions())


def test_every_public_function_names_a_listed_source() -> None:
    named = {
        f"{f.__module__}.{f.__name__}": re.findall(r"^Source: (.+)$", inspect.getdoc(f) or "", flags=re.MULTILINE)
        for f in FUNCTIONS
    }
    assert [name for name, sources in named.items() if not sources] == [], "no `Source:` line"
    assert {source for sources in named.values() for source in sources} <= KEYS, "not a key of docs/sources.md"


def test_the_search_finds_the_functions() -> None:
    found = {function.__name__ for function in FUNCTIONS}
    assert {"grpo_terms", "k3", "vqa_accuracy", "hybrid", "paired_difference"} <= found
