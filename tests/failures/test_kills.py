"""SIGKILL and Ctrl-C at random moments of stages and of the whole run: the end has the bytes of a run undisturbed."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import psutil
import pytest

from tests.same_bytes import differences
from tests.workflow.conftest import Project, copy_project, finished_once

pytestmark = pytest.mark.failures

RESULTS = "results/smoke"
CHECKPOINTS = "intention={execution: {checkpoint_every: 1}}"
"""A killed agent continues after its last step."""
PER_RULE = int(os.environ.get("LEVER_PIPE_KILLS", "2"))
"""Number of a rule's jobs to kill."""
LEAST_KILLS, WHOLE_RUNS = 25 * PER_RULE, 4
INTERRUPTIONS, LONGEST_END_S = 10, 60.0
PLANS = "Assuming unrestricted shared filesystem usage"
"""Snakemake prints this after its imports and the Snakefile."""
LEAST_FORKED_KILLS = 20  # most forked jobs of this size end before a kill
LONGEST_S = 900.0
"""After this the run counts as hanging."""
STAGE_CALL = re.compile(r"-m lever_pipe (\w+) ")
SERVER = "-m lever_pipe.runtime.forks "
EARLIEST_S, AT_LEAST_S, FIRST_SHARE = 0.1, 0.5, 0.4
"""A kill falls between the first of these and as long after as the stage takes, but no less than the second; the first
kill of a rule within this share of it, as a job that ends before cannot be killed again."""
FURTHER_RUNS = 8
"""In how many runs at most a rule whose jobs all ended before their kills is forced, to be killed after all."""


class Killer(threading.Thread):
    """Kills jobs of a run at random moments, up to a number of each rule.

    Args:
        run: the process whose descendants the jobs are.
        seconds: rule -> how long its jobs take; a kill falls into a uniformly drawn moment of it.
        limit: kills of one rule, at most.
    """

    def __init__(self, run: psutil.Process, seconds: dict[str, float], *, limit: int, seed: int, forked: bool) -> None:
        super().__init__(daemon=True)
        self._earliest_s, self._at_least_s = (0.0, 0.1) if forked else (EARLIEST_S, AT_LEAST_S)
        self.kills: Counter[str] = Counter()
        self.stop = threading.Event()
        self._run, self._seconds, self._limit = run, seconds, limit
        self._draw = random.Random(seed)
        self._seen: set[int] = set()

    def run(self) -> None:
        while not self.stop.wait(0.02) and self._run.is_running():
            for job, rule in self._young_jobs():
                self._seen.add(job.pid)
                if self.kills[rule] < self._limit:
                    takes = max(self._at_least_s, self._seconds.get(rule, 1.0))
                    share = 1.0 if self.kills[rule] else FIRST_SHARE
                    delay = self._earliest_s + self._draw.uniform(0, share * takes)
                    threading.Timer(delay, self._kill, (job, rule)).start()

    def _young_jobs(self) -> Iterator[tuple[psutil.Process, str]]:
        with suppress(psutil.Error):
            for process in self._run.children(recursive=True):
                with suppress(psutil.Error, OSError):  # one that has ended meanwhile
                    rule = self._rule_of(process)
                    if rule and process.pid not in self._seen:
                        yield process, rule

    def _rule_of(self, process: psutil.Process) -> str:
        """Return the rule whose stage a process runs, fresh or forked; nothing if it runs none."""
        words = " ".join(process.cmdline())
        found = STAGE_CALL.search(words)
        if found and Path(process.exe()).name.startswith("python"):
            return found[1]
        name = Path(f"/proc/{process.pid}/comm").read_text().strip()  # a fork's, cut to 15 bytes
        return next((rule for rule in self._seconds if SERVER in words and rule[:15] == name), "")

    def _kill(self, job: psutil.Process, rule: str) -> None:
        with suppress(psutil.Error):
            if job.is_running() and job.status() != psutil.STATUS_ZOMBIE:
                job.kill()
                self.kills[rule] += 1


def seconds_by_rule(project: Project) -> dict[str, float]:
    """Return how long the stages of a finished run took, by their manifests."""
    manifests = [json.loads(path.read_text()) for path in (project.folder / RESULTS).rglob("*run.json")]
    return {manifest["stage"]: manifest["seconds"] for manifest in manifests}


def start(project: Project, *words: str) -> subprocess.Popen[bytes]:
    with (project.folder / "said.txt").open("ab") as output:
        return subprocess.Popen(
            project.command("--cores", "2", "--retries", "30", *words),
            cwd=project.folder,
            env=project.environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # a shell's background ignores Ctrl-C
        )


def kill_run(run: subprocess.Popen[bytes], *, alone: bool) -> None:
    """Kill the main process and all its jobs at once, or it alone, so that jobs continue during the next run."""
    with suppress(ProcessLookupError):
        (os.kill if alone else os.killpg)(run.pid, signal.SIGKILL)
    run.wait()


