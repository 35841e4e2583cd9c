"""`doctor` reports every problem of a cluster run at once, before the first job; a sound run passes."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_slurm import FakeSlurm, on_path

from lever_pipe.__main__ import main
from lever_pipe.base import model_folders, numerics
from lever_pipe.base.errors import PreflightError
from lever_pipe.experiment.studies import Experiment, StoreSettings, parse_experiment
from lever_pipe.runtime import sizing, snakemake_adapter
from lever_pipe.runtime.checks import doctor, local_checks, orphans
from lever_pipe.runtime.checks.findings import Level, Outcome, ok

REPOSITORY = Path(__file__).parents[3]
PREFIX = "lever_pipe"
JOB = {"rule": "train_rce_epoch", "threads": 1, "mem_mb": 2300, "runtime": 30}
WORLD = {"data": {"source": "world"}}
INTENTION = {"model": {"folder": "", "codec": "word"}, "tasks": {"source": "synthetic"}}


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    for name in ("SBATCH_CLUSTERS", "SLURM_JOB_ID"):
        monkeypatch.delenv(name, raising=False)
    return on_path(tmp_path, monkeypatch)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A working directory with the embedded world's models."""
    here = tmp_path / "work"
    shutil.copytree(REPOSITORY / "resources/world", here / "resources/world")
    return here


@pytest.fixture
def experiment() -> Experiment:
    models = {"encoder": {"model": "resources/world/clip"}, "lvlm": {"model": "resources/world/lvlm"}}
    return parse_experiment({**WORLD, **models, "intention": INTENTION})


def complaints(findings: list[Outcome] | Iterator[Outcome]) -> list[tuple[str, str]]:
    return [(str(finding.level), finding.check) for finding in findings if finding.level is not Level.OK]


def test_a_sound_world_run_passes_here(experiment: Experiment, folder: Path) -> None:
    found = list(local_checks.check(experiment, rules=None, folder=folder))
    assert complaints(found) == []
    assert [finding.check.split(" ")[0] for finding in found] == ["numerics", "disk", "encoder.model", "lvlm.model"]


def test_a_cpu_with_other_bits_is_told(experiment: Experiment, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numerics, "path", lambda: "portable aarch64 less")
    found = next(o for o in local_checks.check(experiment, rules=None, folder=folder) if o.check == "numerics")
    assert found.level is Level.WARNING
    assert found.found == "portable aarch64 less"
    fastest = experiment.model_copy(update={"numerics": "fastest"})
    assert local_checks.numeric_path(fastest).level is Level.OK


def test_a_broken_model_is_a_problem_only_for_rules_that_load_it(experiment: Experiment, folder: Path) -> None:
    (folder / "resources/world/lvlm/tokenizer.json").unlink()
    expected = [("problem", "lvlm.model resources/world/lvlm")]
    assert complaints(local_checks.check(experiment, rules=None, folder=folder)) == expected
    assert complaints(local_checks.check(experiment, rules={"answer_prompts"}, folder=folder)) == expected
    assert complaints(local_checks.check(experiment, rules={"embed_examples", "all"}, folder=folder)) == []


def lvlm_problem(experiment: Experiment, folder: Path) -> Outcome:
    (found,) = [o for o in local_checks.check(experiment, rules={"answer_prompts"}, folder=folder) if o.level != "ok"]
    return found


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("models/Qwen2.5-VL-3B-Instruct", "Download Qwen/Qwen2.5-VL-3B-Instruct: lever-pipe fetch --configfile FILE"),
        ("Qwen/Qwen2-VL-2B-Instruct", "Download Qwen/Qwen2-VL-2B-Instruct: lever-pipe fetch --configfile FILE\n"),
        ("Qwen/Qwen2-VL-2B-Instruct", "name another folder in lvlm.model, relative to the working directory."),
        ("models/mine", "Download it: lever-pipe fetch --configfile FILE --from lvlm.model=OWNER/NAME"),
        ("resources/world/other", "git checkout -- resources/world/other"),
    ],
)
def test_an_absent_model_is_told_with_the_command_that_brings_it(folder: Path, name: str, command: str) -> None:
    found = lvlm_problem(parse_experiment({**WORLD, "studies": ["lever"], "lvlm": {"model": name}}), folder)
    assert (found.level, found.found) == (Level.PROBLEM, "no such folder")
    assert command in found.do


