"""What an artefact's identity consists of: canonical config, code of its stage, digests of its models."""

from __future__ import annotations

import ast
import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator
from functools import cache, lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

PACKAGE = Path(__file__).parent
MODULE_DIGITS = 8
"""Hexadecimal digits that tell a module's code from its earlier one to a reader; the fingerprint covers it whole."""
BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")
"""Fields of syntax trees that hold statements, or what holds statements; of an `if`, the first is what it decides."""
RECORDED_PACKAGES = ("torch", "transformers", "tokenizers", "numpy", "pydantic", "safetensors", "snakemake")


def canonical_json(value: Any) -> str:
    """Return JSON that is equal for equal values: sorted keys, no blanks, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def closure_of(module: str, members: tuple[str, ...] = (), *, root: Path = PACKAGE) -> list[str]:
    """Return the sorted dotted names of all package modules that `module` and `members` import.

    Imports inside functions count; imports under `if TYPE_CHECKING` do not, because they never run.
    """
    todo, seen = [module, *members], set()
    while todo:
        name = todo.pop()
        if name in seen or _path_of(name, root) is None:
            continue
        seen.add(name)
        todo.extend(_module(name, root).imports)
    return sorted(seen)


def code_of(stage: str, members: tuple[str, ...] = (), *, root: Path = PACKAGE) -> str:
    """Return the fingerprint of a stage's code: a hash over the syntax trees of its import closure.

    Docstrings and comments are stripped, so prose costs no rerun while a changed sign does. `members` are the
    modules that the configuration selects by name (a sampler, an LVLM), as `samplers.uniform`.
    """
    return _code_of(stage, members, root).fingerprint


def modules_of(stage: str, members: tuple[str, ...] = (), *, root: Path = PACKAGE) -> dict[str, str]:
    """Return the modules behind `code_of`, without the package's name, with the digest of each one's syntax tree.

    They are read at the same moment as the fingerprint. The package itself is called `__init__`.
    """
    return dict(_code_of(stage, members, root).modules)


def engine_code(member: str, *, root: Path = PACKAGE) -> str:
    """Return the fingerprint of a member's own part of the package: of all `lvlms`, say, that one of them imports.

    Answers that outlive a run are kept under it: what other code computed is not an answer of this code.
    """
    part = member.rpartition(".")[0]
    return _fingerprint([name for name in closure_of(member, root=root) if name.startswith(part)], root).fingerprint


class _Code(NamedTuple):
    """The code of some modules, by one reading of them: module -> digest, and the fingerprint of all."""

    fingerprint: str
    modules: dict[str, str]


@cache
def _code_of(stage: str, members: tuple[str, ...], root: Path) -> _Code:
    package = root.name
    names = closure_of(f"{package}.stages.{stage}", tuple(f"{package}.{m}" for m in members), root=root)
    return _fingerprint(names, root)


def _fingerprint(names: list[str], root: Path) -> _Code:
    trees = {name: _module(name, root).tree for name in names}
    parts = [python_version(), *(f"{name}\n{tree}" for name, tree in trees.items())]
    modules = {name.removeprefix(root.name).lstrip(".") or "__init__": _sha256(tree) for name, tree in trees.items()}
    return _Code(
        fingerprint=_sha256("\n".join(parts))[:16],
        modules={name: found[:MODULE_DIGITS] for name, found in modules.items()},
    )


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def python_version() -> str:
    """Return the part of Python's version that code is compiled by, as `3.11`: it enters every fingerprint."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def commit_of(folder: Path = PACKAGE) -> tuple[str, bool]:
    """Return the git commit of the code and whether tracked files differ from it; `unknown` outside git."""
    try:
        head = _git(folder, "rev-parse", "HEAD")
        return head, bool(_git(folder, "status", "--porcelain", "--untracked-files=no"))
    except (OSError, subprocess.SubprocessError):
        return "unknown", False


def installed_versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that can move a number."""
    versions = {"python": ".".join(map(str, sys.version_info[:3]))}
    for name in RECORDED_PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(folder), *arguments], check=True, capture_output=True, text=True, timeout=20
    )
    return done.stdout.strip()


def _path_of(name: str, root: Path) -> Path | None:
    parts = name.split(".")
    if parts[0] != root.name:
        return None
    base = root.joinpath(*parts[1:])
    for path in (base.with_suffix(".py"), base / "__init__.py"):
        if path.is_file():
            return path
    return None


def _require_path(name: str, root: Path) -> Path:
    path = _path_of(name, root)
    assert path is not None, name
    return path


class _Module(NamedTuple):
    """What a module's text says: what it imports, and its syntax tree without docstrings."""

    imports: tuple[str, ...]
    tree: str


def _module(name: str, root: Path) -> _Module:
    return _parsed(_require_path(name, root).read_text(encoding="utf-8"))


@lru_cache(maxsize=1024)
def _parsed(text: str) -> _Module:
    """Return what a text says; most modules belong to many stages, and parsing them again takes seconds in all."""
    tree = ast.parse(text)
    imports = tuple(_imports_in(tree))
    return _Module(imports, _stripped(tree))


def _imports_in(tree: ast.AST) -> list[str]:
    found: list[str] = []
    for node in _statements(tree, running=True):
        if isinstance(node, ast.Import):
            found.extend(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.append(node.module)
            found.extend(f"{node.module}.{alias.name}" for alias in node.names)
    return found


def _statements(tree: ast.AST, *, running: bool) -> Iterator[ast.AST]:
    """Yield the statements of a tree and what holds them; if `running`, none that only type checkers read.

    Expressions, most of a tree, hold neither imports nor docstrings.
    """
    todo = [tree]
    while todo:
        node = todo.pop()
        yield node
        never_runs = running and isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for field in BLOCKS[1:] if never_runs else BLOCKS:
            block = getattr(node, field, None)
            if isinstance(block, list):
                todo.extend(block)


def _stripped(tree: ast.AST) -> str:
    """Return a syntax tree as text, and take its docstrings out."""
    for node in _statements(tree, running=False):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [s for s in body if not _is_docstring(s)]  # type: ignore[attr-defined]
    return ast.dump(tree, annotate_fields=False)


def _is_docstring(statement: ast.stmt) -> bool:
    value = getattr(statement, "value", None)
    is_text = isinstance(value, ast.Constant) and isinstance(value.value, str)
    return isinstance(statement, ast.Expr) and is_text
