"""No job is waited for without end, none is reported twice, and none that still runs is given up."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
from collections.abc import AsyncIterator, Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import snakemake_executor_plugin_slurm as plugin
from snakemake.io import _IOFile
from snakemake.iocontainers import OutputFiles

from lever_pipe.base.artefacts import Call
from lever_pipe.runtime import snapshot
from lever_pipe.runtime.reruns import check
from lever_pipe.runtime.slurm import squeue as slurm
from lever_pipe.runtime.slurm import watchdog
from lever_pipe.runtime.slurm.watchdog import Watchdog
from snakemake_executor_plugin_lever_slurm import Executor as WatchedExecutor

LONG = watchdog.VANISHED_SECONDS + 1
PLANNED = 1_000_000
"""Time of the plan in tests with files."""


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def job(number: str, *, is_group: bool = False, **output: str) -> Any:
    """Return a submitted job, with outputs as Snakemake's own jobs have them."""
    files = OutputFiles(fromdict={name: _IOFile(path, rule=None) for name, path in output.items()})
    aux = {"slurm_logfile": Path(f"{number}.log")}
    own = SimpleNamespace(
        is_group=lambda: is_group,
        rule=SimpleNamespace(name="score_answers"),
        params=SimpleNamespace(spec='{"config": {}, "code": ""}'),
        input=OutputFiles(),
        output=list(files) if is_group else files,
    )
    return SimpleNamespace(external_jobid=number, aux=aux, job=own)


Plugin = Callable[[Any, Any], str]


OWN_CHECK = plugin.Executor.check_active_jobs


class Executor(WatchedExecutor):
    """The executor without job submission; it records the plugin's reports.

    Args:
        of_plugin: the plugin's verdict for each job: wait, forget, success or error; None: the plugin's own rounds.
        requeue: whether the profile sets requeue.
    """

    run_uuid = "lever_pipe_1"
    next_seconds_between_status_checks: float = 40

    def __init__(self, of_plugin: Plugin | None, *, requeue: bool = False, **settings: Any) -> None:
        self.of_plugin = of_plugin
        self.workflow = SimpleNamespace(executor_settings=SimpleNamespace(requeue=requeue, **settings))
        self.reports: list[tuple[str, str]] = []
        self.messages: list[str] = []

    def round(self, jobs: list[Any]) -> list[Any]:
        async def collect() -> list[Any]:
            return [one async for one in self.check_active_jobs(jobs)]

        return asyncio.run(collect())


@pytest.fixture(autouse=True)
def _plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the plugin's part of an executor with a test's verdicts, and record its reports."""

    async def check(executor: Any, active_jobs: list[Any]) -> AsyncIterator[Any]:
        if executor.of_plugin is None:
            async for one in OWN_CHECK(executor, active_jobs):
                yield one
            return
        report_of = {"success": executor.report_job_success, "error": executor.report_job_error}
        for one in active_jobs:
            verdict = executor.of_plugin(executor, one)
            if verdict in report_of:
                report_of[verdict](one)
            elif verdict == "wait":
                yield one

    def succeed(executor: Any, job_info: Any) -> None:
        executor.reports.append((job_info.external_jobid, "success"))

    def fail(executor: Any, job_info: Any, msg: str | None = None, **named: Any) -> None:
        executor.reports.append((job_info.external_jobid, "error"))
        executor.messages.append(f"{msg} {named.get('aux_logs')}")

    for name, fake in (("check_active_jobs", check), ("report_job_success", succeed), ("report_job_error", fail)):
        monkeypatch.setattr(plugin.Executor, name, fake)


@pytest.fixture
def states(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return SLURM's states by job; a test fills them."""
    known: dict[str, str] = {}
    monkeypatch.setattr(slurm, "states_of", lambda name: dict(known))
    return known


