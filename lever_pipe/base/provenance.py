"""What an artefact's identity consists of: canonical config, code of its stage, digests of its models.

Of a module that only declares, a stage's code holds the declarations that it uses and what these name, not the rest:
what is added there for one stage reruns no other. A module only declares if its top level is imports, classes,
functions and constants that are bound once, with no statement that runs otherwise and no name by which code finds
names (`FINDS_NAMES`). All other modules count whole: a missed dependency is worse than a rerun.

What the text of a module says, its imports and the digest of its syntax tree, is remembered by the text's digest:
Snakemake starts anew for each run and for each job of a cluster, and parsing the package takes longer than its plan.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from lever_pipe.base import atomic, members
from lever_pipe.base.errors import LeverPipeError

PACKAGE = members.PACKAGE
MODULE_DIGITS = 8
"""Hexadecimal digits that tell a module's code from its earlier one to a reader; the fingerprint covers it whole."""
PLACE = re.compile(rf"'{PACKAGE.name}\.(?:\w+\.)*(\w+\.)'")
"""The beginning of a module's dotted name, to which the configuration adds the member."""
STAGE = re.compile(r"^def ([a-z]\w*)\(\s*\*,", re.MULTILINE)
"""A stage takes all by name; no other public function of `stages` takes nothing by position."""
FINDS_NAMES = {"globals", "locals", "vars", "eval", "exec", "__import__", "import_module", "modules"}
"""A module with one of these names may use what it does not name."""
OF_NETWORKS = {"eval", "modules"}
"""Methods of torch's, by the same names."""
FILLING = {"append", "extend", "insert", "add", "update", "setdefault", "pop", "remove", "discard", "clear"}
"""Methods that change what a constant holds: who uses it depends on all that may have changed it."""
BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")
"""Fields of syntax trees that hold statements, or what holds statements; of an `if`, the first is what it decides."""
MEMORY = Path(".snakemake/lever_pipe/modules.json")
"""Where a working directory remembers what the texts of modules say."""
ANSWERING = ("images", "rowwise")
"""Modules that are part of every engine: what images show, and how matrix products are made."""
BESIDE = ("ledger", "prompts")
"""Modules beside an engine that compute nothing: what is asked is part of an answer's key."""
RECORDED_PACKAGES = ("torch", "transformers", "tokenizers", "numpy", "pydantic", "safetensors", "snakemake")


COMPUTING = {"torch": (), "transformers": ("torch", "tokenizers"), "tokenizers": ()}
"""Libraries whose version moves what a stage computes -> those that they compute with."""


