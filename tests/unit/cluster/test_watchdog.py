"""No job is waited for without end, none is reported twice, and none that still runs is given up."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lever_pipe.cluster import slurm, watchdog
from lever_pipe.cluster.watchdog import Watchdog, watch

LONG = watchdog.VANISHED_SECONDS + 1


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def job(number: str) -> Any:
    return SimpleNamespace(external_jobid=number, aux={"slurm_logfile": Path(f"{number}.log")}, job=number)


Plugin = Callable[[Any, Any], str]


def executor_class(of_plugin: Plugin) -> type:
    """Return an executor whose plugin part says of each job: wait, forget, success or error."""

    class Executor:
        run_uuid = "lever_pipe_1"

        def __init__(self, *, requeue: bool = False) -> None:
            self.workflow = SimpleNamespace(executor_settings=SimpleNamespace(requeue=requeue))
            self.reports: list[tuple[str, str]] = []
            self.messages: list[str] = []

        def report_job_success(self, job_info: Any) -> None:
            self.reports.append((job_info.external_jobid, "success"))

        def report_job_error(self, job_info: Any, msg: str | None = None, **named: Any) -> None:
            self.reports.append((job_info.external_jobid, "error"))
            self.messages.append(f"{msg} {named.get('aux_logs')}")

        async def check_active_jobs(self, active_jobs: list[Any]) -> AsyncIterator[Any]:
            says = {"success": self.report_job_success, "error": self.report_job_error}
            for one in active_jobs:
                said = of_plugin(self, one)
                if said in says:
                    says[said](one)
                elif said == "wait":
                    yield one

        def round(self, jobs: list[Any]) -> list[Any]:
            async def collect() -> list[Any]:
                return [one async for one in self.check_active_jobs(jobs)]

            return asyncio.run(collect())

    watch(Executor)
    return Executor


@pytest.fixture
def states(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return what SLURM says of each job; a test fills it."""
    known: dict[str, str] = {}
    monkeypatch.setattr(slurm, "states_of", lambda name: dict(known))
    return known


