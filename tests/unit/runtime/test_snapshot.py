"""A job computes what its invocation planned, with the configuration of that hour, or refuses."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from snakemake.utils import update_config

from lever_pipe.base import plugins, provenance
from lever_pipe.base.errors import SnapshotError
from lever_pipe.base.provenance import code_of
from lever_pipe.experiment.studies import Experiment, parse_experiment
from lever_pipe.runtime import invocation, plan, snapshot

ROOT = Path(__file__).parents[3]
CONFIGS = ((), ("config/smoke.yaml",), ("config/okvqa_qwen2_5_vl_3b.yaml",), ("config/intention_qwen3_8b.yaml",))


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(snapshot.VARIABLE, "")  # undo changes of the variable after the test
    monkeypatch.delenv(snapshot.VARIABLE)


def experiment(*files: str) -> Experiment:
    values: dict[str, object] = {}
    for name in ("config.yaml", *files):
        update_config(values, yaml.safe_load((ROOT / name).read_text()))
    return parse_experiment(values)


def frozen(folder: Path, config: dict[str, object] | None = None, **specs: str) -> Path:
    """Freeze a plan of one job a stage, whose manifest is called as the stage is."""
    return snapshot.save(
        config or {"seed": 1}, {name: (name, spec) for name, spec in specs.items()}, ROOT, folder=folder
    )


@pytest.mark.parametrize("files", CONFIGS)
def test_the_resolved_configuration_comes_back_as_the_same_experiment(tmp_path: Path, files: tuple[str, ...]) -> None:
    """Through JSON and back: every identity of a job stays the same text."""
    before = experiment(*files)
    frozen(tmp_path, before.model_dump(mode="json"))
    after = parse_experiment(snapshot.load_config(ROOT))
    assert after == before
    wildcards = {
        "preset": before.arms[0].preset,
        "seed": "0",
        "epoch": "1",
        "base": "5",
        "beta": "0.15",
        "split": "train",
    }
    wildcards |= {"arm": before.intention.arms[0].name}
    for stage in ("train_grpo_epoch", "sample_pools", "train_agent"):
        assert plan.spec_of(after, stage, wildcards) == plan.spec_of(before, stage, wildcards)


def test_a_planned_job_gets_its_identity_and_every_other_is_refused(tmp_path: Path) -> None:
    plan_of = {'a "b"/run.json': ("train_rce_epoch", '{"epoch":1}'), "é.run.json": ("train_rce_epoch", '{"epoch":2}')}
    snapshot.save({}, plan_of, ROOT, folder=tmp_path)
    for manifest, (stage, spec) in plan_of.items():
        assert snapshot.planned_spec(stage, manifest) == spec
        for other in ((stage, manifest[:-1]), (stage, ""), ("train", manifest)):
            with pytest.raises(SnapshotError, match=f"{other[0]}: expected a job of a run"):
                snapshot.planned_spec(*other)


def test_a_job_without_snapshot_refuses(tmp_path: Path) -> None:
    with pytest.raises(SnapshotError, match=snapshot.VARIABLE):
        snapshot.load_config(ROOT)
    frozen(tmp_path).unlink()
    with pytest.raises(SnapshotError, match="all nodes share"):
        snapshot.load()


def test_edited_rules_refuse(tmp_path: Path) -> None:
    rules = tmp_path / "workflow/rules"
    rules.mkdir(parents=True)
    (tmp_path / "workflow/Snakefile").write_text("include: 'rules/a.smk'\n")
    (rules / "a.smk").write_text("rule a: shell: 'one'\n")
    snapshot.save({"a": 1}, {}, tmp_path, folder=tmp_path / "selected")
    assert snapshot.load_config(tmp_path) == {"a": 1}
    snapshot.workflow_digest.cache_clear()  # a job is another process
    (rules / "a.smk").write_text("rule a: shell: 'two'\n")
    with pytest.raises(SnapshotError, match="rules"):
        snapshot.load_config(tmp_path)


def test_a_snapshot_is_named_by_its_content(tmp_path: Path) -> None:
    first = frozen(tmp_path, a="x", b="y")
    os.utime(first, (0, 0))
    assert frozen(tmp_path, b="y", a="x") == first
    assert first.stat().st_mtime > 0  # equal to the time of the last plan
    assert frozen(tmp_path, a="x") != first
    last = frozen(tmp_path, {"seed": 2}, a="x")
    assert os.environ[snapshot.VARIABLE] == str(last)


def test_jobs_without_identity_are_not_planned() -> None:
    def job(rule: str, **params: str) -> SimpleNamespace:
        of = {"params": SimpleNamespace(**params), "output": SimpleNamespace(manifest=f"{rule}.run.json")}
        return SimpleNamespace(rule=SimpleNamespace(name=rule), **of)

    assert snapshot.planned([job("a", spec="1"), job("all")]) == {"a.run.json": ("a", "1")}


def workflow(*, is_main: bool) -> SimpleNamespace:
    return SimpleNamespace(
        is_main_process=is_main,
        configfiles=[],
        config_settings=SimpleNamespace(config_args=None, configfiles=[], replace_workflow_config=False),
        modifier=SimpleNamespace(skip_configfile=False),
    )


class TestStageCalls:
    """`python -m lever_pipe stage NAME` in a copy of the package that is edited after the snapshot was taken."""

    @pytest.fixture
    def project(self, tmp_path: Path) -> Path:
        import shutil

        shutil.copytree(ROOT / "lever_pipe", tmp_path / "lever_pipe", ignore=shutil.ignore_patterns("__pycache__"))
        (tmp_path / "workflow").mkdir()
        (tmp_path / "workflow/Snakefile").touch()
        probe = """
