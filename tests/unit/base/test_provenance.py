from __future__ import annotations

import ast
import math
import os
import re
import subprocess
import sys
from functools import cache
from importlib import import_module
from inspect import getsource
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from lever_pipe.base import provenance
from lever_pipe.base.provenance import (
    canonical_json,
    code_of,
    commit_of,
    engine_code,
    installed_versions,
)
from lever_pipe.experiment.identities import IDENTITIES

FILES = {
    "__init__.py": '"""The package."""\n',
    "stages/__init__.py": "",
    "stages/train.py": (
        '"""Train."""\n'
        "from typing import TYPE_CHECKING\n"
        "from fake.loss import sign\n"
        "if TYPE_CHECKING:\n"
        "    from fake.hints import Hint\n"
        "def train(*, x: int) -> int:\n"
        '    """Return x."""\n'
        "    from fake import late\n"
        "    return sign(late.late(x))\n"
    ),
    "loss.py": "import fake.deep\ndef sign(x):\n    # keep\n    return +fake.deep.one(x)\n",
    "deep.py": "def one(x):\n    return x\n",
    "late.py": "def late(x):\n    return x + 1\n",
    "hints.py": "class Hint: ...\n",
    "unrelated.py": "VALUE = 1\n",
    "registry.py": "KNOWN = {}\ndef known(of):\n    KNOWN[of.__name__] = of\n    return of\n",
    "samplers/__init__.py": "",
    "samplers/uniform.py": "def draw():\n    return 1\n",
    "samplers/nearest.py": "def draw():\n    return 2\n",
}


TRAIN = FILES["stages/train.py"].partition("Hint\n")[2]


@pytest.fixture(autouse=True)
def _forget_fingerprints() -> None:
    provenance._used_by_stage.cache_clear()
    provenance._module.cache_clear()
    provenance.stages.cache_clear()


def package(folder: Path, **changed: str) -> Path:
    """Write the package `fake`; a keyword like `stages__train` replaces `stages/train.py`."""
    root = folder / "fake"
    files = FILES | {f"{name.replace('__', '/')}.py": text for name, text in changed.items()}
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def fingerprint(folder: Path, plugins: tuple[str, ...] = (), **changed: str) -> str:
    return code_of("train", plugins, root=package(folder, **changed))


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, {"stages.train.train", "loss.sign", "deep", "late", "__init__"}),
        ({"deep": "import fake.loss\ndef one(x):\n    return x\n"}, {"deep", "loss"}),
        (
            {"stages__train": "if TYPE_CHECKING:\n    import fake.hints\nelse:\n    import fake.deep\n" + TRAIN},
            {"deep"},
        ),
        ({"stages__train": "import numpy, fakery.loss\ndef train(*, x):\n    return numpy\n"}, {"stages.train.train"}),
    ],
    ids=["late and deep", "a cycle", "the branch beside type checking", "names from elsewhere"],
)
def test_the_code_of_a_stage_is_told_by_module(tmp_path: Path, changed: dict[str, str], expected: set[str]) -> None:
    found = provenance.modules_of("train", root=package(tmp_path, **changed)).keys()
    assert expected <= found if changed else expected == found
    assert not {"hints", "unrelated"} & found


@pytest.mark.parametrize(
    "changed",
    [
        {"loss": FILES["loss.py"].replace("# keep", "# another remark")},
        {"loss": "import fake.deep\n\n\ndef sign( x ):\n    return (+fake.deep.one(\n        x))\n"},
        {"stages__train": FILES["stages/train.py"].replace("Return x.", "Return another.").replace("Train.", "T.")},
        {"deep": '"""Module."""\n\ndef one(x):\n    """Doc."""\n    return x\n'},
        {"unrelated": "VALUE = 2\n"},
        {"hints": "class Hint:\n    x = 1\n"},
        {"samplers__uniform": "def draw():\n    return 3\n"},
        {"stages__train": "from fake.loss import sign\nfrom typing import TYPE_CHECKING\n" + TRAIN},
        {"stages__train": "from typing import TYPE_CHECKING\nfrom fake.loss import sign\n" + TRAIN},
    ],
    ids=[
        *("comment", "formatting", "docstrings", "new docstring", "unrelated", "type checking", "no plugin"),
        *("order of imports", "hints"),
    ],
)
def test_what_changes_no_number_changes_no_fingerprint(tmp_path: Path, changed: dict[str, str]) -> None:
    assert fingerprint(tmp_path / "a") == fingerprint(tmp_path / "b", **changed)