def left_in(folder: Path) -> list[str]:
    """Return the commands of processes that work in a folder, after those that are about to end have had the time."""
    end = time.monotonic() + 20
    while True:
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.status() != psutil.STATUS_ZOMBIE and Path(process.cwd()) == folder:
                    found.append(" ".join(process.cmdline())[:300])
        if not found or time.monotonic() > end:
            return found
        time.sleep(0.2)


def visible_files(folder: Path) -> Iterator[Path]:
    """Yield the files under a folder that are not hidden, in folders that may vanish meanwhile."""
    for location, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (Path(location, name) for name in names if not name.startswith("."))


def require_whole(folder: Path) -> int:
    """Check that every structured file under a folder parses; return their number.

    Hidden folders contain unfinished work, which jobs that outlive their run continue to fill and to remove.
    """
    from safetensors import safe_open

    checked = 0
    for path in visible_files(folder):
        if "ledger" in path.parts:
            continue
        if path.suffix == ".json":
            json.loads(path.read_text())
        elif path.suffix == ".jsonl":
            for line in path.read_text().splitlines():
                json.loads(line)
        elif path.suffix == ".safetensors":
            with safe_open(path, "pt") as tensors:
                tensors.keys()
        else:
            continue
        checked += 1
    return checked


@pytest.mark.parametrize(
    ("forked", "least"), [(False, LEAST_KILLS), (True, LEAST_FORKED_KILLS)], ids=["fresh", "forked"]
)
def test_no_kill_loses_or_spoils_anything(
    forked: bool, least: int, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    finished = finished_once(tmp_path_factory, store=False)
    seconds = seconds_by_rule(finished)
    project = copy_project(tmp_path)
    draw, kills, whole_runs, further_runs, escaped = random.Random(0), Counter[str](), 0, 0, list[str]()
    end = time.monotonic() + LONGEST_S
    while True:
        run = start(project, "--config", f"forked_jobs={forked}", CHECKPOINTS, *escaped)
        seed = whole_runs + further_runs
        killer = Killer(psutil.Process(run.pid), seconds, limit=PER_RULE, seed=seed, forked=forked)
        killer.kills.update(kills)
        killer.start()
        try:
            run.wait(draw.uniform(10, 30) if whole_runs < WHOLE_RUNS else end - time.monotonic())
        except subprocess.TimeoutExpired:
            assert whole_runs < WHOLE_RUNS, "the run hangs"
        killer.stop.set()
        kills = killer.kills
        if run.returncode is not None:
            missing = sorted(set(seconds) - set(kills))
            if forked or run.returncode or not missing or further_runs == FURTHER_RUNS:
                break
            escaped, further_runs = ["--forcerun", *missing], further_runs + 1
            continue
        kill_run(run, alone=whole_runs % 2 == 1)
        assert require_whole(project.folder / RESULTS) > 0
        whole_runs += 1
    text = (project.folder / "said.txt").read_text()
    assert run.returncode == 0, text[-6000:]
    assert project.planned() == {}
    assert differences(project.folder / RESULTS, finished.folder / RESULTS) == []
    summary = f"{sum(kills.values())} kills of jobs, {whole_runs} of the whole run; by rule: {dict(kills)}"
    sys.stderr.write(f"\n{summary}\n")
    assert sum(kills.values()) >= least, summary
    assert forked or set(kills) == set(seconds), "every stage"
    assert no_half(project)


def no_half(project: Project) -> bool:
    """Return whether no unfinished files remain and no process is working."""
    hidden = (project.folder / RESULTS).rglob(".*")
    halves = [path for path in hidden if path.suffix == ".tmp" or ".owner" in path.name]
    return not halves and not left_in(project.folder)


@pytest.mark.parametrize("times", [1, 2], ids=["once", "twice"])
def test_ctrl_c_ends_a_run_cleanly(times: int, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    finished, project = finished_once(tmp_path_factory, store=False), copy_project(tmp_path)
    draw, interrupted = random.Random(times), 0
    for n in range(INTERRUPTIONS):
        run = start(project)
        while run.poll() is None and (project.folder / "said.txt").read_text().count(PLANS) <= n:
            time.sleep(0.02)
        with suppress(subprocess.TimeoutExpired):
            run.wait(draw.uniform(0, 5))
        for _ in range(times):
            with suppress(ProcessLookupError):
                os.killpg(run.pid, signal.SIGINT)  # as a terminal does
            time.sleep(draw.uniform(0, 1))
        interrupted += run.wait(LONGEST_END_S) == -signal.SIGINT
        text = (project.folder / "said.txt").read_text()
        # A job that still imports ends as Python does.
        assert "snakemake/cli.py" not in text, text[-6000:]
        assert "_leave(main())" not in text, text[-6000:]
        assert left_in(project.folder) == []
        assert not list((project.folder / ".snakemake").glob("locks/*")), text[-3000:]
    run = start(project)
    assert run.wait(LONGEST_S) == 0, (project.folder / "said.txt").read_text()[-6000:]
    assert differences(project.folder / RESULTS, finished.folder / RESULTS) == []
    assert no_half(project)
    assert interrupted >= INTERRUPTIONS // 2
