"""The identity of an artifact: canonical config, code of its stage, digests of its models.

If a module only declares, a stage's code covers the declarations that it uses and their dependencies, not the rest: an
addition for one stage reruns no other. A module only declares if its top level consists of imports, classes, functions
and constants that are bound once and never modified, and if it does not look up names by text (`FINDS_NAMES`). Of all
other modules the whole text counts: a missed dependency is worse than a rerun.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from lever_pipe.base import plugins

PACKAGE = plugins.PACKAGE
MODULE_DIGITS = 8
"""Hexadecimal digits of a module's digest, enough for readers to see a change; the fingerprint covers all digits."""
STAGE = re.compile(r"^def ([a-z]\w*)\(\s*\*,", re.MULTILINE)
"""A stage has keyword-only parameters; every other public function of `stages` has a positional one."""
FINDS_NAMES = {"globals", "locals", "vars", "eval", "exec", "__import__", "__getattr__", "import_module", "sys", "*"}
"""A module with one of these names may use code that it does not name."""
FILLING = {"append", "extend", "insert", "add", "update", "setdefault", "pop", "remove", "discard", "clear"}
"""Methods that modify a constant: its users then depend on all code that may have called them."""
WHOLE = ""
"""Means a whole module, in place of the name of a declaration."""
ANSWERING = ("images", "rowwise")
"""Modules that belong to every engine: decoding of images, and matrix products."""
NOT_ENGINE = ("ledger", "prompts")
"""Modules in an engine's package that compute nothing; prompts are part of an answer's key."""
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


class ModulePart(NamedTuple):
    """A declaration of a module, or all of it.

    Attributes:
        text: syntax tree without comments, docstrings and code for type checkers, and the imports it uses.
        uses: declarations of the same module.
        imports: modules, each with a name in it or an empty text.
    """

    text: str
    uses: tuple[str, ...]
    imports: tuple[tuple[str, str], ...]


Used = Mapping[tuple[str, str], ModulePart]
"""The code of a stage, by module and declaration."""


def code_of(stage: str, plugins: tuple[str, ...] = (), *, root: Path = PACKAGE) -> str:
    """Return the fingerprint of a stage's code: a hash over the syntax trees of the stage and all code that it uses.

    `plugins` are the modules that the configuration selects by name (a sampler, an LVLM), as `lever.samplers.uniform`.
    """
    return _fingerprint(_used_by_stage(stage, plugins, root))


def modules_of(stage: str, plugins: tuple[str, ...] = (), *, root: Path = PACKAGE) -> dict[str, str]:
    """Return the modules that `code_of` covers, without the package's name, with the digest of each syntax tree.

    Modules that only declare are listed by their used declarations, as `experiment.config.Grpo`. The package itself is
    called `__init__`.
    """
    return {
        ".".join([*module.split(".")[1:], *([part] if part else [])]) or "__init__": _sha256(code.text)[:MODULE_DIGITS]
        for (module, part), code in _used_by_stage(stage, plugins, root).items()
    }


def engine_code(plugin: str, *others: str, root: Path = PACKAGE) -> str:
    """Return the fingerprint of a plugin's computation: the modules of its own subpackage that it imports.

    For an LVLM these are the modules of `lvlms` that it and `others` use, except `NOT_ENGINE`, plus image decoding and
    matrix products. Stored answers that outlive a run have this fingerprint in their key: answers of other code do not
    count as answers of this code.
    """
    package = plugin.rpartition(".")[0]
    used = _used([(name, WHOLE) for name in (plugin, *others)], root)
    last = {name: name.rpartition(".")[2] for name, _ in used}
    selected = {
        name for name in last if last[name] in ANSWERING or (name.startswith(package) and last[name] not in NOT_ENGINE)
    }
    return _fingerprint({location: code for location, code in used.items() if location[0] in selected})


@cache
def libraries_of(stage: str, plugins: tuple[str, ...] = (), *, root: Path = PACKAGE) -> tuple[str, ...]:
    """Return the libraries of `COMPUTING` that a stage computes with, because it or code that it uses imports them."""
    used = _used_by_stage(stage, plugins, root).values()
    imported = {module.partition(".")[0] for code in used for module, _ in code.imports}
    return tuple(sorted({library for name in imported & COMPUTING.keys() for library in (name, *COMPUTING[name])}))


@cache
def _used_by_stage(stage: str, plugins: tuple[str, ...], root: Path) -> Used:
    return _used([(stages(root)[stage], stage), *((f"{root.name}.{name}", WHOLE) for name in plugins)], root)


def _used(todo: list[tuple[str, str]], root: Path) -> Used:
    """Return the code that the given declarations use, including themselves."""
    used: dict[tuple[str, str], ModulePart] = {}
    while todo:
        name, part = todo.pop()
        module = _module(name, root)
        if module is None:
            continue
        # A name without a declaration there may be anything, so the whole module counts.
        part = part if part in module else WHOLE
        if (name, part) in used:
            continue
        used[name, part] = code = module[part]
        todo += [(name, other) for other in code.uses]
        for target, word in code.imports:
            is_module = word and _module(f"{target}.{word}", root) is not None
            todo += [(target, WHOLE), (f"{target}.{word}", WHOLE)] if is_module else [(target, word)]
    # A declaration is redundant if its whole module is included.
    return {
        location: code for location, code in used.items() if location[1] == WHOLE or (location[0], WHOLE) not in used
    }