@pytest.mark.parametrize(
    "changed",
    [
        {"loss": FILES["loss.py"].replace("+fake", "-fake")},
        {"deep": FILES["deep.py"].replace("return x", "return x * 2")},
        {"late": FILES["late.py"].replace("+ 1", "+ 2")},
        {
            "stages__train": FILES["stages/train.py"].replace(
                "from fake import late", "from fake import late, unrelated"
            )
        },
        {"loss": FILES["loss.py"].replace("def sign(x)", "def sign(x=1)")},
        {"deep": 'def one(x):\n    y = "text"\n    return x\n'},
        {"stages__train": FILES["stages/train.py"].replace("import sign", "import other as sign")},
        {"stages__train": FILES["stages/train.py"].replace("fake.loss import", "fake.deep import")},
        {"stages__train": FILES["stages/train.py"].replace("from fake import late", "from fake import deep as late")},
        {"stages__train": FILES["stages/train.py"].replace("from fake import late", "import numpy as late")},
    ],
    ids=[
        *("sign", "two imports away", "import in a function", "another import", "default", "text that is no docstring"),
        *("another name", "another module", "another module by its name", "another package"),
    ],
)
def test_what_may_change_a_number_changes_the_fingerprint(tmp_path: Path, changed: dict[str, str]) -> None:
    assert fingerprint(tmp_path / "a") != fingerprint(tmp_path / "b", **changed)


def test_two_functions_that_swap_what_they_import_change_the_fingerprint(tmp_path: Path) -> None:
    deep, late = "from fake.deep import one", "from fake.late import late as one"
    one, two = (
        f"def a():\n    {first}\n    return one\ndef train(*, x):\n    {second}\n    return one(a())\n"
        for first, second in ((deep, late), (late, deep))
    )
    assert fingerprint(tmp_path / "a", stages__train=one) != fingerprint(tmp_path / "b", stages__train=two)


def test_plugins_belong_to_the_code(tmp_path: Path) -> None:
    root = package(tmp_path / "a")
    prints = {code_of("train", plugins, root=root) for plugins in ((), ("samplers.uniform",), ("samplers.nearest",))}
    assert len(prints) == 3
    changed = fingerprint(tmp_path / "b", ("samplers.uniform",), samplers__uniform="def draw():\n    return 3\n")
    assert changed not in prints
    assert code_of("train", ("samplers.nearest",), root=tmp_path / "b" / "fake") in prints


def test_the_fingerprint_is_the_same_in_every_process() -> None:
    command = [sys.executable, "-c", "from lever_pipe.base.provenance import code_of; print(code_of('score_answers'))"]

    outputs = {
        subprocess.run(command, env=os.environ | {"PYTHONHASHSEED": seed}, capture_output=True, check=True).stdout
        for seed in ("0", "1")
    }
    assert outputs == {f"{code_of('score_answers')}\n".encode()}


def test_canonical_json_is_equal_for_equal_values() -> None:
    assert canonical_json({"b": 1, "a": [1.0, 1e-05]}) == '{"a":[1.0,1e-05],"b":1}'
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical_json(math.nan)


def test_the_commit_and_whether_tracked_files_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert commit_of(tmp_path) == ("unknown", False)

    def git(*words: str) -> str:
        identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
        done = subprocess.run(["git", *identity, "-C", tmp_path, *words], check=True, capture_output=True, text=True)
        return done.stdout.strip()

    git("init", "-q")
    (tmp_path / "a").write_text("1")
    git("add", "a")
    git("commit", "-qm", "first")
    head = git("rev-parse", "HEAD")
    assert commit_of(tmp_path) == (head, False)
    (tmp_path / "untracked").write_text("1")
    assert commit_of(tmp_path) == (head, False)
    (tmp_path / "a").write_text("2")
    assert commit_of(tmp_path) == (head, True)

    def too_slow(*_: object) -> str:
        raise subprocess.TimeoutExpired("git", 20)

    monkeypatch.setattr(provenance, "_git", too_slow)
    assert commit_of(tmp_path) == ("unknown", False)


def test_the_versions_that_can_move_a_number_are_recorded() -> None:
    versions = installed_versions()
    assert {"python", "torch", "numpy"} <= versions.keys()
    assert versions["python"].count(".") == 2


def test_the_code_of_an_engine_is_its_own_part_of_the_package(tmp_path: Path) -> None:
    def root(folder: str, engine: str, other: str) -> Path:
        project = tmp_path / folder / "fake"
        (project / "lvlms").mkdir(parents=True)
        (project / "lvlms/one.py").write_text("from fake.lvlms import _engine\nfrom fake import other\n")
        (project / "lvlms/_engine.py").write_text(engine)
        (project / "other.py").write_text(other)
        return project

    prints = [
        engine_code("fake.lvlms.one", root=root("a", "x = 1\n", "y = 1\n")),
        engine_code("fake.lvlms.one", root=root("b", "x = 1  # a remark\n", "y = 2\n")),
        engine_code("fake.lvlms.one", root=root("c", "x = -1\n", "y = 1\n")),
    ]
    assert prints[0] == prints[1] != prints[2]