@pytest.fixture(autouse=True)
def cancelled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the cancelled jobs; no test contacts a real SLURM."""
    jobs: list[str] = []
    monkeypatch.setattr(slurm, "cancel", jobs.extend)
    monkeypatch.setattr(slurm, "state_of", lambda number: "")
    monkeypatch.setattr(slurm, "settings", lambda: {"MinJobAge": "300 sec"})
    return jobs


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    ticking = Clock()
    original = Watchdog.__init__

    def with_clock(self: Watchdog, *, requeues: bool) -> None:
        original(self, requeues=requeues, clock=ticking)

    monkeypatch.setattr(Watchdog, "__init__", with_clock)
    return ticking


def test_what_the_plugin_reports_passes_and_is_asked_for_no_more(states: dict[str, str]) -> None:
    answers = {"1": "success", "2": "error", "3": "wait"}
    executor = Executor(lambda _, one: answers[one.external_jobid])
    states["3"] = "RUNNING"
    assert executor.round([job("1"), job("2"), third := job("3")]) == [third]
    assert executor.reports == [("1", "success"), ("2", "error")]


def test_forgotten_jobs_are_asked_for_again(states: dict[str, str], caplog: pytest.LogCaptureFixture) -> None:
    """The plugin yields nothing after a round in which every query failed; it would never look at them again."""
    executor = Executor(lambda *_: "forget")
    jobs = [job("1"), job("2")]
    states.update({"1": "RUNNING", "2": "PENDING"})
    with caplog.at_level(logging.WARNING):
        assert executor.round(jobs) == jobs
    assert "1, 2" in caplog.text
    assert executor.reports == []


@pytest.mark.parametrize("state", sorted(watchdog.FAILURES))
def test_an_end_that_the_plugin_does_not_know_fails_the_job_by_name(states: dict[str, str], state: str) -> None:
    executor = Executor(lambda *_: "wait")
    states["7"] = f"{state} by 0" if state == "CANCELLED" else state
    one = job("7")
    assert executor.round([one]) == [one]  # the plugin may still be about to see it
    assert executor.round([one]) == []
    assert executor.reports == [("7", "error")]
    assert f"SLURM job 7 ended as {state}" in executor.messages[0]
    assert "7.log" in executor.messages[0]


def test_a_success_that_the_plugin_does_not_see_is_a_success(states: dict[str, str]) -> None:
    executor = Executor(lambda *_: "forget")
    states["7"] = "COMPLETED"
    executor.round([job("7")])
    assert executor.round([job("7")]) == []
    assert executor.reports == [("7", "success")]


@pytest.mark.parametrize("state", ["PREEMPTED", "NODE_FAIL"])
def test_a_cluster_that_requeues_is_waited_for(states: dict[str, str], state: str) -> None:
    executor = Executor(lambda *_: "wait", requeue=True)
    states["7"] = state
    for _ in range(4):
        assert len(executor.round([job("7")])) == 1
    assert executor.reports == []


@pytest.mark.parametrize("state", ["RUNNING", "PENDING", "COMPLETING", "SUSPENDED", "CONFIGURING", "REQUEUED"])
def test_a_job_that_lives_is_never_given_up(states: dict[str, str], clock: Clock, state: str) -> None:
    executor = Executor(lambda *_: "wait")
    states["7"] = state
    for _ in range(5):
        clock.now += 100 * LONG
        assert len(executor.round([job("7")])) == 1


class TestVanished:
    def rounds(self, executor: Any, clock: Clock, *waits: float) -> list[int]:
        left = []
        for seconds in waits:
            clock.now += seconds
            left.append(len(executor.round([job("7")])))
        return left

    def test_it_fails_by_name_once_slurm_has_answered_long_without_it(
        self, states: dict[str, str], clock: Clock
    ) -> None:
        executor = Executor(lambda *_: "wait")
        assert self.rounds(executor, clock, 0, LONG - 2, 2) == [1, 1, 0]
        assert "SLURM no longer knows job 7" in executor.messages[0]

    def test_a_late_record_starts_the_count_anew(self, states: dict[str, str], clock: Clock) -> None:
        executor = Executor(lambda *_: "wait")
        assert self.rounds(executor, clock, 0, LONG - 2) == [1, 1]
        states["7"] = "RUNNING"
        assert self.rounds(executor, clock, 1) == [1]
        del states["7"]
        assert self.rounds(executor, clock, 1, LONG - 2) == [1, 1]

    @pytest.mark.parametrize(
        ("remembered", "left", "reports"),
        [("COMPLETED", 0, [("7", "success")]), ("TIMEOUT", 0, [("7", "error")]), ("RUNNING", 1, []), (None, 1, [])],
    )
    def test_accounting_has_the_last_word(
        self,
        states: dict[str, str],
        clock: Clock,
        monkeypatch: pytest.MonkeyPatch,
        remembered: str | None,
        left: int,
        reports: list[tuple[str, str]],
    ) -> None:
        monkeypatch.setattr(slurm, "state_of", lambda number: remembered)
        executor = Executor(lambda *_: "wait")
        assert self.rounds(executor, clock, 0, LONG) == [1, left]
        assert executor.reports == reports

    def test_silence_is_no_answer(
        self, clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A controller that is away for an hour loses no job, and logs about once a minute."""
        answers: list[dict[str, str] | None] = [{}, None, None, {}]
        monkeypatch.setattr(slurm, "states_of", lambda name: answers.pop(0))
        executor = Executor(lambda *_: "forget")
        with caplog.at_level(logging.WARNING):
            assert self.rounds(executor, clock, 0, 1800, 1800, 1) == [1, 1, 1, 1]
        assert caplog.text.count("SLURM has not answered for") == 1
        assert "1800 s" in caplog.text


