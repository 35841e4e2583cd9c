"""Completeness of artifacts, and checks of their manifests against their files."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import manifest_tree
import pytest

from lever_pipe.base import storage
from lever_pipe.base.contents import Digests
from lever_pipe.base.provenance import canonical_json
from lever_pipe.base.records import Manifest
from lever_pipe.experiment.collected import InputsAlone
from lever_pipe.experiment.job_runtime import Runtime
from lever_pipe.experiment.manifests import carry_out
from lever_pipe.experiment.stage_files import External, Input, Inputs, Output, Outputs
from lever_pipe.runtime.rerun import decision
from lever_pipe.runtime.rerun.artefacts import Artefact, read_artefact
from lever_pipe.runtime.rerun.decision import accept, check, is_complete, why_again

CONFIG = InputsAlone()
Files = dict[str, Path | tuple[Path, ...]]


def score_answers(
    *, groups: Input, shards: Inputs, tables: Output, cells: Outputs, lvlm: External, config: InputsAlone
) -> None:
    """Make nothing: all files exist. The name is a stage's because it determines the fingerprint."""


class TestCompleted:
    @pytest.fixture
    def files(self, tmp_path: Path) -> Files:
        """Write inputs, outputs and a manifest, and return the call's files."""
        files: Files = {
            "groups": tmp_path / "groups",
            "shards": (tmp_path / "shard0", tmp_path / "shard1"),
            "tables": tmp_path / "tables",
            "cells": (tmp_path / "cell0", tmp_path / "cell1"),
        }
        for name in ("groups", "shard0", "shard1", "tables/a", "cell0", "cell1"):
            storage.write_text(tmp_path / name, name)
        manifest, absent = tmp_path / "manifest", tmp_path / "absent"
        carry_out(score_answers, manifest, config=CONFIG, runtime=Runtime(code="c"), lvlm=absent, **files)
        return files | {"manifest": manifest}

    def is_complete(self, files: Files, **changes: Any) -> bool:
        identity = {"stage": score_answers.__name__, "config": CONFIG.model_dump(mode="json"), "code": "c"}
        return is_complete(Path(str(files["manifest"])), files, **(identity | changes))

    def test_made_is_what_this_call_would_make(self, files: Files) -> None:
        assert self.is_complete(files)
        for change in ({"stage": "t"}, {"config": {"x": 1}}, {"code": "d"}):
            assert not self.is_complete(files, **change), change

    def test_two_values_that_change_places_are_another_configuration(self, files: Files) -> None:
        manifest, config = Path(str(files["manifest"])), {"a": 1, "b": 2}
        storage.write_row(manifest, storage.read_row(manifest, Manifest).model_copy(update={"config": config}))
        assert self.is_complete(files, config=config)
        assert not self.is_complete(files, config={"a": 2, "b": 1})

    @pytest.mark.parametrize(
        ("here", "is_same"), [("2.13.0", True), ("2.13.0+cu128", True), ("2.12.1", False), (None, True)]
    )
    def test_another_version_of_a_library_that_computed_is_another_artefact(
        self, files: Files, here: str | None, is_same: bool
    ) -> None:
        """Of a library that the manifest does not name, or that is not asked for, nothing is known."""
        manifest = Path(str(files["manifest"]))
        origin = storage.read_row(manifest, Manifest)
        storage.write_row(manifest, origin.model_copy(update={"versions": {"torch": "2.13.0+cpu"}}))
        versions = {"tokenizers": "9"} | ({} if here is None else {"torch": here})
        assert self.is_complete(files, versions=versions) == is_same

    def test_versions_may_be_no_reason(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(decision, "_rerun_on", {"versions": True})
        assert decision.versions_for("measure_rewards", {}).keys() == {"torch"}
        assert decision.versions_for("measure_pools", {}) == {}
        decision.set_rerun_on_library_versions(False)
        assert decision.versions_for("measure_rewards", {}) == {}

    @pytest.mark.parametrize("missing", ["groups", "shard1", "tables/a", "cell1", "manifest"])
    def test_a_missing_file_is_made_again(self, tmp_path: Path, files: Files, missing: str) -> None:
        (tmp_path / missing).unlink()
        if missing == "tables/a":
            (tmp_path / "tables").rmdir()
        assert not self.is_complete(files)

    @pytest.mark.parametrize("age_s", [0, 60])
    @pytest.mark.parametrize("changed", ["groups", "shard1", "cell0", "tables/a"])
    def test_another_content_is_another_artefact(self, tmp_path: Path, files: Files, changed: str, age_s: int) -> None:
        """Files of any age: files that a user adds count once the manifest lists them."""
        (tmp_path / changed).write_text("other")
        os.utime(tmp_path / changed, (time.time() + age_s,) * 2)
        assert not self.is_complete(files)

    def test_what_somebody_put_there_counts_once_it_is_noted(self, tmp_path: Path, files: Files) -> None:
        (tmp_path / "cell0").write_text("somebody's")
        os.utime(tmp_path / "cell0", (time.time() + 60,) * 2)
        accept(check(read_artefact(tmp_path / "manifest"), Digests()))
        assert self.is_complete(files)
        (tmp_path / "cell0").write_text("cell0")
        assert not self.is_complete(files), "its rule's own is not what is noted"

    def test_a_planned_job_is_told_why_it_runs_again(self, tmp_path: Path, files: Files) -> None:
        from snakemake.iocontainers import Namedlist

        def listed(*names: str) -> Namedlist:
            found = Namedlist()
            for name in names:
                of, start = files[name], len(found)
                found.extend([str(of)] if isinstance(of, Path) else map(str, of))
                found._set_name(name, start, end=None if isinstance(of, Path) else len(found))
            return found

        def why(code: str = "c", *, by_identity: bool = True) -> str:
            spec = canonical_json({"config": CONFIG.model_dump(mode="json"), "code": code})
            job = SimpleNamespace(
                rule=SimpleNamespace(name=score_answers.__name__),
                params=SimpleNamespace(spec=spec),
                input=listed("groups", "shards"),
                output=listed("tables", "cells", "manifest"),
            )
            return why_again(job, by_identity)

        assert why() == ""
        assert why("d") == "of another code"
        assert why("d", by_identity=False) == ""
        (tmp_path / "groups").write_text("other")
        assert why("d", by_identity=False) == why() == "other content of groups"
        (tmp_path / "cell1").write_text("damage")
        assert why() == "damaged: cells[1]; other content of groups"
        (tmp_path / "manifest").unlink()
        assert why() == f"{tmp_path}/manifest cannot be read"
        for name in ("tables/a", "cell0", "cell1"):
            (tmp_path / name).unlink()
        (tmp_path / "tables").rmdir()
        assert why() == "", "what was never made, Snakemake makes where somebody needs it"

    def test_more_or_fewer_inputs_are_another_artefact(self, tmp_path: Path, files: Files) -> None:
        assert not self.is_complete(files | {"shards": (tmp_path / "shard0",)})
        assert not self.is_complete(files | {"shards": (tmp_path / "shard0", tmp_path / "shard1", tmp_path / "groups")})
        assert not self.is_complete(files | {"studies": (tmp_path / "shard0",)})  # a list that was empty before
        assert self.is_complete(files | {"studies": ()})

    def test_a_damaged_manifest_says_nothing(self, tmp_path: Path, files: Files) -> None:
        (tmp_path / "manifest").write_text("{}")
        assert not self.is_complete(files)


class TestWorth:
    MANIFEST = Path("results/made/run.json")

    @pytest.fixture(autouse=True)
    def artefact(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        manifest_tree.write("results/read.txt", "read")
        outputs = {"made": ("results/made/made.txt", "made")}
        manifest_tree.make(str(self.MANIFEST), "stage", outputs, inputs={"read": "results/read.txt"})

    def checked(self) -> Artefact:
        return check(read_artefact(self.MANIFEST), Digests())

    def test_what_is_missing_is_no_reason(self) -> None:
        for name in ("results/read.txt", "results/made/made.txt"):
            Path(name).unlink()
        assert (self.checked().missing, self.checked().reason) == (("made", "read"), "")

    def test_what_somebody_put_there_is_noted(self) -> None:
        manifest_tree.write("results/made/made.txt", "somebody's", now=True)
        found = self.checked()
        assert (list(found.replaced), found.reason) == (["made"], "")
        accept(found)
        assert json.loads(self.MANIFEST.read_text())["replaced"].keys() == {"made"}
        manifest_tree.write("results/made/made.txt", "somebody's")  # at the time of the manifest
        assert self.checked().reason == ""
        manifest_tree.write("results/made/made.txt", "damage")
        assert self.checked().reason == "damaged: made"

    def test_a_manifest_that_a_job_wrote_meanwhile_stays_as_it_is(self) -> None:
        manifest_tree.write("results/made/made.txt", "somebody's", now=True)
        found = self.checked()
        later = json.loads(self.MANIFEST.read_text()) | {"seconds": 77.0}
        self.MANIFEST.write_text(json.dumps(later))
        accept(found)
        assert json.loads(self.MANIFEST.read_text()) == later

    def test_a_path_that_no_file_can_have_makes_a_manifest_unreadable(self) -> None:
        row = json.loads(self.MANIFEST.read_text())
        row["paths"]["read"] = "results/\0"
        self.MANIFEST.write_text(json.dumps(row))
        assert self.checked().reason == f"{self.MANIFEST} cannot be read"
