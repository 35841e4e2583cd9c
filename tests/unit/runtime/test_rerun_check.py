"""The check of an artifact against a job: complete or not, and the reasons."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import manifest_tree
import pytest
from snakemake.iocontainers import InputFiles, OutputFiles

from lever_pipe.base import provenance, storage
from lever_pipe.base.artefacts import Call, read_artefact
from lever_pipe.base.contents import Digests
from lever_pipe.base.provenance import canonical_json
from lever_pipe.base.records import Manifest
from lever_pipe.experiment.collected import InputsAlone
from lever_pipe.experiment.job_runtime import Runtime
from lever_pipe.experiment.manifests import carry_out
from lever_pipe.experiment.stage_files import External, Input, Inputs, Output, Outputs
from lever_pipe.runtime.reruns import check
from lever_pipe.runtime.reruns.check import is_complete, why_again
from lever_pipe.runtime.reruns.manifest import Differences, accept, code_differences, record_code, state_of

CONFIG = InputsAlone()
STAGE = "score_answers"


def score_answers(
    *, groups: Input, shards: Inputs, tables: Output, cells: Outputs, lvlm: External, config: InputsAlone
) -> None:
    """Make nothing: all files exist. The name is a stage's because it determines the fingerprint."""


@pytest.fixture
def call(tmp_path: Path) -> Call:
    """Return a call whose inputs, outputs and manifest exist."""
    inputs = {"groups": tmp_path / "groups", "shards": (tmp_path / "shard0", tmp_path / "shard1")}
    outputs = {"tables": tmp_path / "tables", "cells": (tmp_path / "cell0", tmp_path / "cell1")}
    for name in ("groups", "shard0", "shard1", "tables/a", "cell0", "cell1"):
        storage.write_text(tmp_path / name, name)
    manifest, given = tmp_path / "run.json", {"lvlm": tmp_path / "absent", **inputs, **outputs}
    carry_out(score_answers, manifest, config=CONFIG, runtime=Runtime(code="c"), **given)
    return Call(STAGE, CONFIG.model_dump(mode="json"), "c", inputs, outputs, manifest)


def delete(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).unlink()


def write(name: str, content: str, age_s: int = 0) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        (folder / name).write_text(content)
        os.utime(folder / name, (time.time() + age_s,) * 2)

    return change


FILES = {
    **{f"{name} is missing": delete(name) for name in ("groups", "shard1", "cell1", "run.json")},
    "an output folder is missing": lambda folder: ((folder / "tables/a").unlink(), (folder / "tables").rmdir()),
    **{
        f"{name} differs, {age} s later": write(name, "other", age)
        for name in ("groups", "shard1", "cell0", "tables/a")
        for age in (0, 60)
    },
    "the manifest is damaged": write("run.json", "{}"),
}
CALLS: dict[str, Callable[[Call, Path], dict[str, Any]]] = {
    "stage": lambda call, _: {"stage": "measure_pools"},
    "configuration": lambda call, _: {"config": {"x": 1}},
    "code": lambda call, _: {"code": "d"},
    "fewer inputs": lambda call, folder: {"inputs": call.inputs | {"shards": (folder / "shard0",)}},
    "more inputs": lambda call, folder: {"inputs": call.inputs | {"studies": (folder / "shard0",)}},
    "fewer outputs": lambda call, folder: {"outputs": {"tables": folder / "tables"}},
}


@pytest.mark.parametrize("change", FILES.values(), ids=FILES)
def test_other_files_are_another_artefact(call: Call, tmp_path: Path, change: Callable[[Path], object]) -> None:
    assert is_complete(call)
    change(tmp_path)
    assert not is_complete(call)


@pytest.mark.parametrize("change", CALLS.values(), ids=CALLS)
def test_another_call_makes_another_artefact(
    call: Call, tmp_path: Path, change: Callable[[Call, Path], dict[str, Any]]
) -> None:
    assert not is_complete(call._replace(**change(call, tmp_path)))
    assert is_complete(call._replace(inputs=call.inputs | {"studies": ()})), "an empty list is no file"