@pytest.fixture(autouse=True)
def cancelled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return what is cancelled; nothing here asks a real SLURM."""
    jobs: list[str] = []
    monkeypatch.setattr(slurm, "cancel", jobs.extend)
    monkeypatch.setattr(slurm, "state_of", lambda number: "")
    monkeypatch.setattr(slurm, "waits_of", lambda name: {})
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
    executor = executor_class(lambda _, one: answers[one.external_jobid])()
    states["3"] = "RUNNING"
    assert executor.round([job("1"), job("2"), third := job("3")]) == [third]
    assert executor.reports == [("1", "success"), ("2", "error")]


def test_forgotten_jobs_are_asked_for_again(states: dict[str, str], caplog: pytest.LogCaptureFixture) -> None:
    """The plugin yields nothing after a round in which every query failed; it would never look at them again."""
    executor = executor_class(lambda *_: "forget")()
    jobs = [job("1"), job("2")]
    states.update({"1": "RUNNING", "2": "PENDING"})
    with caplog.at_level(logging.WARNING):
        assert executor.round(jobs) == jobs
    assert "1, 2" in caplog.text
    assert executor.reports == []


@pytest.mark.parametrize("state", sorted(watchdog.FAILURES))
def test_an_end_that_the_plugin_does_not_know_fails_the_job_by_name(states: dict[str, str], state: str) -> None:
    executor = executor_class(lambda *_: "wait")()
    states["7"] = f"{state} by 0" if state == "CANCELLED" else state
    one = job("7")
    assert executor.round([one]) == [one]  # the plugin may still be about to see it
    assert executor.round([one]) == []
    assert executor.reports == [("7", "error")]
    assert f"SLURM job 7 ended as {state}" in executor.messages[0]
    assert "7.log" in executor.messages[0]


def test_a_success_that_the_plugin_does_not_see_is_a_success(states: dict[str, str]) -> None:
    executor = executor_class(lambda *_: "forget")()
    states["7"] = "COMPLETED"
    executor.round([job("7")])
    assert executor.round([job("7")]) == []
    assert executor.reports == [("7", "success")]


@pytest.mark.parametrize("state", ["PREEMPTED", "NODE_FAIL"])
def test_a_cluster_that_requeues_is_waited_for(states: dict[str, str], state: str) -> None:
    executor = executor_class(lambda *_: "wait")(requeue=True)
    states["7"] = state
    for _ in range(4):
        assert len(executor.round([job("7")])) == 1
    assert executor.reports == []


@pytest.mark.parametrize("state", ["RUNNING", "PENDING", "COMPLETING", "SUSPENDED", "CONFIGURING", "REQUEUED"])
def test_a_job_that_lives_is_never_given_up(states: dict[str, str], clock: Clock, state: str) -> None:
    executor = executor_class(lambda *_: "wait")()
    states["7"] = state
    for _ in range(5):
        clock.now += 100 * LONG
        assert len(executor.round([job("7")])) == 1


@pytest.mark.parametrize("reason", sorted(watchdog.NEVER))
def test_a_job_that_would_wait_for_ever_is_taken_back(
    states: dict[str, str], cancelled: list[str], monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    executor = executor_class(lambda *_: "wait")()
    states.update({"7": "PENDING", "8": "PENDING"})
    monkeypatch.setattr(slurm, "waits_of", lambda name: {"7": reason, "8": "Resources"})
    assert [one.external_jobid for one in executor.round([job("7"), job("8")])] == ["8"]
    assert executor.reports == [("7", "error")]
    assert reason in executor.messages[0]
    assert cancelled == ["7"]


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
        executor = executor_class(lambda *_: "wait")()
        assert self.rounds(executor, clock, 0, LONG - 2, 2) == [1, 1, 0]
        assert "SLURM no longer knows job 7" in executor.messages[0]

    def test_a_late_record_starts_the_count_anew(self, states: dict[str, str], clock: Clock) -> None:
        executor = executor_class(lambda *_: "wait")()
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
        executor = executor_class(lambda *_: "wait")()
        assert self.rounds(executor, clock, 0, LONG) == [1, left]
        assert executor.reports == reports

    def test_silence_is_no_answer(
        self, clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A controller that is away for an hour loses no job, and says so about once a minute."""
        answers: list[dict[str, str] | None] = [{}, None, None, {}]
        monkeypatch.setattr(slurm, "states_of", lambda name: answers.pop(0))
        executor = executor_class(lambda *_: "forget")()
        with caplog.at_level(logging.WARNING):
            assert self.rounds(executor, clock, 0, 1800, 1800, 1) == [1, 1, 1, 1]
        assert caplog.text.count("SLURM has not answered for") == 1
        assert "1800 s" in caplog.text


def test_a_class_is_wrapped_once(states: dict[str, str]) -> None:
    of_class = executor_class(lambda *_: "wait")
    before = of_class.check_active_jobs  # type: ignore[attr-defined]
    watch(of_class)
    assert of_class.check_active_jobs is before  # type: ignore[attr-defined]


def test_the_plugin_still_has_the_methods_that_are_wrapped() -> None:
    """And it still drops jobs and waits for preempted ones; once it does not, the watchdog may go."""
    import inspect

    import snakemake_executor_plugin_slurm as plugin

    source = inspect.getsource(plugin.Executor.check_active_jobs)
    assert "if status_of_jobs is not None" in source
    assert '"PREEMPTED"' in source
    assert "PREEMPTED" not in source[source.index("fail_stati") : source.index(")", source.index("fail_stati"))]
    for name in ("report_job_success", "report_job_error"):
        assert inspect.signature(getattr(plugin.Executor, name)).parameters.keys() >= {"self", "job_info"}
