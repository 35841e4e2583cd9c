"""The identity of an artifact: canonical config, code of its stage, digests of its models.

A stage's code is its function with all modules that it imports, directly or not. Of the stage's own module only the
part counts that its function uses, because the stages of a subject share a module. Comments, docstrings, formatting
and imports for type checkers do not count.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from lever_pipe.base import plugins

PACKAGE = plugins.PACKAGE
STAGE = re.compile(r"^def ([a-z]\w*)\(\s*\*,", re.MULTILINE)
"""A stage has keyword-only parameters; every other public function of `stages` has a positional one."""
RECORDED_PACKAGES = ("torch", "transformers", "tokenizers", "numpy", "pydantic", "safetensors", "snakemake")
COMPUTING = {"torch": (), "transformers": ("torch", "tokenizers"), "tokenizers": ()}
"""Libraries whose version affects a stage's results -> the libraries that they compute with."""


def canonical_json(value: Any) -> str:
    """Return JSON that is equal for equal values: sorted keys, no blanks, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


@cache
def stages(root: Path = PACKAGE) -> dict[str, str]:
    """Return every stage with its defining module, without importing any."""
    texts = {path.stem: path.read_text(encoding="utf-8") for path in sorted((root / "stages").glob("*.py"))}
    return {stage: f"{root.name}.stages.{name}" for name, text in texts.items() for stage in STAGE.findall(text)}


class Module(NamedTuple):
    """The digest of a module's syntax tree, and the names of modules, and of objects in them, that it imports."""

    digest: str
    imports: frozenset[str]


@cache
def modules_of(stage: str, plugins: tuple[str, ...] = (), *, root: Path = PACKAGE) -> Mapping[str, Module]:
    """Return the modules of a stage's code.

    `plugins` are the modules that the configuration selects by name (a sampler, an LVLM), as `lever.samplers.uniform`.
    """
    return with_imports([stages(root)[stage], *(f"{root.name}.{name}" for name in plugins)], root=root, stage=stage)


def with_imports(names: Sequence[str], *, root: Path = PACKAGE, stage: str = "") -> dict[str, Module]:
    """Return modules and all that they import; of the first one, only the part that `stage` uses."""
    code, todo = dict[str, Module](), list(names)
    while todo:
        name = todo.pop(0)
        module = None if name in code else _module(name, root, "" if code else stage)
        if module is not None:
            code[name] = module
            todo += module.imports
    return code


def code_of(stage: str, plugins: tuple[str, ...] = (), *, root: Path = PACKAGE) -> str:
    """Return the fingerprint of a stage's code; for arguments see `modules_of`."""
    return fingerprint(modules_of(stage, plugins, root=root))


def fingerprint(code: Mapping[str, Module]) -> str:
    """Return one digest of modules, and of Python's minor version, which determines syntax trees."""
    return _digest([python_version(), *(f"{name} {module.digest}" for name, module in sorted(code.items()))])[:16]


@cache
def libraries_of(stage: str, plugins: tuple[str, ...] = (), *, root: Path = PACKAGE) -> tuple[str, ...]:
    """Return the libraries of `COMPUTING` that a stage computes with, because its code imports them."""
    code = modules_of(stage, plugins, root=root).values()
    imported = {name.partition(".")[0] for module in code for name in module.imports}
    return tuple(sorted({library for name in imported & COMPUTING.keys() for library in (name, *COMPUTING[name])}))


@cache
def _module(name: str, root: Path, stage: str) -> Module | None:
    """Return a module of the package; None for any other name.

    Cached, so that all fingerprints of a process describe one moment.
    """
    package, *parts = name.split(".")
    folders = [Path(base, *parts) for base in (plugins.roots() if root == PACKAGE else [root])]
    files = [file for folder in folders for file in (folder.with_suffix(".py"), folder / "__init__.py")]
    path = next(filter(Path.is_file, files), None)
    if package != root.name or path is None:
        return None
    body = _Computing().visit(ast.parse(path.read_text(encoding="utf-8"))).body
    body = _used_by(stage, body) if stage else body
    imports = {target for statement in body for node in ast.walk(statement) for target in _imported(node)}
    return Module(_digest([ast.dump(statement, annotate_fields=False) for statement in body]), frozenset(imports))


class _Computing(ast.NodeTransformer):
    """Removes docstrings and code for type checkers, and makes each import a statement of its own."""

    def visit_Expr(self, node: ast.Expr) -> ast.Expr | None:
        is_text = isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        return None if is_text else node

    def visit_If(self, node: ast.If) -> Any:
        self.generic_visit(node)
        return node.orelse if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING" else node

    def visit_ImportFrom(self, node: ast.ImportFrom) -> list[ast.ImportFrom]:
        return [ast.ImportFrom(node.module, [alias], node.level) for alias in node.names]


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.ImportFrom):
        return [f"{node.module}", f"{node.module}.{node.names[0].name}"]
    return [alias.name for alias in node.names] if isinstance(node, ast.Import) else []


def _used_by(stage: str, body: list[ast.stmt]) -> list[ast.stmt]:
    """Return the statements of a module that a stage's function uses, or that bind no name."""
    names, seen, used = {stage}, set[str](), list[ast.stmt]()
    while names != seen:
        seen, used = names, [statement for statement in body if not (bound := _bound(statement)) or bound & names]
        names = seen | {node.id for statement in used for node in ast.walk(statement) if isinstance(node, ast.Name)}
    return used


def _bound(statement: ast.stmt) -> set[str]:
    match statement:
        case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AnnAssign(target=ast.Name(id=name)):
            return {name}
        case ast.Assign(targets=[ast.Name(id=name)]):
            return {name}
        case ast.Import(names=[alias]) | ast.ImportFrom(names=[alias]):
            return {alias.asname or alias.name.partition(".")[0]}
    return set()


def _digest(texts: Iterable[str]) -> str:
    return hashlib.sha256("\n\n".join(texts).encode()).hexdigest()


def python_version() -> str:
    """Return Python's minor version, as `3.11`."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def installed_versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that can move a number."""
    versions = {"python": ".".join(map(str, sys.version_info[:3]))}
    for name in RECORDED_PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions
