"""A run that is seen while it goes on: what a real Snakemake tells, what its jobs leave, and what both cost it."""

from __future__ import annotations

import logging
import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lever_pipe.base import storage
from lever_pipe.runtime import live
from lever_pipe.runtime.failures import Invocation
from lever_pipe.runtime.live import HEIGHT, POINTS, WIDTH, Curve, Live, RunningJob, RunState

REPOSITORY = Path(__file__).parents[3]
EPOCHS = 4
SNAKEFILE = """
from pathlib import Path
from lever_pipe.runtime import failures, live

live.EVERY_S, live.REST, live.WAITS = 0.1, 1, 0
JOBS = failures.Invocation(Path("results"))
LIVE = live.Live(JOBS, Path("results"))
JOBS.attach()

rule all:
    input: "results/lever/rce/epoch~EPOCHS/metrics.json", "results/other.txt"

rule train:
    input: lambda w: f"results/lever/rce/epoch~{int(w.epoch) - 1}/metrics.json" if int(w.epoch) > 1 else []
    output: metrics="results/lever/rce/epoch~{epoch}/metrics.json"
    log: "results/lever/rce/epoch~{epoch}/log.txt"
    benchmark: "results/lever/rce/epoch~{epoch}/benchmark.jsonl"
    shell: "echo '2026-11-23 12:53:50,336 lever_pipe.base.progress: 1 of 2' > {log};"
        " until [ -e go ]; do sleep 0.05; done; sleep 0.5;"
        " echo '{{\\"values\\": {{\\"loss\\": {wildcards.epoch}.5, \\"unseen\\": 1}}}}' > {output}"

rule fails:
    output: "results/other.txt"
    log: "results/log.txt"
    benchmark: "results/benchmark.jsonl"
    shell: "echo 'ValueError: told' > {log}; FAILS touch {output}"

onstart:
    LIVE.begin(workflow.dag)

onsuccess:
    LIVE.end("finished")

onerror:
    LIVE.end("failed")
"""


class Going:
    """A run of Snakemake in a folder, and the states and pages that were there while it went on."""

    def __init__(self, folder: Path, *, fails: str = "", words: tuple[str, ...] = (), waits: bool = False) -> None:
        self.folder, self.results = folder, folder / "results"
        (folder / "Snakefile").write_text(SNAKEFILE.replace("EPOCHS", str(EPOCHS)).replace("FAILS", fails))
        if not waits:
            (folder / "go").touch()  # for jobs
        self.environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
        command = [sys.executable, "-m", "snakemake", "--cores", "1", "--scheduler", "greedy", *words]
        self.run = subprocess.Popen(
            command, cwd=folder, env=self.environment, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT
        )
        self.states: list[RunState] = []
        self.pages: set[str] = set()

    def look(self) -> RunState | None:
        if (self.results / live.STATE).exists():
            state = storage.read_row(self.results / live.STATE, RunState)
            if not self.states or state != self.states[-1]:
                self.states.append(state)
        if (self.results / live.PAGE).exists():
            self.pages.add((self.results / live.PAGE).read_text())
        return self.states[-1] if self.states else None

    def until_over(self) -> int:
        while self.run.poll() is None:
            self.look()
            time.sleep(0.05)
        self.look()
        return self.run.returncode

    def watcher(self) -> tuple[int, int]:
        """Start a watcher on a terminal of its own; return its process and the terminal."""
        pid, terminal = pty.fork()
        if pid == 0:
            os.chdir(self.folder)
            os.execve(sys.executable, [sys.executable, "-m", "lever_pipe", "watch"], self.environment)
        return pid, terminal


def counted(state: RunState) -> dict[str, int]:
    """Return what the parts of each rule sum up to."""
    return {rule: sum(jobs) for rule, jobs, _ in state.rules}


def test_a_run_is_seen_until_it_is_over_and_a_killed_watcher_changes_nothing(tmp_path: Path) -> None:
    going = Going(tmp_path, waits=True)
    while going.look() is None and going.run.poll() is None:
        time.sleep(0.05)
    pid, terminal = going.watcher()
    seen = b""
    while b"to go" not in seen and b"begun" not in seen:
        seen += os.read(terminal, 4096)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    os.close(terminal)
    (tmp_path / "go").touch()
    assert going.until_over() == 0
    last, planned = going.states[-1], {"fails": 1, "train": EPOCHS}
    assert all(state.planned == planned == counted(state) for state in going.states)
    done = [sum(state.done.values()) for state in going.states]
    assert done == sorted(done) and len(set(done)) > 2, "it is rebuilt as epochs finish"
    during = [state for state in going.states if state.running]
    said = {job.said for state in during for job in state.running}
    assert said & {f"loss {epoch}.5; 1 of 2" for epoch in range(1, EPOCHS)}, "metrics of the run, then its log"
    assert any(state.left for state in during)
    assert (last.over, last.done, last.running, last.failed) == ("finished", planned, (), ())
    assert last.curves == (Curve(run="lever/rce", points={n: {"loss": n + 0.5} for n in range(1, EPOCHS + 1)}),)
    final = (going.results / live.PAGE).read_text()
    assert 'http-equiv="refresh"' not in final and all('http-equiv="refresh"' in p for p in going.pages - {final})
    assert not any(re.search(r"""(src|href)="(?!data:)|@import|url\(|<script""", page) for page in going.pages)


def test_what_failed_is_seen_with_its_reason_and_a_later_run_knows_what_was_made(tmp_path: Path) -> None:
    assert Going(tmp_path, fails="exit 3;", words=("--keep-going",)).until_over() == 1
    state = storage.read_row(tmp_path / "results" / live.STATE, RunState)
    assert (state.over, state.failed) == ("failed", (("fails", "", "ValueError: told"),))
    assert state.done == {"train": EPOCHS} and counted(state) == state.planned
    going = Going(tmp_path)
    assert going.until_over() == 0
    assert going.states[-1].planned == {"fails": 1}
    assert len(going.states[-1].curves[0].points) == EPOCHS, "the epochs of the earlier run"


class Waits:
    """Stands for the end of a run, and keeps for how long the thread would have rested."""

    def __init__(self, n: int) -> None:
        self.rests: list[float] = []
        self.n = n

    def wait(self, seconds: float) -> bool:
        self.rests.append(seconds)
        return len(self.rests) == self.n


def test_a_state_takes_no_more_than_its_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, waits = Live(Invocation(tmp_path), tmp_path), Waits(3)
    monkeypatch.setattr(made, "_over", waits)
    clock = {"computed": 0.0, "passed": 0.0}
    read = SimpleNamespace(thread_time=lambda: clock["computed"], perf_counter=lambda: clock["passed"], time=time.time)
    monkeypatch.setattr(live, "time", read)
    for computed, passed, rest in ((0.5, 0.5, 100.0), (0.0, 0.75, 7.5), (0.0, 0.0, 5.0)):

        def write(*_: object, computed: float = computed, passed: float = passed, **__: object) -> None:
            clock["computed"] += computed
            clock["passed"] += passed

        monkeypatch.setattr(made, "_write", write)
        waits.rests.clear()
        made._go_on()
        assert waits.rests == [rest] * 3  # 200 times what it computes, 10 times what it takes, 5 seconds
    assert made._spent == 1.5