class TestCompleted:
    """A job that SLURM forgot before anybody saw it end is checked by what it made."""

    @pytest.fixture(autouse=True)
    def planned(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        self.make("snapshot.json", 0)
        monkeypatch.setenv(snapshot.VARIABLE, str(tmp_path / "snapshot.json"))

    @pytest.fixture(autouse=True)
    def whole(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Make all existing files count as the job's outputs."""

        def is_complete(call: Call) -> bool:
            return all(Path(str(path)).exists() for path in (call.manifest, *call.outputs.values()))

        monkeypatch.setattr(check, "is_complete", is_complete)

    def make(self, name: str, age: int) -> None:
        """Write a file so many seconds after the plan."""
        Path(name).write_text("")
        os.utime(name, (PLANNED + age, PLANNED + age))

    def checked(self, one: Any, states: dict[str, str], clock: Clock) -> list[str]:
        executor = Executor(lambda *_: "wait")
        for _ in range(2):
            executor.round([one])
            clock.now += LONG
        assert len(executor.reports) == 1
        return [text for _, text in executor.reports]

    @pytest.mark.parametrize(
        ("manifest", "table", "text"),
        [
            (1, 1, "success"),
            (1, -9, "success"),
            (0, 1, "error"),
            (-1, 1, "error"),
            (1, None, "error"),
            (None, 1, "error"),
        ],
        ids=["all young", "an old output", "same time", "an old manifest", "no output", "no manifest"],
    )
    def test_the_time_of_the_manifest_says_whether_this_run_made_it(
        self, states: dict[str, str], clock: Clock, manifest: int | None, table: int | None, text: str
    ) -> None:
        for name, age in (("run.json", manifest), ("table.csv", table)):
            if age is not None:
                self.make(name, age)
        assert self.checked(job("7", table="table.csv", manifest="run.json"), states, clock) == [text]

    @pytest.mark.parametrize(("seen", "text"), [("COMPLETED", "success"), ("TIMEOUT", "error"), ("RUNNING", "success")])
    def test_an_end_that_one_round_showed_goes_before(
        self, states: dict[str, str], clock: Clock, seen: str, text: str
    ) -> None:
        if seen == "RUNNING":
            self.make("run.json", 1)
        executor = Executor(lambda *_: "forget")
        one = job("7", manifest="run.json")
        states["7"] = seen
        executor.round([one])
        del states["7"]
        for _ in range(2):
            executor.round([one])
            clock.now += LONG
        assert executor.reports == [("7", text)]
        assert seen != "TIMEOUT" or "ended as TIMEOUT" in executor.messages[0]


class TestLoneJob:
    """The plugin's own rounds, which grow until a job ends, on a clock that only they and SLURM's answers move."""

    AGES = (30, 120, 300)
    ANSWER = 2.0
    """Seconds that an answer takes."""

    def executor(self) -> Executor:
        """Return one whose plugin keeps its own rounds, as far as these need it."""
        settings = {"status_attempts": 12, "status_command": "squeue", "keep_successful_logs": True}
        one = Executor(None, init_seconds_before_status_checks=40, **settings)
        one.logger, one.status_rate_limiter, one._preemption_warning = logging.getLogger("quiet"), nullcontext(), False
        one._status_query_calls = one._status_query_failures = 0
        one._status_query_total_seconds = one._status_query_max_seconds = 0.0
        one._status_query_min_seconds, one._status_query_cycle_rows = None, []
        return one

    class Cluster:
        """A controller that forgets job 7 `age` seconds after it has ended; it keeps no accounts."""

        def __init__(self, clock: Clock, *, age: int, end: float, on_end: Callable[[], None] = lambda: None) -> None:
            self.clock, self.age, self.end, self.on_end = clock, age, end, on_end
            self.polled: list[float] = []

        def states(self) -> dict[str, str]:
            self.clock.now += TestLoneJob.ANSWER
            self.polled.append(self.clock.now)
            if self.clock.now < self.end:
                return {"7": "RUNNING"}
            self.on_end()
            return {"7": "COMPLETED"} if self.clock.now < self.end + self.age else {}

        async def answer(self, command: str, logger: Any) -> tuple[dict[str, str] | None, float | None]:
            """Answer the plugin; asked through sacct, in vain, it asks again after 5 s."""
            if command.startswith("sacct"):
                self.clock.now += 5
                return None, None
            return self.states(), TestLoneJob.ANSWER

    @pytest.fixture
    def run(self, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
        """Return a function that runs job 7 on a cluster until it is reported, or until a time."""

        def simulate(cluster: TestLoneJob.Cluster, one: Any, *, has_sacct: bool = False, until: float = 1e6) -> Any:
            monkeypatch.setattr(plugin, "query_job_status", cluster.answer)
            monkeypatch.setattr(plugin, "get_min_job_age", lambda: cluster.age)
            monkeypatch.setattr(plugin, "is_query_tool_available", lambda name: has_sacct)
            monkeypatch.setattr(slurm, "settings", lambda: {"MinJobAge": f"{cluster.age} sec"})
            monkeypatch.setattr(slurm, "states_of", lambda name: cluster.states())
            monkeypatch.setattr(slurm, "state_of", lambda number: cluster.states().get(number, ""))
            executor = self.executor()

            async def rounds() -> None:
                clock.now, active = 40, [one]
                while active and clock.now < until:
                    active = [left async for left in executor.check_active_jobs(active)]
                    clock.now += executor.next_seconds_between_status_checks

            asyncio.run(rounds())
            return executor

        return simulate

    @pytest.mark.parametrize("has_sacct", [False, True])
    @pytest.mark.parametrize("age", AGES)
    def test_its_success_is_none_but_a_success(
        self,
        run: Callable[..., Any],
        clock: Clock,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        age: int,
        has_sacct: bool,
    ) -> None:
        """If sacct is installed without a database, the plugin retries it for longer than SLURM keeps jobs."""
        plan, manifest = tmp_path / "snapshot.json", tmp_path / "run.json"
        plan.write_text("")
        os.utime(plan, (PLANNED, PLANNED))
        monkeypatch.setenv(snapshot.VARIABLE, str(plan))
        monkeypatch.setattr(check, "is_complete", lambda *_, **__: manifest.exists())
        for end in (1800, 3011, 5407, 9000):
            manifest.unlink(missing_ok=True)
            cluster = self.Cluster(clock, age=age, end=end, on_end=manifest.touch)
            executor = run(cluster, job("7", manifest=str(manifest)), has_sacct=has_sacct)
            assert executor.reports == [("7", "success")]
            assert clock.now < end + age + 300


class TestPace:
    @pytest.mark.parametrize(
        ("age", "seconds"),
        [("2 sec", 10), ("30 sec", 10), ("150 sec", 50), ("300 sec", 100), ("0 sec", 180), ("", 180)],
    )
    def test_rounds_are_as_frequent_as_the_controllers_memory_asks(
        self, states: dict[str, str], monkeypatch: pytest.MonkeyPatch, age: str, seconds: int
    ) -> None:
        """A third of the time that it remembers a job; 0 is for ever."""
        monkeypatch.setattr(slurm, "settings", lambda: {"MinJobAge": age})
        executor = Executor(lambda *_: "wait")
        executor.next_seconds_between_status_checks = 180
        executor.round([job("1")])
        assert executor.next_seconds_between_status_checks == seconds
        executor.next_seconds_between_status_checks = 5
        executor.round([job("1")])
        assert executor.next_seconds_between_status_checks == 5


def test_the_plugin_still_waits_for_what_the_watchdog_ends() -> None:
    """It still drops jobs and waits for preempted ones; once it does not, the watchdog may go."""
    source = inspect.getsource(OWN_CHECK)
    assert "if status_of_jobs is not None" in source
    assert '"PREEMPTED"' in source
    assert "PREEMPTED" not in source[source.index("fail_stati") : source.index(")", source.index("fail_stati"))]