DECLARING = (
    "from dataclasses import dataclass\n"
    "from fake.deep import one\n"
    "from fake.late import late\n"
    "from fake.registry import known\n"
    "LIMIT = 3\n"
    "@known\n"
    "class Base:\n"
    "    size: int = LIMIT\n"
    "    def check(self):\n"
    "        return one(self.size)\n"
    "@known\n"
    "class Train(Base):\n"
    "    kind: Kind = 1\n"
    "Kind = int\n"
    "@known\n"
    "class Other:\n"
    "    def check(self):\n"
    "        return late(1)\n"
)
USING = "from fake.settings import Train\ndef train(*, x: Train):\n    return x\n"


def declaring(folder: Path, old: str = "", new: str = "", *, settings: str = DECLARING, stage: str = USING) -> str:
    assert old in settings
    return fingerprint(folder, stages__train=stage, settings=settings.replace(old, new) if old else settings)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("return late(1)", "return late(2)"),
        ("class Other:", "class Further:\n    x = 1\nclass Other:"),
        ("import late\n", "import late\nimport fake.unrelated\n"),
        ("size: int = LIMIT\n", 'size: int = LIMIT\n    """How large."""\n'),
    ],
    ids=["another class", "a class more", "an import of another class", "a docstring"],
)
def test_what_a_stage_does_not_use_of_declarations_is_none_of_its_code(tmp_path: Path, old: str, new: str) -> None:
    assert declaring(tmp_path / "a") == declaring(tmp_path / "b", old, new)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("kind: Kind = 1", "kind: Kind = 2"),
        ("LIMIT = 3", "LIMIT = 4"),
        ("return one(self.size)", "return one(-self.size)"),
        ("Kind = int", "Kind = float"),
        ("import known\n", "import other as known\n"),
        ("import one\n", "import other as one\n"),
    ],
    ids=["itself", "a constant", "a base's method", "an annotation", "its decorator", "an import"],
)
def test_what_a_stage_uses_of_declarations_is_part_of_its_code(tmp_path: Path, old: str, new: str) -> None:
    assert declaring(tmp_path / "a") != declaring(tmp_path / "b", old, new)


@pytest.mark.parametrize(
    ("how", "settings", "stage"),
    [
        ("a statement that runs", DECLARING + "known(Other)\n", USING),
        ("a loop", DECLARING + "for name in (1, 2):\n    pass\n", USING),
        ("a name bound twice", DECLARING + "LIMIT = 4\n", USING),
        ("names by name", DECLARING.replace("return one(self.size)", "return globals()['one']"), USING),
        ("modules by name", DECLARING.replace("return one(self.size)", "return sys.modules['one']"), USING),
        ("everything is imported", DECLARING, "from fake.settings import *\n" + USING),
        ("the module is imported", DECLARING, "from fake import settings\ndef train(*, x: settings.Train): ...\n"),
        ("a registry that others fill", DECLARING + "KNOWN = {}\ndef keep(of):\n    KNOWN[1] = of\n", USING),
    ],
    ids=lambda value: value if " " in value and "\n" not in value else "",
)
def test_where_a_use_cannot_be_told_a_module_counts_whole(tmp_path: Path, how: str, settings: str, stage: str) -> None:
    other = ("return late(1)", "return late(2)")
    first = declaring(tmp_path / "a", settings=settings, stage=stage)
    assert declaring(tmp_path / "b", *other, settings=settings, stage=stage) != first, how


SHARED = (
    "from fake.deep import one\nfrom fake.late import late\n"
    "def train(*, x):\n    return both(x)\n"
    "def both(x):\n    return one(x)\n"
    "def judge(*, x):\n    return both(late(x))\n"
)


@pytest.mark.parametrize(
    ("old", "new", "changes"),
    [
        ("both(late(x))", "both(x)", {"judge"}),
        ("return one(x)", "return one(-x)", {"train", "judge"}),
        ("    return both(x)", "    return both(x + 1)", {"train"}),
        ("def judge", "def score(*, x):\n    return x\ndef judge", set()),
        ("import late\n", "import other as late\n", {"judge"}),
    ],
    ids=["the other", "what both call", "itself", "a stage more", "an import of the other"],
)
def test_stages_of_one_module_have_each_its_own_code(tmp_path: Path, old: str, new: str, changes: set[str]) -> None:
    roots = [package(tmp_path / n, stages__train=text) for n, text in (("a", SHARED), ("b", SHARED.replace(old, new)))]
    assert provenance.stages(roots[0]) == {"train": "fake.stages.train", "judge": "fake.stages.train"}
    assert {s for s in ("train", "judge") if code_of(s, root=roots[0]) != code_of(s, root=roots[1])} == changes