def constant(module: str, name: str) -> Any:
    """Return a constant of a module that imports torch, without importing it."""
    tree = ast.parse((REPOSITORY / "lever_pipe" / module).read_text())
    for node in tree.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == name:
            return ast.literal_eval(node.value)
    raise LookupError(name)


def test_the_files_asked_for_are_those_that_the_readers_open() -> None:
    def requested(given: Experiment) -> dict[str, Any]:
        return {model.key: local_checks.files_read(given, model) for model in sizing.loaded(given)}

    found = requested(parse_experiment(WORLD))
    assert set(found["encoder.model"][0]) == set(constant("lever/encoders/clip.py", "FILES"))
    assert found["encoder.model"][1] == model_folders.VOCABULARY
    assert set(found["lvlm.model"][0]) == set(constant("lvlms/qwen2_5_vl.py", "REQUIRED"))
    assert found["lvlm.model"][1] == model_folders.IMAGES
    assert found[local_checks.AGENT][1] == constant("intention/codecs/hf.py", "_FILES")
    of_words = requested(parse_experiment({**WORLD, "intention": {"model": {"codec": "word"}}}))
    assert of_words[local_checks.AGENT][1] == (constant("intention/codecs/word.py", "FILE"),)


def test_absent_raw_files_and_empty_image_folders_are_named(folder: Path) -> None:
    images = folder / "data/coco/train2014"
    images.mkdir(parents=True)
    experiment = parse_experiment({"studies": ["lever"]})
    (found,) = local_checks.raw_data(experiment, rules=None, folder=folder)
    assert found.level is Level.PROBLEM
    assert all(name in found.found for name in experiment.data.files.model_dump().values())
    (images / "a.jpg").touch()
    (found,) = local_checks.raw_data(experiment, rules=None, folder=folder)
    assert experiment.data.files.train_images not in found.found
    questions = folder / experiment.data.files.train_questions
    questions.parent.mkdir(parents=True)
    for content, is_named in (("", True), ("{}", False)):
        questions.write_text(content)
        (found,) = local_checks.raw_data(experiment, rules=None, folder=folder)
        assert (experiment.data.files.train_questions in found.found) is is_named
    assert list(local_checks.raw_data(experiment, rules={"build_report"}, folder=folder)) == []


def test_room_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def with_free(free: int) -> list[Outcome]:
        monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
        return list(local_checks.disks(tmp_path / "results", tmp_path / ".snakemake"))

    assert [finding.level for finding in with_free(local_checks.DISK_FULL)] == [Level.OK]  # one message per file system
    assert [finding.level for finding in with_free(local_checks.DISK_FULL - 1)] == [Level.PROBLEM]
    (found,) = local_checks.disks(ledger=tmp_path)  # without it a run continues, but stores no answers
    assert found.level is Level.WARNING


@pytest.mark.parametrize("executor", ["local", "touch"])
def test_a_local_run_finds_what_a_run_on_slurm_left(
    experiment: Experiment, folder: Path, fake: FakeSlurm, executor: str
) -> None:
    (folder / orphans.LOGS).mkdir(parents=True)
    call = {"executor": executor, "jobs": [JOB], "folder": folder}
    assert doctor.preflight(experiment, **call)[-1] == ok(orphans.CHECK, "none in the queue")
    fake.has(("1", "RUNNING", "lever_pipe_1f", "rule_a", str(folder)))
    with pytest.raises(PreflightError, match="1  RUNNING  a"):
        doctor.preflight(experiment, **call)


@pytest.fixture
def no_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without nvidia-smi; the folder is where its device files would be."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    (tmp_path / "dev").mkdir()
    return tmp_path / "dev"


def test_a_machine_without_a_gpu_runs_nothing_on_cuda(
    experiment: Experiment, folder: Path, no_tool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_checks, "DEVICE_FILES", ())
    jobs = [{**JOB, "rule": rule, "device": device} for rule, device in (("b", "cuda"), ("a", "cuda:0"), ("c", "cpu"))]
    with pytest.raises(PreflightError, match=r"CUDA: expected a CUDA device; found none.*\(a, b\)") as caught:
        doctor.preflight(experiment, executor="local", jobs=jobs, folder=folder)
    assert "--set-resources RULE:device=cpu" in str(caught.value)
    assert complaints(doctor.preflight(experiment, executor="local", jobs=jobs[2:], folder=folder)) == []
    assert complaints(doctor.preflight(experiment, executor="touch", jobs=jobs, folder=folder)) == []


