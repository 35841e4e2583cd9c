"""Amount of code by room: `make size`. A report for readers, not a limit that a test enforces."""

from __future__ import annotations

import ast
import itertools
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

PACKAGE = "lever_pipe"
LONG_FILE, LONG_FUNCTION = 700, 60
REPEATED = 6
"""Minimum number of equal lines, of code without imports, that count as a repetition."""


def main() -> None:
    """Print the table of rooms, then unusually long or repeated code."""
    files = sorted(Path(PACKAGE).rglob("*.py"))
    lines_of = Counter[str]()
    counts = Counter[str]()
    for path in files:
        room = path.relative_to(PACKAGE).parts[0]
        lines_of[room] += _lines(path)
        counts[room] += 1
    for room in sorted(lines_of):
        _report(room, counts[room], lines_of[room])
    _report("all", len(files), lines_of.total())
    _report("all but report", len(files) - counts["report"], lines_of.total() - lines_of["report"])
    for folder in ("tests", "tools", "workflow", "benchmarks"):
        others = [path for path in Path(folder).rglob("*") if path.suffix in (".py", ".smk")]
        _report(folder, len(others), sum(map(_lines, others)))

    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in files}
    functions = sorted(_functions(trees), reverse=True)
    p95 = functions[len(functions) // 20][0]
    _print(f"\n{len(functions)} functions, of 100 lines at most 5 have more than {p95}")
    for lines, name in itertools.takewhile(lambda function: function[0] > LONG_FUNCTION, functions):
        _print(f"  function of {lines} lines: {name}")
    for path in files:
        if _lines(path) > LONG_FILE:
            _print(f"  file of {_lines(path)} lines: {path}")
    for name, paths in sorted(_classes(trees).items()):
        if len(paths) > 1:
            _print(f"  class in {len(paths)} places: {name} ({', '.join(paths)})")
    _print(f"{len(_repetitions(files))} pairs of files share {REPEATED} lines or more")


def _report(name: str, files: int, lines: int) -> None:
    _print(f"{name:16}{files:6} files{lines:8} lines")


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")


def _lines(path: Path) -> int:
    return path.read_text(encoding="utf-8").count("\n")


def _functions(trees: dict[Path, ast.Module]) -> Iterator[tuple[int, str]]:
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield (node.end_lineno or node.lineno) - node.lineno + 1, f"{path}::{node.name}"


def _classes(trees: dict[Path, ast.Module]) -> dict[str, list[str]]:
    paths = defaultdict(list)
    for path, tree in trees.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                paths[node.name].append(str(path))
    return paths


def _repetitions(files: Iterable[Path]) -> set[tuple[Path, Path]]:
    seen: dict[tuple[str, ...], Path] = {}
    pairs = set()
    for path in files:
        text = path.read_text(encoding="utf-8")
        imported = {
            line
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.Import | ast.ImportFrom)
            for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
        }
        code = [line.strip() for i, line in enumerate(text.splitlines(), 1) if i not in imported and line.strip()]
        for window in zip(*(code[i:] for i in range(REPEATED)), strict=False):  # the last ends the windows
            other = seen.setdefault(window, path)
            if other != path:
                pairs.add((other, path))
    return pairs


if __name__ == "__main__":
    main()
