"""The package never executes its inputs: checked by syntax, so that names in comments do not count."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = sorted((ROOT / "lever_pipe").rglob("*.py"))
RULES = [ROOT / "Snakefile", ROOT / "workflow/Snakefile", *sorted((ROOT / "workflow").rglob("*.smk"))]

FORBIDDEN_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "tarfile", "zipfile"}
FORBIDDEN_CALLS = {
    "eval", "exec", "compile", "__import__", "os.system", "os.popen", "subprocess.getoutput",
    "subprocess.getstatusoutput", "torch.load", "torch.save", "torch.hub.load", "np.load", "numpy.load",
    "yaml.unsafe_load", "yaml.full_load", "yaml.load_all", "pd.read_pickle", "pandas.read_pickle",
    "pd.eval", "shutil.unpack_archive", "runpy.run_path", "tempfile.mktemp",
}  # fmt: skip
ALLOWED = {"lever_pipe/commands/convert_tool.py": ["torch.load"]}
"""Exceptions: `convert`, which no stage imports, reads .bin weights."""
# SafeLoaders that refuse repeated keys, and the library's compiled one, which makes plain values alone as they do.
SAFE_LOADERS = {"_Strict", "_Reader", "_WordReader", "yaml.CSafeLoader"}


def dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else "?"


def problems(tree: ast.AST) -> Iterator[str]:
    """Yield a module's operations that could execute its input."""
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
        if isinstance(node, ast.ImportFrom):
            names = [node.module or "", *(f"{node.module}.{name}" for name in names)]
        yield from (name for name in names if name.split(".")[0] in FORBIDDEN_MODULES or name in FORBIDDEN_CALLS)
        if isinstance(node, ast.Call):
            yield from _of_call(node)


def _of_call(node: ast.Call) -> Iterator[str]:
    name = dotted(node.func)
    keywords = {keyword.arg: keyword.value for keyword in node.keywords}
    if name in FORBIDDEN_CALLS or name.endswith((".read_pickle", ".to_pickle")):
        yield name
    if name.endswith("yaml.load") and dotted(keywords.get("Loader", node)) not in SAFE_LOADERS:
        yield name
    for argument in ("shell", "trust_remote_code", "allow_pickle"):
        value = keywords.get(argument)
        if value is not None and not (isinstance(value, ast.Constant) and value.value is False):
            yield argument


def test_no_module_executes_what_it_reads() -> None:
    assert len(MODULES) > 250
    found = {str(path.relative_to(ROOT)): [*problems(ast.parse(path.read_text(encoding="utf-8")))] for path in MODULES}
    assert {path: names for path, names in found.items() if names} == ALLOWED


def test_the_one_call_of_torch_load_builds_tensors_only() -> None:
    (path,) = ALLOWED
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    (call,) = [n for n in ast.walk(tree) if isinstance(n, ast.Call) and dotted(n.func) == "torch.load"]
    keywords = {keyword.arg: keyword.value for keyword in call.keywords}
    only = keywords["weights_only"]
    assert isinstance(only, ast.Constant)
    assert only.value is True
    assert "pickle_module" not in keywords


@pytest.mark.parametrize("path", RULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_rule_executes_what_it_reads(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    found = re.findall(r"\b((?:eval|exec)\s*\(|os\.system|pickle|torch\.load|subprocess|trust_remote_code)\b", text)
    assert found == []
    assert not re.search(r"^\s+(run|script|notebook|wrapper):", text, re.MULTILINE)


@pytest.mark.parametrize(
    "text",
    [
        "import pickle", "from pickle import loads", "import os\nos.system('x')", "from os import system", "eval('1')",
        "import torch\ntorch.load('x')", "yaml.load('x', Loader=yaml.Loader)", "yaml.load('x')",
        "from subprocess import run\nrun('x', shell=True)", "AutoModel.from_pretrained('x', trust_remote_code=flag)",
        "import numpy as np\nnp.load('x')", "frame.to_pickle('x')", "import zipfile", "load(x, allow_pickle=True)",
    ],
)  # fmt: skip
def test_the_scan_sees_each_way(text: str) -> None:
    assert list(problems(ast.parse(text)))