def test_two_values_that_change_places_are_another_configuration(call: Call) -> None:
    row = storage.read_row(call.manifest, Manifest).model_copy(update={"config": {"a": 1, "b": 2}})
    storage.write_row(call.manifest, row)
    assert is_complete(call._replace(config={"a": 1, "b": 2}))
    assert not is_complete(call._replace(config={"a": 2, "b": 1}))


@pytest.mark.parametrize(
    ("here", "is_same"), [("2.13.0", True), ("2.13.0+cu128", True), ("2.12.1", False), (None, True)]
)
def test_another_version_of_a_library_that_computed_is_another_artefact(
    call: Call, monkeypatch: pytest.MonkeyPatch, here: str | None, is_same: bool
) -> None:
    """Of a library that the manifest does not name, or that is not asked for, nothing is known."""
    row = storage.read_row(call.manifest, Manifest).model_copy(update={"versions": {"torch": "2.13.0+cpu"}})
    storage.write_row(call.manifest, row)
    versions = {"tokenizers": "9"} | ({} if here is None else {"torch": here})
    monkeypatch.setattr(check, "versions_for", lambda *_: versions)
    assert is_complete(call) == is_same
    assert is_complete(call, by_versions=False)


def test_versions_may_be_no_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "_rerun_on", {"versions": True})
    assert check.versions_for("measure_rewards", {}).keys() == {"torch"}
    assert check.versions_for("measure_pools", {}) == {}
    check.set_rerun_on_library_versions(False)
    assert check.versions_for("measure_rewards", {}) == {}


def test_a_planned_job_is_told_why_it_runs_again(call: Call, tmp_path: Path) -> None:
    def listed(files: dict[str, Any]) -> dict[str, Any]:
        return {name: str(of) if isinstance(of, Path) else list(map(str, of)) for name, of in files.items()}

    def why(code: str = "c", *, by_identity: bool = True) -> str:
        job = SimpleNamespace(
            rule=SimpleNamespace(name=STAGE),
            params=SimpleNamespace(spec=canonical_json({"config": call.config, "code": code})),
            input=InputFiles(fromdict=listed(dict(call.inputs))),
            output=OutputFiles(fromdict=listed({**call.outputs, "manifest": call.manifest})),
        )
        return why_again(job, by_identity)

    assert why() == ""
    assert why("d") == "changed: code"
    assert why("d", by_identity=False) == ""
    (tmp_path / "groups").write_text("other")
    assert why("d", by_identity=False) == why() == "input: groups"
    (tmp_path / "groups").write_text("groups")
    (tmp_path / "cell1").write_text("damage")
    assert why() == "damaged output"
    call.manifest.unlink()
    assert why() == "incomplete output"
    for name in ("tables/a", "cell0", "cell1"):
        (tmp_path / name).unlink()
    (tmp_path / "tables").rmdir()
    assert why() == "", "what was never made, Snakemake makes where somebody needs it"