def _fingerprint(used: Used) -> str:
    texts = [f"{module} {part} {code.text}" for (module, part), code in sorted(used.items())]
    return _sha256("\n\n".join([python_version(), *texts]))[:16]


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def python_version() -> str:
    """Return Python's minor version, as `3.11`; it enters every fingerprint, because syntax trees depend on it."""
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


@cache
def _module(name: str, root: Path) -> _Module | None:
    """Return a module of the package, or None.

    Cached, so that all fingerprints of a process describe one moment.
    """
    package, *parts = name.split(".")
    for base in plugins.roots() if root == PACKAGE else [root]:
        for path in (base.joinpath(*parts).with_suffix(".py"), base.joinpath(*parts, "__init__.py")):
            if package == root.name and path.is_file():
                return _Module(path.read_text(encoding="utf-8"))
    return None


class _Module:
    """A module as a whole and by its declarations; it has none of these if it does more than declare.

    Texts are computed on demand, because dumping syntax trees is slow.
    """

    def __init__(self, text: str) -> None:
        self._tree = ast.parse(text)
        self._own, self._imported = dict[str, ast.stmt](), defaultdict[str, list[tuple[str, str]]](list)
        self._parts: dict[str, ModulePart] = {}
        nodes = _nodes(self._tree)
        for node in nodes:
            if "body" in vars(node):
                _drop_docstrings(node)
        if not self._declares_alone() or any(_hides_uses(node, self._own) for node in nodes):
            self._own = {}

    def __contains__(self, name: str) -> bool:
        return name in self._own

    def __getitem__(self, name: str) -> ModulePart:
        if name not in self._parts:
            self._parts[name] = self._declaration(name) if name in self else self._whole()
        return self._parts[name]

    def _declares_alone(self) -> bool:
        for statement in self._tree.body:
            if isinstance(statement, ast.Import | ast.ImportFrom):
                for name, target in _bound(statement):
                    self._imported[name].append(target)
            else:
                names = _declares(statement)
                # A name that is bound twice has no single declaration.
                if not names or self._own.keys() & names:
                    return False
                self._own |= dict.fromkeys(names, statement)
        return not self._own.keys() & self._imported.keys()

    def _whole(self) -> ModulePart:
        imports = tuple(target for node in _nodes(self._tree) for _, target in _bound(node))
        return ModulePart(ast.dump(self._tree, annotate_fields=False), (), imports)

    def _declaration(self, name: str) -> ModulePart:
        # Any name counts, local variables too: a superfluous dependency is harmless, a missed one is not.
        nodes = _nodes(self._own[name])
        words = {node.id for node in nodes if isinstance(node, ast.Name)}
        outer = sorted((word, *target) for word in words & self._imported.keys() for target in self._imported[word])
        imports = [target for node in nodes for _, target in _bound(node)] + [
            (module, part) for _, module, part in outer
        ]
        text = f"{ast.dump(self._own[name], annotate_fields=False)} {outer}"
        return ModulePart(text, tuple(sorted(words & self._own.keys() - {name})), tuple(imports))


def _nodes(tree: ast.AST) -> list[ast.AST]:
    """Return a node and all its descendants except the contexts of names; `ast.walk` takes three times as long."""
    # The list grows while the loop runs over it.
    nodes = [tree]
    for node in nodes:
        for value in vars(node).values():
            if isinstance(value, list):
                nodes += [child for child in value if isinstance(child, ast.AST)]
            elif isinstance(value, ast.AST) and not isinstance(value, ast.expr_context):
                nodes.append(value)
    return nodes


def _drop_docstrings(node: ast.AST) -> None:
    if _only_checked(node):
        node.body = []  # type: ignore[attr-defined]
    for field in ("body", "orelse", "finalbody"):
        if isinstance(block := vars(node).get(field), list):
            setattr(node, field, [statement for statement in block if not _is_empty(statement)])


def _declares(statement: ast.stmt) -> set[str]:
    """Return the names that a statement declares; none if it has another effect."""
    match statement:
        case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            return {name}
        case ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]):
            return {name}
        case ast.Assign(targets=[ast.Tuple(elts=names)]) if all(isinstance(name, ast.Name) for name in names):
            return {ast.unparse(name) for name in names}
    return set()


def _hides_uses(node: ast.AST, declared: Mapping[str, ast.stmt]) -> bool:
    """Return whether code uses names indirectly, or modifies a constant of its module."""
    match node:
        case ast.Subscript(value=ast.Name(id=name), ctx=ast.Store() | ast.Del()):
            return name in declared
        case ast.Attribute(value=ast.Name(id=name), ctx=ast.Store() | ast.Del()):
            return name in declared
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=method)) if method in FILLING:
            return name in declared
        case ast.AugAssign(target=ast.Name(id=name)):
            return name in declared
        case ast.Name(id=name) | ast.FunctionDef(name=name) | ast.alias(name=name):
            return name in FINDS_NAMES
        case ast.Attribute(attr=name):
            return name == "import_module"
    return isinstance(node, ast.Global)


def _bound(node: ast.AST) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield each name that an import binds, with the module and the imported name or an empty text."""
    if isinstance(node, ast.Import):
        yield from ((alias.asname or alias.name.partition(".")[0], (alias.name, "")) for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module:
        yield from ((alias.asname or alias.name, (node.module, alias.name)) for alias in node.names)


def _only_checked(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def _is_empty(statement: ast.AST) -> bool:
    """Return whether a statement computes nothing: it is prose, or for type checkers only."""
    match statement:
        case ast.Expr(value=ast.Constant(value=str())):
            return True
        case ast.If(orelse=[]):
            return _only_checked(statement)
    return False