def test_what_cannot_be_written_is_told_once_and_written_when_it_can_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A disk that is full for a while ends neither the run nor what is seen of it."""
    monkeypatch.setattr(live, "EVERY_S", 0.01)
    results = tmp_path / "results"
    results.write_text("a file")
    made = Live(Invocation(results), results)
    made.begin(SimpleNamespace(needrun_jobs=list, jobs=[]))
    while "stays as it was" not in caplog.text:
        time.sleep(0.01)
    assert made._thread.is_alive()
    results.unlink()
    made.end("finished")
    assert storage.read_row(results / live.STATE, RunState).over == "finished"
    assert caplog.text.count("stays as it was") == 1


def test_a_spared_jobs_record_is_no_time_of_this_run(tmp_path: Path) -> None:
    jobs = Invocation(tmp_path)
    made = Live(jobs, tmp_path)
    (tmp_path / "benchmark.jsonl").write_text('{"s": 600.0}\n')
    made._begun, made._planned = time.time() - 10, live.Counter({"train": 3})
    made._unread = [(1, "train", tmp_path / "benchmark.jsonl", None)]
    jobs.ended.add(1)
    jobs.spared["train"] += 1
    left = made.look().left
    assert left is not None
    assert left >= 600  # two jobs of 600 s


def test_a_record_that_cannot_be_read_takes_no_other_with_it(tmp_path: Path) -> None:
    made = Live(Invocation(tmp_path), tmp_path)
    made._begun, made._planned = time.time() - 10, live.Counter({"train": 1, "select": 1})
    (tmp_path / "select.jsonl").write_text('{"s": 6.0}\n')
    made._unread = [(None, rule, tmp_path / name, None) for rule, name in (("train", "."), ("select", "select.jsonl"))]
    assert made.look().seconds == {"select": 6.0}


def test_a_run_that_cannot_be_shown_is_told_once_and_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made = Live(Invocation(tmp_path), tmp_path)
    made.begin(SimpleNamespace(needrun_jobs=list, jobs=[SimpleNamespace(benchmark="b")]))
    made.end("finished")
    assert caplog.text.count("stays as it was") == 1
    assert not (tmp_path / live.STATE).exists()


def test_a_finished_run_has_done_all_that_was_planned(tmp_path: Path) -> None:
    """A quiet Snakemake tells of no end."""
    made = Live(Invocation(tmp_path), tmp_path)
    made._begun, made._planned = time.time() - 10, live.Counter({"train": 2})
    assert ": 2 of 2 jobs done." in made.look("finished").summary(time.time())


def test_what_a_terminal_would_obey_is_not_shown() -> None:
    assert live.printable("a\x1b[2Jb\tc") == "a [2Jb c"


def a_state(**changes: object) -> RunState:
    values = {"begun": 1000.0, "written": 1100.0, "again": 1105.0, "over": "", "planned": {"a": 5}, "done": {"a": 2}}
    values |= {"running": (), "failed": (), "seconds": {}, "left": None, "unknown": 0, "spent": 0.0, "curves": ()}
    return RunState(**(values | changes))


def test_the_time_to_go_follows_from_records_and_pace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    now = 10_000.0
    monkeypatch.setattr(live.time, "time", lambda: now)
    jobs = Invocation(tmp_path)
    made = Live(jobs, tmp_path)
    made._begun, made._planned = now - 48, live.Counter({"train": 6})
    made._unread = [(n, "train", tmp_path / f"{n}/benchmark.jsonl", None) for n in range(1, 7)]
    for number in (1, 2, 3):
        log = tmp_path / f"{number}/log.txt"
        log.parent.mkdir()
        log.touch()
        os.utime(log, (now - 4, now - 4))
        said = {"event": "job_info", "jobid": number, "rule_name": "train", "log": [str(log)]}
        jobs.handle(_record(now - 4, **said))
        if number < 3:
            log.with_name("benchmark.jsonl").write_text('{"s": 10.0}\n')
            jobs.handle(_record(now, event="job_finished", job_id=number))
    state = made.look()
    assert state.seconds == {"train": 10.0} and state.running[0].left == 6.0
    assert state.left == pytest.approx((3 * 10 + 6) / ((2 * 10 + 4) / 48))  # 24 s of work in 48 s
    assert counted(state) == {"train": 6}
    os.utime(tmp_path / "3/log.txt", (now - 900, now - 900))  # of an earlier run: this one waits in a queue
    made._since.clear()
    assert made.look().running[0].since is None


def _record(created: float, **said: object) -> logging.LogRecord:
    record = logging.LogRecord("snakemake.logging", logging.INFO, __file__, 1, "", (), None)
    vars(record).update(created=created, **said)
    return record


def test_a_state_says_how_far_the_run_is() -> None:
    said = a_state(left=130.0, unknown=2).summary(1110.0)
    assert said == "2 of 5 jobs done, 0 begun; about 2:00 to go (2 jobs of rules that left no record)."
    assert a_state().summary(1105.0 + live.LOST_S + 1).startswith("2 of 5 jobs done, 0 begun; no sign of the run since")
    failed = (("a", "", "why"),)
    assert a_state(over="failed", failed=failed).summary(9e9) == "failed after 1:40: 2 of 5 jobs done, 1 failed."
    assert live.duration(7265) == "2:01:05"
    job = RunningJob(rule="a", wildcards="", since=None, left=None, said="")
    assert next(a_state(running=(job,), failed=failed).rules) == ("a", (2, 1, 1, 1), None)


@given(st.dictionaries(st.integers(0, 10**6), st.floats(-1e9, 1e9), min_size=1, max_size=3 * POINTS))
def test_a_small_curve_stays_in_its_box_and_keeps_its_order(points: dict[int, float]) -> None:
    drawn = Curve(run="r", points={step: {"loss": value} for step, value in points.items()}).drawn("loss")
    places = [tuple(map(float, place.split(","))) for place in drawn.split()]
    assert 1 <= len(places) <= POINTS
    assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in places)
    assert [x for x, _ in places] == sorted(x for x, _ in places)
