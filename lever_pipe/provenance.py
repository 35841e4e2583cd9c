"""What an artefact's identity consists of: canonical config, code of its stage, digests of its models.

What the text of a module says, its imports and the digest of its syntax tree, is remembered by the text's digest:
Snakemake starts anew for each run and for each job of a cluster, and parsing the package takes longer than its plan.
"""

from __future__ import annotations

import ast
import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from lever_pipe import storage
from lever_pipe.errors import LeverPipeError

PACKAGE = Path(__file__).parent
MODULE_DIGITS = 8
"""Hexadecimal digits that tell a module's code from its earlier one to a reader; the fingerprint covers it whole."""
BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")
"""Fields of syntax trees that hold statements, or what holds statements; of an `if`, the first is what it decides."""
MEMORY = Path(".snakemake/lever_pipe/modules.json")
"""Where a working directory remembers what the texts of modules say."""
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
        found = None if name in seen else _module(name, root)
        if found is not None:
            seen.add(name)
            todo.extend(found.imports)
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
    trees = {name: module.tree for name in names if (module := _module(name, root)) is not None}
    parts = [python_version(), *(f"{name} {tree}" for name, tree in trees.items())]
    short = {name.removeprefix(root.name).lstrip(".") or "__init__": tree for name, tree in trees.items()}
    return _Code(
        fingerprint=_sha256("\n".join(parts))[:16],
        modules={name: tree[:MODULE_DIGITS] for name, tree in short.items()},
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


class Module(NamedTuple):
    """What a module's text says: what it imports, and the digest of its syntax tree without docstrings."""

    imports: tuple[str, ...]
    tree: str


class Modules:
    """What texts of modules say, by the digest of the text.

    Args:
        memory: a file that keeps it between processes; None forgets. What this Python and this module did not write
            counts for nothing.

    Attributes:
        parsed: how many texts were parsed.
    """

    def __init__(self, memory: Path | None = None) -> None:
        self.parsed = 0
        self._memory = memory
        self._reader = f"{sys.version} {_sha256(Path(__file__).read_text(encoding='utf-8'))}"
        self._used: dict[str, Module] = {}
        self._known: dict[str, Module] = {}
        if memory is not None:
            with suppress(OSError, ValueError, TypeError, AttributeError, LookupError):
                content = json.loads(memory.read_bytes())
                known = content["modules"] if content["reader"] == self._reader else {}
                self._known = {
                    text: Module(tuple(map(str, imports)), str(tree)) for text, (imports, tree) in known.items()
                }

    def of(self, text: str) -> Module:
        """Return what a text says.

        Raises:
            SyntaxError: it is no Python.
        """
        key = _sha256(text)
        found = self._used.get(key) or self._known.get(key)
        if found is None:
            self.parsed += 1
            found = _parsed(text)
        self._used[key] = found
        return found

    def save(self) -> None:
        """Write what this process used to the memory; where it cannot be written, texts are parsed again next time."""
        if self._memory is None or self._used == self._known:
            return
        content = json.dumps({"reader": self._reader, "modules": dict(sorted(self._used.items()))})
        with suppress(OSError, LeverPipeError):
            storage.write_atomically(self._memory, lambda handle: handle.write(content.encode()))
            self._known = dict(self._used)


def remembered() -> Modules:
    """Return this process's memory of modules, kept in the working directory once something saves it."""
    return _remembered(Path.cwd() / MEMORY)


@cache
def _remembered(memory: Path) -> Modules:
    return Modules(memory)


@cache
def _module(name: str, root: Path) -> Module | None:
    """Return what a module of the package says; read once in a process: all its fingerprints are of one moment."""
    path = _path_of(name, root)
    return None if path is None else remembered().of(path.read_text(encoding="utf-8"))


def _parsed(text: str) -> Module:
    tree = ast.parse(text)
    imports = tuple(_imports_in(tree))
    return Module(imports, _sha256(_stripped(tree)))


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