@pytest.mark.parametrize(
    ("visible", "device", "message"),
    [
        ("", "cuda", "expected a CUDA device; found none"),
        ("0", "cuda", ""),
        ("0,1", "cuda:1", ""),
        ("", "cpu", ""),
    ],
)
def test_a_job_on_a_gpu_needs_one(
    no_tool: Path, monkeypatch: pytest.MonkeyPatch, visible: str, device: str, message: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    (no_tool / "nvidia0").touch()  # the variable has priority
    found = list(local_checks.gpus([{**JOB, "device": device}], devices=no_tool))
    problems = [finding.text for finding in found if finding.level is Level.PROBLEM]
    assert len(problems) == bool(message)
    assert message in "".join(problems)


def test_all_problems_come_at_once(experiment: Experiment, folder: Path, fake: FakeSlurm) -> None:
    (folder / "resources/world/clip/config.json").unlink()
    fake.has(("1", "RUNNING", "lever_pipe_1f", "rule_a", str(folder)))
    jobs = [{**JOB, "rule": "embed_examples"}]
    call = {"executor": "slurm", "jobs": jobs, "prefix": PREFIX, "folder": folder}
    with pytest.raises(PreflightError, match="found 2 problems") as caught:
        doctor.preflight(experiment, **call)
    for words in ("no config.json", "1  RUNNING  a"):
        assert words in str(caught.value)


@pytest.mark.parametrize(
    ("missing", "found"),
    [
        (("squeue", "sbatch", "scancel"), "squeue, sbatch and scancel not found"),
        (("sbatch",), "sbatch not found"),  # a compute node of some sites: jobs are visible, none can be submitted
        (("squeue", "scancel"), "squeue and scancel not found"),
    ],
)
def test_a_machine_without_commands_of_slurm_is_no_login_node(
    experiment: Experiment,
    folder: Path,
    fake: FakeSlurm,
    monkeypatch: pytest.MonkeyPatch,
    missing: tuple[str, ...],
    found: str,
) -> None:
    monkeypatch.setenv("PATH", str(fake.folder))
    for name in missing:
        (fake.folder / name).unlink()
    call = {"executor": "lever-slurm", "jobs": [JOB], "prefix": PREFIX, "folder": folder}
    with pytest.raises(PreflightError, match="found 1 problem") as caught:
        doctor.preflight(experiment, **call)
    assert f"{found}: this is not a SLURM login node" in str(caught.value)
    assert "scontrol ping" not in str(caught.value)


@pytest.mark.parametrize(
    "request_",
    [
        {"mem_mb_per_cpu": 4000},
        {"mem_mb_per_cpu": "4000", "mem_mb": 4000},
        {"slurm_extra": "--exclusive --mem-per-gpu=40G"},
    ],
)
def test_a_request_of_memory_that_replaces_mem_mb_is_refused(
    experiment: Experiment, folder: Path, fake: FakeSlurm, request_: dict[str, Any]
) -> None:
    jobs = [{**JOB, "slurm_extra": "--exclusive"}, {**JOB, **request_, "rule": "train_agent"}]
    with pytest.raises(PreflightError, match="found 1 problem") as caught:
        doctor.preflight(experiment, executor="lever-slurm", jobs=jobs, prefix=PREFIX, folder=folder)
    assert " for train_agent. " in str(caught.value) and "mem_mb: 4300 * attempt" in str(caught.value)
    doctor.preflight(experiment, executor="local", jobs=jobs, folder=folder)


@pytest.mark.parametrize(("local_exec", "rules"), [(False, ["a"]), (True, ["a", "b"])])
def test_jobs_next_to_snakemake_are_not_submitted_on_a_cluster(local_exec: bool, rules: list[str]) -> None:
    def job(name: str, *, is_local: bool) -> Any:
        dag = SimpleNamespace(workflow=SimpleNamespace(local_exec=local_exec))
        own = {"rule": SimpleNamespace(name=name), "resources": {"mem_mb": 5}, "threads": 2, "dag": dag}
        return SimpleNamespace(**own, is_local=is_local)

    found = doctor.submitted([job("a", is_local=local_exec), job("b", is_local=True)])
    assert found == [{"rule": rule, "threads": 2, "mem_mb": 5} for rule in rules]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What Snakemake would understand, without Snakemake."""
    values: dict[str, Any] = {"prefix": PREFIX, "config": WORLD}
    monkeypatch.setattr(
        doctor,
        "read_call",
        lambda _: doctor.SnakemakeCall(values["config"], "config.yaml", "slurm", values["prefix"]),
    )
    job = snakemake_adapter.PlannedJob("train_rce_epoch", {}, "", 1, {"mem_mb": 2300, "runtime": 30})
    monkeypatch.setattr(doctor, "planned_jobs", lambda _: [job])
    monkeypatch.setattr(local_checks, "check", lambda *_, **__: iter([ok("disk", "plenty")]))
    return values


def test_a_config_that_does_not_parse_is_a_problem(
    fake: FakeSlurm, call: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    call["config"] = {**WORLD, "rl_data": {"n_queries": "1e3"}}
    assert main(["doctor"]) == 2
    printed = capsys.readouterr().out
    assert "configuration: expected a valid configuration; found 1 problem" in printed
    assert "rl_data.n_queries" in printed and "'1e3'" in printed


def test_words_and_profile_reach_the_checks(tmp_path: Path) -> None:
    executors, other = ("lever-slurm", "slurm"), tmp_path / "other.yaml"
    for executor in executors:
        settings = {"status-command": "squeue", "no-requeue": "true", "jobname-prefix": "mine"}
        lines = [f"{executor}-{name}: {value}\n" for name, value in settings.items()]
        (tmp_path / executor).mkdir()
        (tmp_path / executor / "config.yaml").write_text("".join([f"executor: {executor}\n", *lines]))
    other.write_text("pools: {seed: 7}\n")
    words = ["--configfile", str(other), "--config", "results=here", "--workflow-profile"]
    code = (
        "from lever_pipe.runtime.checks.doctor import read_call\n"
        f"for profile in {[str(tmp_path / executor) for executor in executors]!r}:\n"
        f"    call = read_call([*{words!r}, profile])\n"
        "    print(call.executor, call.prefix, sep='|')\n"
        "    print(call.config['pools'], call.config['results'], call.config['data']['source'], sep='|')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=REPOSITORY, check=True)
    config = "{'sampler': 'uniform', 'size': 64, 'seed': 7}|here|world"
    assert done.stdout.splitlines() == ["lever-slurm|mine", config, "slurm|mine", config]


def test_a_store_that_takes_no_file_is_a_problem(experiment: Experiment, folder: Path) -> None:
    elsewhere = experiment.model_copy(update={"store": StoreSettings(folder="/proc/store")})
    found = complaints(list(local_checks.check(elsewhere, rules=None, folder=folder)))
    assert found == [("problem", "disk of /proc/store/ledger")]


@pytest.mark.parametrize("way", ["words", "profile", "rule"])
def test_memory_per_cpu_is_refused_however_it_is_given(tmp_path: Path, way: str) -> None:
    profile, cluster = tmp_path / "profile", FakeSlurm(tmp_path / "slurm")
    shutil.copytree(REPOSITORY / "profiles/slurm", profile)
    words = {
        "words": ("--default-resources", "mem_mb_per_cpu=4000", "runtime=60"),
        "rule": ("--set-resources", "prepare_tasks:mem_mb_per_cpu=4000"),
    }
    if way == "profile":
        path = profile / "config.yaml"
        path.write_text(path.read_text().replace("mem_mb: 4300 * attempt", "mem_mb_per_cpu: 4000"))
    settings = ("--workflow-profile", str(profile), "--config", f"results={tmp_path}/results", "studies=[intention]")
    path_ = f"{cluster.folder}{os.pathsep}{os.environ['PATH']}"
    command = [sys.executable, "-m", "lever_pipe", "doctor", *settings, *words.get(way, ())]
    environment = os.environ | {"PATH": path_}
    done = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY, env=environment, check=False)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "found mem_mb_per_cpu for " in done.stdout
