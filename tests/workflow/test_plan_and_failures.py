"""The output of `plan` before a run, and the report on failed jobs at its end, from Snakemake itself."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from snakemake.utils import update_config

from . import warm
from .conftest import JOB_COUNT, Project
from .test_contents_decide import ran

SMOKE = ("--configfile", "config/smoke.yaml")
WORLD, EXAMPLES = "results/smoke/world/train.run.json", "results/smoke/lever/examples/train.run.json"
# Jobs that do not need each other, one that needs a failing one, and one that fails once only.
JOBS = """
from pathlib import Path
from lever_pipe.runtime.failures import Failures

FAILURES = Failures()
if workflow.is_main_process:
    FAILURES.attach()

rule all:
    input: "good.txt", "after.txt", "late.txt", "gone.txt", "killed.txt"
rule good:
    output: "good.txt"
    shell: "touch {output}"
rule bad:
    output: "{name}.bad"
    log: "{name}.log"
    shell: "echo 'ConfigError: expected a; found b. Do c.' > {log}; exit 2"
rule after:
    input: "x.bad"
    output: "after.txt"
    shell: "touch {output}"
rule late:
    output: "late.txt"
    log: "late.log"
    shell: "if test -e once; then touch {output}; else touch once; echo 'ValueError: once' > {log}; exit 1; fi"
rule gone:
    output: "gone.txt"
    shell: "true"
rule killed:
    output: "killed.txt"
    shell: "kill -9 $$"
onerror:
    print(FAILURES.summary())
"""


def run(folder: Path, *words: str) -> str:
    """Run the jobs and return the output at the end."""
    (folder / "Snakefile").write_text(JOBS)
    return snakemake(folder, *words)[0]


def snakemake(folder: Path, *words: str) -> tuple[str, int]:
    done = warm.run("snakemake", ["--cores", "2", "--latency-wait", "0", *words], folder, os.environ)
    assert "Traceback" not in done.stdout, done.stdout[-3000:]
    return done.stdout, done.returncode


@pytest.mark.parametrize("quiet", [[], ["--quiet", "all"]], ids=" ".join)
def test_each_failed_job_is_told_with_its_reason_however_quiet_the_run(tmp_path: Path, quiet: list[str]) -> None:
    """`bad`, `gone` and `killed` fail twice; `late` succeeds at its second attempt; only `after` needs a failed job."""
    text = run(tmp_path, "--keep-going", "--retries", "1", *quiet)
    table = text.rpartition("3 jobs failed:")[2]
    for rule, message in (("bad", "ConfigError: expected a; found b. Do c."), ("gone", "gone.txt (missing locally")):
        (lines,) = re.findall(rf"\n{rule}  .*attempts: 2\n((?:    .*\n)*)", table)
        assert message in lines
    assert re.search(r"\nkilled  .*attempts: 2\n +SIGKILL: mostly for want of memory", table)
    assert "late" not in table
    assert "name=x" in text
    assert "log: x.log" in text


def test_the_workflow_ends_with_the_table(project: Project) -> None:
    """A stage that raises fails at each attempt."""
    stage = project.folder / "lever_pipe/stages/examples.py"
    text = stage.read_text()
    begins = "\n    split = "
    assert text.count(begins) == 1
    stage.write_text(text.replace(begins, f'\n    raise ValueError("no such question"){begins}'))
    words = ["--cores", "2", "--retries", "1", "--keep-going", "--quiet", "all"]
    done = project.call(*SMOKE, *words, "--", "results/smoke/lever/embeddings/train.run.json")
    assert done.returncode == 1
    table = done.stdout.rpartition("1 job failed:")[2]
    assert re.search(r"prepare_examples  .*attempts: 2\n(?: .*\n)*? +ValueError: no such question\n", table), table
    assert "log: results/smoke/lever/examples/train.log.txt\n" in table


def planned(project: Project, *words: str) -> dict[str, Any]:
    return json.loads(project.tool("plan", "--json", *SMOKE, *words))


def files_of(folder: Path) -> dict[str, int]:
    """Return the times of all files but caches: Python's, and the ones that every dry run writes."""
    caches = {"__pycache__", "iocache", "digests.json"}
    paths = (path for path in folder.rglob("*") if path.is_file() and not caches & set(path.parts))
    return {str(path.relative_to(folder)): path.stat().st_mtime_ns for path in paths}