import json, sys
from pathlib import Path
from lever_pipe.runtime import snapshot, plan
from lever_pipe.experiment.studies import Experiment
from lever_pipe.base.provenance import canonical_json, code_of
spec = plan.spec_of(Experiment(), "merge_rl_data", {})
print(snapshot.save({}, {"manifest": ("merge_rl_data", spec)}, Path()))
"""
        done = self.python(tmp_path, "-c", probe)
        (tmp_path / "snapshot").write_text(done.stdout.strip())
        return tmp_path

    @staticmethod
    def python(folder: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        own = os.environ | {"PYTHONPATH": str(folder)} | environment
        command = [sys.executable, *words]
        return subprocess.run(command, cwd=folder, env=own, capture_output=True, text=True, check=False)

    def call(self, project: Path) -> str:
        names = ("trajectories", "train_pools", "train_examples", "rl_data", "summary", "manifest")
        words = ("-m", "lever_pipe", "stage", "merge_rl_data", *(f"{name}={name}" for name in names))
        return self.python(project, *words, **{snapshot.VARIABLE: (project / "snapshot").read_text()}).stderr

    def edit(self, project: Path, name: str, text: str) -> None:
        path = project / "lever_pipe" / name
        path.write_text(path.read_text() + text)

    def test_only_edited_code_of_this_stage_is_refused(self, project: Path) -> None:
        self.edit(project, "lever/trajectories.py", "\n# A remark.\n")
        self.edit(project, "losses/kl.py", "\nUNUSED = 1\n")
        assert "expected a file" in self.call(project)
        self.edit(project, "stages/rl_data.py", "\nif True:\n    RUNS = 1\n")
        text = self.call(project)
        assert "SnapshotError: merge_rl_data: expected code" in text
        assert snapshot.PLAN_AGAIN in text


class TestRememberedCodes:
    """A process parses the package only if the sources differ from the cached ones."""

    @pytest.fixture(autouse=True)
    def _nothing_known(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(snapshot, "_codes", {})
        monkeypatch.delenv(plugins.VARIABLE, raising=False)

    def remembered(self, folder: Path) -> Path:
        memory = folder / "below" / "codes.json"
        snapshot._codes["compare_arms"] = snapshot.StageCode("of-before", ("torch",))
        snapshot.remember_codes(memory)
        snapshot._codes.clear()
        return memory

    def test_the_same_sources_have_the_same_code(self, tmp_path: Path) -> None:
        snapshot.recall_codes(self.remembered(tmp_path))
        assert snapshot.code_of("compare_arms", ()) == ("of-before", ("torch",))

    @pytest.mark.parametrize("changed", ["a source", "Python", "plugins beside", "damage", "nothing"])
    def test_others_are_parsed(self, changed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        memory = self.remembered(tmp_path)
        if changed == "a source":
            monkeypatch.setattr(snapshot, "package_digest", lambda: "another")
        elif changed == "Python":
            monkeypatch.setattr(provenance, "python_version", lambda: "3.99")
        elif changed == "plugins beside":
            monkeypatch.setattr(plugins, "roots", lambda: [plugins.PACKAGE, tmp_path])
        elif changed == "damage":
            memory.write_bytes(memory.read_bytes()[:-9])
        else:
            memory.unlink()
        snapshot.recall_codes(memory)
        assert not snapshot._codes
        if changed == "nothing":
            of_now = code_of("compare_arms"), provenance.libraries_of("compare_arms")
            assert snapshot.code_of("compare_arms", ()) == of_now


def test_only_a_jobs_own_snakemake_reads_the_snapshot(tmp_path: Path) -> None:
    planned = experiment().model_copy(update={"results": "planned"})
    frozen(tmp_path, planned.model_dump(mode="json"))
    edited = {"results": "edited"}
    assert invocation.experiment_of(workflow(is_main=True), edited, ROOT).results == "edited"
    assert invocation.experiment_of(workflow(is_main=False), edited, ROOT) == planned