def canonical_json(value: Any) -> str:
    """Return JSON that is equal for equal values: sorted keys, no blanks, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


@cache
def stages(root: Path = PACKAGE) -> dict[str, str]:
    """Return every stage with the module that defines it, without importing any."""
    texts = {path.stem: path.read_text(encoding="utf-8") for path in sorted((root / "stages").glob("*.py"))}
    return {stage: f"{root.name}.stages.{name}" for name, text in texts.items() for stage in STAGE.findall(text)}


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
    """Return the fingerprint of a stage's code: a hash over the syntax trees of all that it and its imports use.

    Docstrings and comments are stripped, so prose costs no rerun while a changed sign does. Where a module lies does
    not count, nor how its imports are written and ordered: a name that is imported counts as what it stands for.
    `members` are the modules that the configuration selects by name (a sampler, an LVLM), as `lever.samplers.uniform`.
    """
    return _code_of(stage, members, root).fingerprint


def modules_of(stage: str, members: tuple[str, ...] = (), *, root: Path = PACKAGE) -> dict[str, str]:
    """Return the modules behind `code_of`, without the package's name, with the digest of each one's syntax tree.

    Of a module that only declares these are the declarations in use, as `experiment.config.Grpo`. They are read at the
    same moment as the fingerprint. The package itself is called `__init__`.
    """
    return dict(_code_of(stage, members, root).modules)


def engine_code(member: str, *others: str, root: Path = PACKAGE) -> str:
    """Return the fingerprint of what a member computes with: all of its own part of the package that it imports.

    Of an LVLM that is all of `lvlms` that it and what stands around it (`others`) import but what lies `BESIDE` it,
    what images show, and how products are made. Answers that outlive a run are kept under it: what other code computed
    is not an answer of this code.
    """
    own = member.rpartition(".")[0]
    names = {name: name.rpartition(".")[2] for name in closure_of(member, others, root=root)}
    kept = [name for name, last in names.items() if last in ANSWERING or (name.startswith(own) and last not in BESIDE)]
    return _fingerprint(dict.fromkeys(kept), root).fingerprint


@cache
def libraries_of(stage: str, members: tuple[str, ...] = (), *, root: Path = PACKAGE) -> tuple[str, ...]:
    """Return which libraries a stage computes with (`COMPUTING`): those that it or anything that it uses imports."""
    imported = set[str]()
    for name, declared in _used(stage, members, root).items():
        module = _module(name, root) or _parsed("")
        bindings = module.bindings if declared is None else [b for one in declared for b in _bindings_of(module, one)]
        imported |= {target.partition(".")[0] for _, _, target, _ in bindings}
    return tuple(sorted({each for name in imported & COMPUTING.keys() for each in (name, *COMPUTING[name])}))


class _Code(NamedTuple):
    """The code of some modules, by one reading of them: module -> digest, and the fingerprint of all."""

    fingerprint: str
    modules: dict[str, str]


@cache
def _code_of(stage: str, members: tuple[str, ...], root: Path) -> _Code:
    return _fingerprint(_used(stage, members, root), root)


Used = dict[str, set[str] | None]
"""Module -> which of its declarations; None for all of it."""


def _used(stage: str, members: tuple[str, ...], root: Path) -> Used:
    """Return what a stage and its members use of the package, each by the names that it imports and uses itself."""
    todo = [(stages(root)[stage], stage, False), *((f"{root.name}.{name}", "", False) for name in members)]
    found: Used = {}
    asked = set[tuple[str, str, bool]]()
    while todo:
        name, wanted, marks = todo.pop()
        said, own = _module(name, root), found.get(name, set())
        if said is None or own is None or (name, wanted, marks) in asked:
            continue
        asked.add((name, wanted, marks))
        needed = _needed(said, wanted, marks=marks)
        if needed is None:
            found[name], bindings = None, [(one, False) for one in said.bindings]
        else:
            found[name] = own | needed.keys()
            bindings = [(one, marked) for each, marked in needed.items() for one in _bindings_of(said, each)]
        for (_, _, target, what), marked in bindings:
            inside = _module(f"{target}.{what}", root) is not None
            todo += [(f"{target}.{what}", "", False), (target, "", False)] if inside else [(target, what, marked)]
    return found


def _needed(module: Module, wanted: str, *, marks: bool) -> dict[str, bool] | None:
    """Return the declarations of a module that one of its names uses, itself among them; None for the whole module.

    Each with whether decorators alone use it. An imported name is its own declaration: it stands for what is imported.
    Who uses a constant that a function fills needs all that calls the function, but a decorator may fill it for others.
    """
    known = module.declared
    imported = {local for scope, local, *_ in module.bindings if not scope}
    if known is None or wanted not in known.keys() | imported:
        return None
    needed, todo = dict[str, bool](), [(wanted, marks)]
    while todo:
        name, marked = todo.pop()
        if name in needed and needed[name] <= marked:
            continue
        needed[name] = marked
        if name in known:
            if known[name].is_filled and not marked:
                return None
            todo += [(used, marked) for used in known[name].uses]
            todo += [(used, True) for used in known[name].decorators]
    return needed


def _bindings_of(module: Module, name: str) -> tuple[Binding, ...]:
    """Return the imports inside a declaration, or the one that binds the name."""
    inner = f".{name}"
    return tuple(
        each
        for each in module.bindings
        if each[0] == inner or each[0].startswith(f"{inner}.") or (not each[0] and each[1] == name)
    )


def _fingerprint(used: Mapping[str, set[str] | None], root: Path) -> _Code:
    modules = {name: module for name in used if (module := _module(name, root)) is not None}
    texts, digests = set[str](), dict[str, str]()
    for name, module in modules.items():
        if (declared := used[name]) is None:
            parts = {"": (module.tree, module.bindings)}
        else:
            known = module.declared or {}
            parts = {f".{one}": (known[one].tree, _beside(module, one)) for one in declared if one in known}
        for inside, (tree, bindings) in parts.items():
            if module != _parsed(""):  # a folder's own
                texts.add("\n".join([tree, *(_meant(one, modules, root) for one in bindings)]))
            short = f"{name}{inside}".removeprefix(root.name).lstrip(".") or "__init__"
            digests[short] = _sha256(json.dumps([tree, bindings]))[:MODULE_DIGITS]
    return _Code(_sha256("\n\n".join([python_version(), *sorted(texts)]))[:16], digests)


def _beside(module: Module, name: str) -> tuple[Binding, ...]:
    """Return the imports that a declaration reads, its own and those of the module."""
    known, own = (module.declared or {})[name], _bindings_of(module, name)
    named = {*known.uses, *known.decorators}
    return (*own, *(each for each in module.bindings if not each[0] and each[1] in named))


def _meant(binding: Binding, modules: Mapping[str, Module], root: Path) -> str:
    """Return what a name stands for: something of one of these modules, wherever that lies, or of another package.

    Of modules that are not asked for, only the name counts.
    """
    scope, local, module, name = binding
    inside = f"{module}.{name}"
    if inside in modules:
        return f"{scope} {local} {modules[inside].tree}"
    if module in modules:
        declared = (modules[module].declared or {}).get(name)
        return f"{scope} {local} {declared.tree if declared else modules[module].tree} {name}"
    is_own = module.partition(".")[0] == root.name
    return f"{scope} {local} {name or module.rpartition('.')[2] if is_own else inside}"


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
    for base in (folder.joinpath(*parts[1:]) for folder in (members.roots() if root == PACKAGE else [root])):
        for path in (base.with_suffix(".py"), base / "__init__.py"):
            if path.is_file():
                return path
    return None


Binding = tuple[str, str, str, str]
"""A name that an import binds: in which function or class, the name, the module, the name there or nothing."""


class Declaration(NamedTuple):
    """A class, function or constant at the top level of a module.

    Attributes:
        tree: digest of its syntax tree without docstrings and imports.
        uses: names of the module's top level that it names, but for those of its decorators.
        decorators: those.
        is_filled: whether a function of the module changes what it holds.
    """

    tree: str
    uses: tuple[str, ...]
    decorators: tuple[str, ...]
    is_filled: bool


class Module(NamedTuple):
    """What a module's text says.

    Attributes:
        imports: dotted names of what may be modules.
        tree: digest of its syntax tree without docstrings and imports.
        bindings: what its imports bind, by scope and name; of one name in the order of the text.
        declared: by name, what stands in a module that only declares; None for one that does more.
    """

    imports: tuple[str, ...]
    tree: str
    bindings: tuple[Binding, ...]
    declared: Mapping[str, Declaration] | None = None


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
                self._known = {text: _remembered_module(*said) for text, said in known.items()}

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
            atomic.write_file(self._memory, lambda handle: handle.write(content.encode()))
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


def _remembered_module(imports: Any, tree: Any, bindings: Any, declared: Any) -> Module:
    return Module(
        tuple(map(str, imports)),
        str(tree),
        tuple((str(s), str(n), str(m), str(o)) for s, n, m, o in bindings),
        None if declared is None else {str(name): _remembered_declaration(*of) for name, of in declared.items()},
    )


def _remembered_declaration(tree: Any, uses: Any, decorators: Any, is_filled: Any) -> Declaration:
    return Declaration(str(tree), tuple(map(str, uses)), tuple(map(str, decorators)), bool(is_filled))


def _parsed(text: str) -> Module:
    tree = ast.parse(text)
    bindings = tuple(sorted(_bindings(tree, ""), key=lambda binding: binding[:2]))
    modules = [name for _, _, module, name in bindings for name in (module, f"{module}.{name}" if name else module)]
    whole = _stripped(tree)
    return Module(tuple(dict.fromkeys(modules)), _sha256(whole), bindings, _declared(tree, bindings))


def _declared(tree: ast.Module, bindings: tuple[Binding, ...]) -> dict[str, Declaration] | None:
    """Return what a stripped module declares; None unless it only declares."""
    own: dict[str, ast.stmt] = {}
    local = {name for scope, name, *_ in bindings if not scope}
    for statement in tree.body:
        names = _declares(statement)
        if not names or own.keys() & names or local & names:
            return None
        own |= dict.fromkeys(names, statement)
    finds = any(_finds_names(node) for node in ast.walk(tree))
    if finds or "__getattr__" in own or any(name == "*" for *_, name in bindings):
        return None
    known, filled = own.keys() | local, _filled(tree)
    found = {}
    for name, statement in own.items():
        decorators = getattr(statement, "decorator_list", [])
        marks = {word for each in decorators for word in _words(each)} & known
        uses = {word for node in ast.iter_child_nodes(statement) if node not in decorators for word in _words(node)}
        text = ast.dump(statement, annotate_fields=False)
        found[name] = Declaration(
            _sha256(PLACE.sub(rf"'{PACKAGE.name}.\1'", text)),
            tuple(sorted(uses & known - {name})),
            tuple(sorted(marks - {name})),
            name in filled,
        )
    return found


def _declares(statement: ast.stmt) -> set[str]:
    """Return the names that a statement declares; none if it does anything else."""
    match statement:
        case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            return {name}
        case ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]):
            return {name}
        case ast.Assign(targets=[ast.Tuple(elts=names)]) if all(isinstance(name, ast.Name) for name in names):
            return {ast.unparse(name) for name in names}
    return set()


def _finds_names(node: ast.AST) -> bool:
    match node:
        case ast.Name(id=word) | ast.Attribute(value=ast.Name(id="sys"), attr=word):
            return word in FINDS_NAMES
        case ast.Attribute(attr=word):
            return word in FINDS_NAMES - OF_NETWORKS
    return False


def _words(tree: ast.AST) -> set[str]:
    """Return all that may be names below a node; in quotes, those of annotations."""
    words = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            words.add(node.id)
        for annotation in filter(None, (getattr(node, "annotation", None), getattr(node, "returns", None))):
            quoted = [each.value for each in ast.walk(annotation) if isinstance(each, ast.Constant)]
            words.update(word for text in quoted if isinstance(text, str) for word in re.findall(r"\w+", text))
    return words


def _filled(tree: ast.AST) -> set[str]:
    """Return the names whose content some statement changes, or that a function binds anew."""
    filled = set[str]()
    for node in ast.walk(tree):
        match node:
            case ast.Subscript(value=ast.Name(id=name), ctx=ast.Store() | ast.Del()):
                filled.add(name)
            case ast.Attribute(value=ast.Name(id=name), ctx=ast.Store() | ast.Del()):
                filled.add(name)
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=method)) if method in FILLING:
                filled.add(name)
            case ast.AugAssign(target=ast.Name(id=name)):
                filled.add(name)
            case ast.Global(names=names):
                filled.update(names)
    return filled


def _bindings(node: ast.AST, scope: str) -> Iterator[Binding]:
    """Yield what the imports inside a node bind, but for those that only type checkers read."""
    if isinstance(node, ast.Import):
        first = {alias: alias.name.partition(".")[0] for alias in node.names}
        yield from ((scope, alias.asname or first[alias], alias.name, "") for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module:
        yield from ((scope, alias.asname or alias.name, node.module, alias.name) for alias in node.names)
    inner = f"{scope}.{node.name}" if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) else scope
    for field in BLOCKS[1:] if _only_checked(node) else BLOCKS:
        for statement in getattr(node, field, None) or ():
            yield from _bindings(statement, inner) if isinstance(statement, ast.AST) else ()


def _only_checked(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def _stripped(tree: ast.AST) -> str:
    """Return a syntax tree as text, and take docstrings and imports out, and what only type checkers read."""
    todo = [tree]
    while todo:
        node = todo.pop()
        for field in BLOCKS:
            block = getattr(node, field, None)
            if isinstance(block, list):
                setattr(node, field, [one for one in block if not _says_nothing(one)])
                todo.extend(getattr(node, field))
    return PLACE.sub(rf"'{PACKAGE.name}.\1'", ast.dump(tree, annotate_fields=False))


def _says_nothing(statement: ast.AST) -> bool:
    """Return whether a statement computes nothing: prose, an import, or for type checkers."""
    match statement:
        case ast.Import() | ast.ImportFrom() | ast.Expr(value=ast.Constant(value=str())):
            return True
        case ast.If(orelse=[]):
            return _only_checked(statement)
    return False