def test_an_lvlm_is_asked_no_more_than_the_plan_says(smoke: Project) -> None:
    """Beams are searched as planned; other stages ask equal prompts once."""
    most = {work["rule"]: work["prompts"] for work in planned(smoke, "--forceall")["lvlm"]["at_most"]}
    requests = Counter[str]()
    for path in (smoke.folder / "results/smoke/lever").rglob("counters.json"):
        manifest = json.loads(path.with_name("run.json").read_text())
        requests[manifest["stage"]] += json.loads(path.read_text())["prompts_asked"]
    assert requests["search_beams"] == most["search_beams"]
    assert all(0 < requests[rule] <= prompts for rule, prompts in most.items())


def test_a_plan_tells_jobs_reasons_and_hours_and_writes_nothing(project: Project) -> None:
    before = files_of(project.folder)
    found = planned(project, "--", EXAMPLES)
    assert [(rule["rule"], rule["jobs"], rule["why"]) for rule in found["rules"]] == [
        ("generate_world", 1, {"missing output": 1}),
        ("prepare_examples", 1, {"missing output": 1}),
    ]
    assert found["hours"] == {"gpu": 0, "cpu": 0}
    assert found["at_most_without_record"] == {"gpu": 0, "cpu": 0}  # neither names a time
    assert files_of(project.folder) == before

    project.snakemake("--cores", "2", "--", WORLD)
    before = files_of(project.folder)
    assert project.tool("plan", *SMOKE, "--quiet", "--", WORLD).endswith("file exists and is up to date.\n")
    with project.edited("config/smoke.yaml", "n_train: 600", "n_train: 500"):
        (world,) = planned(project, "--", WORLD)["rules"]
    seconds = json.loads((project.folder / "results/smoke/world/train.run.json").read_text())["seconds"]
    assert world["why"] == {"changed: world.n_train": 1}
    assert (world["seconds"], world["records"]) == (seconds, 1)
    assert world["hours"]["cpu"] == pytest.approx(seconds / 3600)
    assert files_of(project.folder) == before


def test_a_plan_for_a_cluster_keeps_the_threads_that_rules_ask_for(untouched: Project) -> None:
    """A dry run without cores has one; the jobs on the nodes have theirs, and an hour if the rule sets none."""
    words = ["--workflow-profile", "profiles/slurm", "--set-threads", "generate_world=8", "--", WORLD]
    (world,) = planned(untouched, *words)["rules"]
    assert world["at_most"] == {"gpu": 0, "cpu": 8}


def test_a_served_agent_and_a_given_start_are_planned_with_the_files_that_decide_them(
    untouched: Project, tmp_path: Path
) -> None:
    given, extra = tmp_path / "given/selector.safetensors", tmp_path / "extra.yaml"
    given.parent.mkdir()
    given.touch()
    extra.write_text(
        f"presets: {{world: {{start_from: {given.parent}}}}}\nintention: {{served: [{{name: gpt, model: m}}]}}\n"
    )
    text = untouched.call(*SMOKE, str(extra), "--dry-run", "--printshellcmds").stdout
    called = "Shell command: python -m lever_pipe stage"
    calls = [shlex.split(line) for line in text.splitlines() if line.startswith(called)]
    words = {stage: set[str]().union(*(call for call in calls if call[6] == stage)) for stage in {c[6] for c in calls}}
    init, agents = "results/smoke/lever/preset~world/init/seed~0", "results/smoke/intention"
    assert {f"start={given}", f"selector={init}/selector.safetensors"} < words["initialise_selector"]
    assert f"started={init}/run.json" in words["collect_lineage"]
    served = {f"{name}={agents}/served~gpt/{name}.jsonl" for name in ("evaluations", "episodes")}
    assert served | {f"test_tasks={agents}/tasks/test.jsonl"} < words["evaluate_served"]
    assert {f"untrained_{file}" for file in served} < words["collect_agents"]
    counts = dict(JOB_COUNT.findall(text))
    assert (counts["evaluate_served"], counts["collect_agents"], counts["collect_lineage"]) == ("1", "1", "1")


