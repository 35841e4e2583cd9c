"""What an artefact's identity consists of: canonical config, code of its stage, digests of its models."""

from __future__ import annotations

import ast
import hashlib
import json
import subprocess
import sys
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).parent
RECORDED_PACKAGES = ("torch", "transformers", "tokenizers", "numpy", "pydantic", "safetensors", "snakemake")
SMALL_FILE_BYTES = 16_000_000
SAMPLE_BYTES = 1_000_000


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
        todo.extend(_imports_of(name, root))
    return sorted(seen)


def code_of(stage: str, members: tuple[str, ...] = (), *, root: Path = PACKAGE) -> str:
    """Return the fingerprint of a stage's code: a hash over the syntax trees of its import closure.

    Docstrings and comments are stripped, so prose costs no rerun while a changed sign does. `members` are the
    modules that the configuration selects by name (a sampler, an LVLM), as `samplers.uniform`.
    """
    return _code_of(stage, members, root)


def engine_code(member: str, *, root: Path = PACKAGE) -> str:
    """Return the fingerprint of a member's own part of the package: of all `lvlms`, say, that one of them imports.

    Answers that outlive a run are kept under it: what other code computed is not an answer of this code.
    """
    part = member.rpartition(".")[0]
    return _fingerprint([name for name in closure_of(member, root=root) if name.startswith(part)], root)


@cache
def _code_of(stage: str, members: tuple[str, ...], root: Path) -> str:
    package = root.name
    names = closure_of(f"{package}.stages.{stage}", tuple(f"{package}.{m}" for m in members), root=root)
    return _fingerprint(names, root)


def _fingerprint(names: list[str], root: Path) -> str:
    trees = [f"{name}\n{_stripped_tree(_require_path(name, root))}" for name in names]
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    return hashlib.sha256("\n".join([version, *trees]).encode()).hexdigest()[:16]


def model_identity(folder: str) -> str:
    """Return a digest of a model folder's files, or `absent`.

    Files beyond 16 MB are sampled (size, head, middle and tail), so that parsing a workflow stays fast; weights that
    differ in training differ in nearly every byte. Times do not enter, so a copied folder keeps its identity; nor do
    hidden files and folders, where download tools keep their notes.
    """
    root = Path(folder)
    if not root.is_dir():
        return "absent"
    digest = hashlib.sha256()
    for path in sorted(p for p in root.rglob("*") if p.is_file() and not _is_hidden(p.relative_to(root))):
        digest.update(f"{path.relative_to(root)}\0{path.stat().st_size}\0".encode())
        digest.update(_sample(path))
    return digest.hexdigest()[:16]


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


def _is_hidden(relative: Path) -> bool:
    return any(part.startswith(".") for part in relative.parts)


def _sample(path: Path) -> bytes:
    size = path.stat().st_size
    with path.open("rb") as handle:
        if size <= SMALL_FILE_BYTES:
            return hashlib.file_digest(handle, "sha256").digest()
        digest = hashlib.sha256()
        for offset in (0, size // 2, size - SAMPLE_BYTES):
            handle.seek(offset)
            digest.update(handle.read(SAMPLE_BYTES))
        return digest.digest()


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


def _imports_of(name: str, root: Path) -> list[str]:
    found: list[str] = []
    for node in _running_nodes(ast.parse(_require_path(name, root).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.extend(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.append(node.module)
            found.extend(f"{node.module}.{alias.name}" for alias in node.names)
    return found


def _running_nodes(tree: ast.AST) -> list[ast.AST]:
    nodes: list[ast.AST] = []
    for child in ast.iter_child_nodes(tree):
        never_runs = isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"
        branch = ast.Module(child.orelse, []) if never_runs else child  # type: ignore[attr-defined]
        nodes.append(branch)
        nodes.extend(_running_nodes(branch))
    return nodes


def _stripped_tree(path: Path) -> str:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and not isinstance(node, ast.Lambda | ast.IfExp):
            kept = [s for s in body if not _is_docstring(s)]
            node.body = kept  # type: ignore[attr-defined]
    return ast.dump(tree, annotate_fields=False)


def _is_docstring(statement: ast.stmt) -> bool:
    value = getattr(statement, "value", None)
    is_text = isinstance(value, ast.Constant) and isinstance(value.value, str)
    return isinstance(statement, ast.Expr) and is_text
