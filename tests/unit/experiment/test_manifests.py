from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from lever_pipe.base import contents, numerics, storage
from lever_pipe.base.errors import RecordError
from lever_pipe.base.provenance import code_of
from lever_pipe.base.records import Manifest
from lever_pipe.experiment import execution, manifests
from lever_pipe.experiment.collected import InputsAlone
from lever_pipe.experiment.job_runtime import Runtime
from lever_pipe.experiment.manifests import carry_out, files_of_manifest, start_model
from lever_pipe.experiment.selections import SelectBaselineConfig
from lever_pipe.experiment.stage_files import Declared, External, Input, Inputs, Output, Outputs, Role, State, declared

CONFIG = SelectBaselineConfig(baseline="oracle", shots=2, seed=1)
RUNTIME = Runtime(device="cuda", threads=3)


def select_baseline(
    *,
    a: Input,
    b: Inputs,
    folder: Input,
    lvlm: External,
    state: State,
    artefacts: Output,
    cells: Outputs,
    config: SelectBaselineConfig,
    runtime: Runtime,
) -> list[Any]:
    """Write the outputs and the state; return the arguments of the call."""
    storage.write_text(state / "step", "1")
    for path in (artefacts, *cells):
        storage.write_text(path, path.name)
    return [a, b, folder, lvlm, config, runtime]


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Any]:
    for name in ("a", "b0", "b1", "folder/x"):
        storage.write_text(tmp_path / name, name)
    several = {name: (tmp_path / f"{name}0", tmp_path / f"{name}1") for name in ("b", "cells")}
    return several | {name: tmp_path / name for name in ("a", "folder", "lvlm", "state", "artefacts")}


def test_a_signature_says_what_each_file_is() -> None:
    found = declared(select_baseline)
    assert list(found) == ["a", "b", "folder", "lvlm", "state", "artefacts", "cells"]
    assert found["b"] == Declared(Role.INPUT, several=True)
    assert found["artefacts"] == Declared(Role.OUTPUT, several=False)
    assert (found["lvlm"].role, found["state"].role) == (Role.EXTERNAL, Role.STATE)


def test_a_manifest_says_how_an_artefact_came_to_be(tmp_path: Path, files: dict[str, Any]) -> None:
    given = carry_out(select_baseline, tmp_path / "manifest", config=CONFIG, runtime=RUNTIME, **files)
    assert given == [*(files[name] for name in ("a", "b", "folder", "lvlm")), CONFIG, RUNTIME]
    manifest = storage.read_row(tmp_path / "manifest", Manifest)
    assert SelectBaselineConfig.model_validate(manifest.config) == CONFIG
    read = {"a": "a", "b[0]": "b0", "b[1]": "b1", "folder": "folder"}
    artefacts = {"artefacts": "artefacts", "cells[0]": "cells0", "cells[1]": "cells1"}
    for recorded, names in ((manifest.inputs, read), (manifest.outputs, artefacts)):
        assert recorded == {name: contents.digest(tmp_path / path) for name, path in names.items()}
    assert manifest.paths == {
        name: str(tmp_path / path) for name, path in {**read, **artefacts, "manifest": "manifest"}.items()
    }
    assert (manifest.stage, manifest.device, manifest.threads, manifest.replaced) == ("select_baseline", "cuda", 3, {})
    assert manifest.code == code_of("select_baseline")
    assert "numerics" not in manifest.versions  # of a GPU
    assert 0 <= manifest.seconds < 60
    assert (tmp_path / "manifest").stat().st_mtime_ns >= (tmp_path / "cells1").stat().st_mtime_ns


def test_a_manifest_without_files_or_runtime(tmp_path: Path) -> None:
    def merge_rl_data(*, config: InputsAlone) -> None: ...

    carry_out(merge_rl_data, tmp_path / "manifest", config=InputsAlone())
    manifest = storage.read_row(tmp_path / "manifest", Manifest)
    assert (manifest.config, manifest.inputs, manifest.outputs) == ({}, {}, {})
    assert manifest.versions["numerics"] == numerics.path()


def test_a_state_goes_when_the_manifest_stands(
    tmp_path: Path, files: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(storage, "write_row", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            carry_out(select_baseline, tmp_path / "manifest", config=CONFIG, **files)
    assert (tmp_path / "state" / "step").exists()
    carry_out(select_baseline, tmp_path / "manifest", config=CONFIG, **files)
    assert not [path for path in tmp_path.iterdir() if path.name == "state" or path.suffix == ".tmp"]


def test_an_input_that_is_exchanged_meanwhile_is_refused(tmp_path: Path, files: dict[str, Any]) -> None:
    def select_baseline(*, a: Input, artefacts: Output, config: SelectBaselineConfig) -> None:
        artefacts.write_text(a.read_text())
        a.write_text("other")

    own = {name: files[name] for name in ("a", "artefacts")}
    storage.write_text(tmp_path / "manifest", "of an earlier call")
    with pytest.raises(RecordError, match=r"a: expected the content that input 'a' had when this stage began"):
        carry_out(select_baseline, tmp_path / "manifest", config=CONFIG, **own)
    assert not (tmp_path / "manifest").exists()


def test_a_policy_is_an_input_if_a_rule_made_it(tmp_path: Path) -> None:
    def train_agent(*, start: Inputs) -> None: ...

    files = (tmp_path / "config.json", tmp_path / "model.safetensors")
    for path in files:
        path.touch()
    assert files_of_manifest(train_agent, {"start": files}) == ({"start[0]": files[0], "start[1]": files[1]}, {})
    assert files_of_manifest(train_agent, {"start": (tmp_path,)}) == ({}, {})
    assert (start_model({"start": (tmp_path,)}), start_model({"start": files})) == (tmp_path, None)
    assert start_model({}) is None


def test_a_process_has_its_threads_and_deterministic_kernels() -> None:
    assert execution.prepare(Runtime(threads=2)) == torch.device("cpu")
    assert torch.get_num_threads() == 2
    assert torch.are_deterministic_algorithms_enabled()
    assert not torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]


def test_the_commit_and_whether_tracked_files_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert manifests.commit_of(tmp_path) == ("unknown", False)

    def git(*words: str) -> str:
        identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
        done = subprocess.run(["git", *identity, "-C", tmp_path, *words], check=True, capture_output=True, text=True)
        return done.stdout.strip()

    git("init", "-q")
    (tmp_path / "a").write_text("1")
    git("add", "a")
    git("commit", "-qm", "first")
    head = git("rev-parse", "HEAD")
    assert manifests.commit_of(tmp_path) == (head, False)
    (tmp_path / "untracked").write_text("1")
    assert manifests.commit_of(tmp_path) == (head, False)
    (tmp_path / "a").write_text("2")
    assert manifests.commit_of(tmp_path) == (head, True)

    def too_slow(*_: object) -> str:
        raise subprocess.TimeoutExpired("git", 20)

    monkeypatch.setattr(manifests, "_git", too_slow)
    assert manifests.commit_of(tmp_path) == ("unknown", False)