def test_the_code_of_declarations_is_told_by_name(tmp_path: Path) -> None:
    found = provenance.modules_of("train", root=package(tmp_path, stages__train=USING, settings=DECLARING))
    names = {name.removeprefix("settings.") for name in found if name.startswith("settings")}
    assert names == {"Train", "Base", "LIMIT", "Kind"}
    assert {"deep.one", "registry"} <= found.keys()
    assert "late.late" not in found


CONFIGS = ("config", "agent_config", "data_config", "evaluation_config", "grid_config", "lvlm_config", "rl_data_config")
DECLARED = [f"experiment.{n}" for n in (*CONFIGS, "stage_configs", "agent_stage_configs", "report_stage_configs")]
"""Modules whose classes become identities."""


@cache
def held(model: type[BaseModel]) -> set[str]:
    """Return the dependencies of a model such as `experiment.config.Grpo`: itself, its bases and all named models."""
    todo, found = [model], set[str]()
    while todo:
        one = todo.pop()
        name = f"{one.__module__.removeprefix('lever_pipe.')}.{one.__name__}"
        if name not in found:
            found.add(name)
            todo += named_by(one)
    return found


@cache
def named_by(model: type[BaseModel]) -> list[type[BaseModel]]:
    """Return the bases of a model, and the models that its fields and its source name."""
    found = [base for base in model.__mro__ if base.__module__.startswith("lever_pipe.experiment")]
    found += [each for field in model.model_fields.values() for each in _models_in(field.annotation)]
    others = vars(import_module(model.__module__))
    words = {node.id for node in ast.walk(ast.parse(getsource(model))) if isinstance(node, ast.Name)}
    return found + [others[word] for word in words if is_model(others.get(word))]


@cache
def words_in(path: Path) -> set[str]:
    return set(re.findall(r"\w+", path.read_text())) if path.is_file() else set()


def is_model(of: Any) -> bool:
    return isinstance(of, type) and issubclass(of, BaseModel)


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    return [annotation] if is_model(annotation) else [of for part in get_args(annotation) for of in _models_in(part)]


def test_each_class_of_the_configuration_is_code_of_the_stages_that_use_it_alone() -> None:
    """The fields of pydantic's models, against the syntax trees of each class and stage."""
    declaring = [vars(import_module(f"lever_pipe.{name}")) for name in DECLARED]
    models = {name: of for names in declaring for name, of in names.items() if is_model(of)}
    missed, needless, known = [], [], set[str]()
    for stage, identity in IDENTITIES.items():
        code = {name for name in provenance.modules_of(stage) if name.rpartition(".")[0] in DECLARED}
        code = {name for name in code if name.rpartition(".")[2] in models}
        modules = {location for name in provenance.modules_of(stage) for location in (name, name.rpartition(".")[0])}
        paths = [provenance.PACKAGE / f"{name.replace('.', '/')}.py" for name in modules - set(DECLARED)]
        named = models.keys() & {word for path in paths for word in words_in(path)}
        parts = held(identity.config) | {part for name in named for part in held(models[name])}
        missed += [(stage, name) for name in held(identity.config) - code if name.rpartition(".")[0] in DECLARED]
        needless += [(stage, name) for name in code - parts]
        known |= code
    assert (missed, needless) == ([], [])
    assert len(known) > 60


@pytest.mark.parametrize(
    ("changed", "libraries"),
    [
        ({}, ()),
        ({"deep": "import torch.nn\ndef one(x):\n    return x\n"}, ("torch",)),
        ({"late": "def late(x):\n    from tokenizers import Tokenizer\n    return x\n"}, ("tokenizers",)),
        ({"deep": "from transformers import AutoModel\n"}, ("tokenizers", "torch", "transformers")),
        ({"hints": "import torch\n", "unrelated": "import torch\n"}, ()),
        ({"deep": "import torchvision\n"}, ()),
    ],
    ids=["none", "two imports away", "in a function", "with its own", "not imported", "another of that beginning"],
)
def test_a_stage_computes_with_the_libraries_that_its_code_imports(
    tmp_path: Path, changed: dict[str, str], libraries: tuple[str, ...]
) -> None:
    provenance.libraries_of.cache_clear()
    assert provenance.libraries_of("train", root=package(tmp_path, **changed)) == libraries
