"""Find the modules of a fingerprint that differ from the record of the plan."""

from __future__ import annotations

from pathlib import Path

import pytest

from lever_pipe.base import provenance
from lever_pipe.runtime.rerun import explain

FILES = {
    "__init__.py": "",
    "stages/__init__.py": "",
    "stages/train.py": "from fake.loss import sign\ndef train(*, x):\n    return sign(x)\n",
    "loss.py": "def sign(x):\n    return +x\n",
    "extra.py": "VALUE = 1\n",
    "samplers/__init__.py": "",
    "samplers/uniform.py": "def draw():\n    return 1\n",
}


@pytest.fixture(autouse=True)
def _forget_fingerprints() -> None:
    provenance.modules_of.cache_clear()
    provenance._module.cache_clear()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a package with `results/code/*.json` recorded for the stage `train`."""
    root = tmp_path / "fake"
    for name, text in FILES.items():
        edit(root, name, text)
    code = provenance.code_of("train", root=root)
    explain.record_code(tmp_path / "results", "train", (), code, root=root)
    (tmp_path / "then").write_text(code)
    return root


def edit(root: Path, name: str, text: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)
    provenance.modules_of.cache_clear()
    provenance._module.cache_clear()


def differing(root: Path) -> list[str] | None:
    then = (root.parent / "then").read_text()
    return explain.code_differences(root.parent / "results", then, "train", (), root=root)


def test_the_same_code_differs_in_nothing(root: Path) -> None:
    assert differing(root) == []


def test_a_changed_sign_is_named_and_a_comment_is_not(root: Path) -> None:
    edit(root, "stages/train.py", "# why\n" + FILES["stages/train.py"])
    edit(root, "loss.py", FILES["loss.py"].replace("+x", "-x"))
    assert differing(root) == ["loss.sign changed"]


def test_a_module_that_is_imported_now_or_not_any_more_is_named(root: Path) -> None:
    edit(root, "stages/train.py", "from fake.extra import VALUE\ndef train(*, x):\n    return x * VALUE\n")
    assert differing(root) == [
        "stages.train.train changed",
        "extra.VALUE is imported now",
        "loss.sign is not imported any more",
    ]


def test_another_python_is_named(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    then = provenance.python_version()
    monkeypatch.setattr(provenance, "python_version", lambda: "9.9")
    assert differing(root) == [f"Python {then} then, 9.9 now"]


def test_a_record_is_written_once_and_never_of_other_code(root: Path) -> None:
    results, code = root.parent / "results", (root.parent / "then").read_text()
    path = results / explain.CODE_FOLDER / f"{code}.json"
    before = path.stat().st_mtime_ns, path.read_bytes()
    explain.record_code(results, "train", (), code, root=root)
    assert (path.stat().st_mtime_ns, path.read_bytes()) == before
    path.unlink()
    edit(root, "loss.py", FILES["loss.py"].replace("+x", "-x"))
    explain.record_code(results, "train", (), code, root=root)
    assert list(path.parent.iterdir()) == [], "the modules are other ones now"


@pytest.mark.parametrize("damage", ["", "{", '{"python": "3.11"}', '{"python": 3, "modules": {}}'])
def test_a_record_that_cannot_be_read_is_none(root: Path, damage: str) -> None:
    code = (root.parent / "then").read_text()
    (root.parent / "results" / explain.CODE_FOLDER / f"{code}.json").write_text(damage)
    assert differing(root) is None