def test_the_configuration_is_read_before_snakemake_reads_it(untouched: Project, tmp_path: Path) -> None:
    """One message without a traceback; the plan has the values of dotted names; a later file moves the results."""
    bytes_, octal, moved = tmp_path / "bytes.yaml", tmp_path / "octal.yaml", tmp_path / "moved.yaml"
    bytes_.write_bytes(b"results: a\nreport: {title: \xe9}")
    octal.write_text("data: {n_eval: 010}")
    moved.write_text(f"results: {tmp_path}/moved")
    for words, part in (
        (("--configfile", str(bytes_)), f"{bytes_}:2: expected a configuration file, UTF-8 text"),
        (("--configfile", str(octal)), f"{octal}:1: expected a decimal number; found 010"),
        (("--configfile", str(tmp_path)), f"{tmp_path}: expected a configuration file"),
        (("--config", "data.n_evl=8"), "data.n_evl: unknown key. Did you mean 'n_eval'?"),
        (("--config", "arms.9.seeds=[0]"), "--config arms.9.seeds: expected a position"),
    ):
        done = untouched.call("--dry-run", *words)
        assert (done.returncode, done.stdout.count("ConfigError")) == (1, 1), done.stdout
        assert part in done.stdout
        assert "Traceback" not in done.stdout
        assert "site-packages" not in done.stdout
    words = (*SMOKE, str(moved), "--config", "arms[0].seeds=[7]", "arms.0.on_policy.seeds=[7]", "--dry-run")
    text = untouched.call(*words).stdout
    assert f"Results go to {tmp_path}/moved ({moved}; overridden: config/smoke.yaml sets results/smoke)." in text
    assert "preset~world/rce/seed~7/" in text


MODULE = """
configfile: "mine.yaml"

module lever_pipe:
    snakefile: "{folder}/workflow/Snakefile"
    config: config

use rule * from lever_pipe

onstart:
    lever_pipe.RUN.begin()

onsuccess:
    print(lever_pipe.RUN.closing_summary())
"""


def test_as_a_module_of_another_folder_it_has_the_users_configuration(untouched: Project, tmp_path: Path) -> None:
    """The folder has two files; the workflow finds its own files and the package relative to itself."""
    values = yaml.safe_load((untouched.folder / "config.yaml").read_text())
    update_config(values, yaml.safe_load((untouched.folder / "config/smoke.yaml").read_text()))
    update_config(values, {"results": "mine", "data": {"world": {"n_train": 500}}})
    (other := tmp_path / "other").mkdir()
    (other / "mine.yaml").write_text(yaml.safe_dump(values))
    (other / "Snakefile").write_text(MODULE.format(folder=untouched.folder))
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def call(*words: str) -> str:
        command = [sys.executable, "-m", "snakemake", "--cores", "2", *words]
        done = subprocess.run(command, cwd=other, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout + done.stderr

    planned = dict(JOB_COUNT.findall(call("--dry-run", "--quiet", "host").partition("Job stats:")[2].split("\n\n")[0]))
    own = untouched.planned()
    assert {rule: int(n) for rule, n in planned.items() if rule not in ("total", "all")} == own

    text = call("--", "mine/lever/examples/train.run.json")
    assert ran(text) == {"generate_world": 1, "prepare_examples": 1}
    assert "Done in" in text
    assert len((other / "mine/lever/examples/train.jsonl").read_text().splitlines()) == 500
    assert len(list((other / ".snakemake/lever_pipe").glob("snapshot-*.json"))) == 1
