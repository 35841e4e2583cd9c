from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lever_pipe.base import provenance
from lever_pipe.base.provenance import canonical_json, code_of, installed_versions, modules_of, stages

FILES = {
    "__init__.py": '"""The package."""\n',
    "stages/__init__.py": "",
    "stages/train.py": (
        '"""Train."""\n'
        "from typing import TYPE_CHECKING\n"
        "from fake.loss import sign\n"
        "from fake.config import Train, Judge\n"
        "if TYPE_CHECKING:\n"
        "    from fake.hints import Hint\n"
        "LIMIT = 3\n"
        "def train(*, x: Train) -> int:\n"
        '    """Return x."""\n'
        "    from fake import late\n"
        "    return both(late.late(x))\n"
        "def both(x):\n"
        "    return sign(x) + LIMIT\n"
        "def judge(*, x: Judge) -> int:\n"
        "    return both(other(x))\n"
        "def other(x):\n"
        "    return x\n"
    ),
    "config.py": "class Train: ...\nclass Judge: ...\n",
    "loss.py": "import fake.deep\ndef sign(x):\n    # keep\n    return +fake.deep.one(x)\n",
    "deep.py": "import fake.loss\ndef one(x):\n    return x\n",
    "late.py": "def late(x):\n    return x + 1\n",
    "hints.py": "class Hint: ...\n",
    "unrelated.py": "VALUE = 1\n",
    "samplers/uniform.py": "def draw():\n    return 1\n",
    "samplers/nearest.py": "def draw():\n    return 2\n",
}
STAGE = "stages/train.py"


@pytest.fixture(autouse=True)
def _forget_fingerprints() -> None:
    for cached in (provenance.modules_of, provenance._module, provenance.stages, provenance.libraries_of):
        cached.cache_clear()


def package(folder: Path, **changed: str) -> Path:
    """Write the package `fake`; a keyword like `stages__train` replaces `stages/train.py`."""
    root = folder / "fake"
    for name, text in (FILES | {f"{name.replace('__', '/')}.py": text for name, text in changed.items()}).items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def reruns(folder: Path, file: str, old: str, new: str) -> set[str]:
    """Return the stages that an edit of a file gives other code."""
    assert old in FILES[file]
    before, after = (package(folder / name) for name in ("a", "b"))
    (after / file).write_text(FILES[file].replace(old, new))
    return {stage for stage in stages(before) if code_of(stage, root=before) != code_of(stage, root=after)}


NOTHING, TRAIN, JUDGE, BOTH = set[str](), {"train"}, {"judge"}, {"train", "judge"}
EDITS = {
    "a comment": ("loss.py", "# keep", "# another remark", NOTHING),
    "formatting": ("loss.py", "sign(x)", "sign( x )", NOTHING),
    "docstrings": (STAGE, "Return x.", "Return another.", NOTHING),
    "a new docstring": ("deep.py", "return x", '"""Doc."""\n    return x', NOTHING),
    "a module that is not imported": ("unrelated.py", "1", "2", NOTHING),
    "a hint for type checkers": ("hints.py", "...", "x = 1", NOTHING),
    "a plugin that is not selected": ("samplers/uniform.py", "1", "3", NOTHING),
    "a stage more": (STAGE, "def judge", "def score(*, x):\n    return x\ndef judge", NOTHING),
    "an import for another stage": (STAGE, "Train, Judge", "Train, Judge, Score", NOTHING),
    "a module": ("loss.py", "+fake", "-fake", BOTH),
    "a module two imports away": ("deep.py", "return x", "return x * 2", BOTH),
    "a default": ("loss.py", "sign(x)", "sign(x=1)", BOTH),
    "a text that is no docstring": ("deep.py", "return x", 'y = "text"\n    return x', BOTH),
    "a class of a shared module": ("config.py", "Judge: ...", "Judge:\n    y = 1", BOTH),
    "a module of a function's import": ("late.py", "+ 1", "+ 2", TRAIN),
    "an import in a function": (STAGE, "from fake import late", "from fake import deep as late", TRAIN),
    "an import from another module": (STAGE, "fake.loss import", "fake.deep import", BOTH),
    "an import of another name": (STAGE, "import sign", "import other as sign", BOTH),
    "an import from another package": (STAGE, "from fake import late", "import numpy as late", TRAIN),
    "the stage itself": (STAGE, "return both(late", "return -both(late", TRAIN),
    "what another stage calls": (STAGE, "def other(x):\n    return x", "def other(x):\n    return -x", JUDGE),
    "what both call": (STAGE, "sign(x) +", "sign(x) -", BOTH),
    "a constant": (STAGE, "LIMIT = 3", "LIMIT = 4", BOTH),
    "a statement that binds nothing": (STAGE, "LIMIT = 3\n", "LIMIT = 3\nprint(1)\n", BOTH),
}


@pytest.mark.parametrize(("file", "old", "new", "expected"), EDITS.values(), ids=EDITS)
def test_an_edit_changes_the_code_of_exactly_these_stages(
    tmp_path: Path, file: str, old: str, new: str, expected: set[str]
) -> None:
    assert reruns(tmp_path, file, old, new) == expected


def test_the_code_of_a_stage_is_its_modules(tmp_path: Path) -> None:
    found = modules_of("train", ("samplers.uniform",), root=package(tmp_path))
    assert found.keys() == {
        f"fake.{n}" for n in ("stages.train", "config", "loss", "deep", "late", "samplers.uniform")
    } | {"fake"}


def test_plugins_belong_to_the_code(tmp_path: Path) -> None:
    root = package(tmp_path / "a")
    assert len({code_of("train", p, root=root) for p in ((), ("samplers.uniform",), ("samplers.nearest",))}) == 3
    other = package(tmp_path / "b", samplers__uniform="def draw():\n    return 3\n")
    for name, is_same in (("uniform", False), ("nearest", True)):
        codes = {code_of("train", (f"samplers.{name}",), root=each) for each in (root, other)}
        assert (len(codes) == 1) == is_same


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


def test_the_versions_that_can_move_a_number_are_recorded() -> None:
    assert {"python", "torch", "numpy"} <= installed_versions().keys()


SETTINGS = {
    "initialise_selector": {"selector"},
    "train_sft_epoch": {"selector", "sft"},
    "train_rce_epoch": {"selector", "rce", "reward"},
    "train_grpo_epoch": {"selector", "grpo", "reward"},
    "train_on_policy_epoch": {"selector", "on_policy", "reward", "lvlm"},
    "train_distil_epoch": {"selector", "distil"},
    "select_demonstrations": {"selections", "selector"},
    "generate_rl_data": {"rl_data", "lvlm"},
    "prepare_tasks": {"agent_tasks"},
    "evaluate_served": {"agent_evaluation", "agent_model", "agent_training", "environment", "served_agents"},
}
SHARED = {"environment", "execution", "job_runtime", "stage_files"}


@pytest.mark.parametrize(("stage", "expected"), SETTINGS.items())
def test_a_stage_depends_on_the_configuration_of_its_subject_alone(stage: str, expected: set[str]) -> None:
    """A changed default of GRPO reruns GRPO, not RCE."""
    found = {name.rpartition(".")[2] for name in modules_of(stage) if name.startswith("lever_pipe.experiment.")}
    assert found - SHARED == expected - SHARED


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
    assert provenance.libraries_of("train", root=package(tmp_path, **changed)) == libraries