class TestReplaced:
    MANIFEST, MADE = Path("results/made/run.json"), "results/made/made.txt"

    @pytest.fixture(autouse=True)
    def artefact(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        manifest_tree.write("results/read.txt", "read")
        outputs = {"made": (self.MADE, "made")}
        manifest_tree.make(str(self.MANIFEST), "stage", outputs, inputs={"read": "results/read.txt"})

    def state(self) -> Differences:
        return state_of(read_artefact(self.MANIFEST), Digests())

    def accept(self) -> None:
        accept(read_artefact(self.MANIFEST), self.state())

    def test_what_somebody_put_there_is_recorded(self) -> None:
        call = Call(
            "stage",
            {},
            manifest_tree.CODE,
            {"read": Path("results/read.txt")},
            {"made": Path(self.MADE)},
            self.MANIFEST,
        )
        manifest_tree.write(self.MADE, "somebody's", now=True)
        assert (list(self.state().replaced), self.state().damaged) == (["made"], ())
        assert not is_complete(call, by_versions=False)
        self.accept()
        assert json.loads(self.MANIFEST.read_text())["replaced"].keys() == {"made"}
        assert is_complete(call, by_versions=False)
        manifest_tree.write(self.MADE, "somebody's")  # at the time of the manifest
        assert self.state().damaged == ()
        manifest_tree.write(self.MADE, "damage")
        assert self.state().damaged == ("made",)
        manifest_tree.write(self.MADE, "made", now=True)
        assert not is_complete(call, by_versions=False), "its rule's own is not what is recorded"

    def test_a_manifest_that_a_job_wrote_meanwhile_stays_as_it_is(self) -> None:
        manifest_tree.write(self.MADE, "somebody's", now=True)
        found, state = read_artefact(self.MANIFEST), self.state()
        later = json.loads(self.MANIFEST.read_text()) | {"seconds": 77.0}
        self.MANIFEST.write_text(json.dumps(later))
        accept(found, state)
        assert json.loads(self.MANIFEST.read_text()) == later

    def test_a_path_that_no_file_can_have_makes_a_manifest_unreadable(self) -> None:
        row = json.loads(self.MANIFEST.read_text())
        row["paths"]["read"] = "results/\0"
        self.MANIFEST.write_text(json.dumps(row))
        assert read_artefact(self.MANIFEST).origin is None


PACKAGE = {
    "__init__.py": "",
    "stages/__init__.py": "",
    "stages/train.py": "from fake.loss import sign\ndef train(*, x):\n    return sign(x)\n",
    "loss.py": "def sign(x):\n    return +x\n",
    "extra.py": "VALUE = 1\n",
}


class TestCodeRecords:
    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        """Return a package with `results/code/*.json` recorded for the stage `train`."""
        for name, text in PACKAGE.items():
            self.edit(tmp_path / "fake", name, text)
        record_code(
            tmp_path / "results",
            "train",
            (),
            provenance.code_of("train", root=tmp_path / "fake"),
            root=tmp_path / "fake",
        )
        return tmp_path / "fake"

    def edit(self, root: Path, name: str, text: str) -> None:
        storage.write_text(root / name, text)
        provenance.modules_of.cache_clear()
        provenance._module.cache_clear()

    def differing(self, root: Path) -> list[str] | None:
        (record,) = (root.parent / "results/code").iterdir()
        return code_differences(root.parent / "results", record.stem, "train", (), root=root)

    def test_changed_and_other_modules_are_named(self, root: Path) -> None:
        assert self.differing(root) == []
        self.edit(root, "stages/train.py", "# why\n" + PACKAGE["stages/train.py"])
        self.edit(root, "loss.py", PACKAGE["loss.py"].replace("+x", "-x"))
        assert self.differing(root) == ["loss changed"]
        self.edit(root, "stages/train.py", "from fake.extra import VALUE\ndef train(*, x):\n    return x * VALUE\n")
        others = ["extra is imported now", "loss is not imported any more"]
        assert self.differing(root) == ["stages.train changed", *others]

    def test_another_python_is_named(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        then = provenance.python_version()
        monkeypatch.setattr(provenance, "python_version", lambda: "9.9")
        assert self.differing(root) == [f"Python {then} then, 9.9 now"]

    def test_a_record_is_never_of_other_code(self, root: Path) -> None:
        results, code = root.parent / "results", provenance.code_of("train", root=root)
        (results / f"code/{code}.json").unlink()
        self.edit(root, "loss.py", PACKAGE["loss.py"].replace("+x", "-x"))
        record_code(results, "train", (), code, root=root)
        assert list((results / "code").iterdir()) == [], "the modules are other ones now"

    @pytest.mark.parametrize("damage", ["", "{", '{"python": 3, "modules": {}}'])
    def test_a_record_that_cannot_be_read_is_none(self, root: Path, damage: str) -> None:
        (record,) = (root.parent / "results/code").iterdir()
        record.write_text(damage)
        assert self.differing(root) is None
