"""What a run is doing: `live.json` in its results folder, which `watch` shows, and `live.html` for a browser.

A thread of the main process writes both, from what Snakemake tells of its jobs and from the files that these leave:
metrics of finished epochs and checkpoints, logs, benchmark records. It rests `REST` times as long as it computed, so it
takes no more than that share of a core; a fault of its own is told once and ends nothing else.
"""

from __future__ import annotations

import json
import logging
import math
import re
import statistics
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from lever_pipe.base import storage
from lever_pipe.base.records import Row
from lever_pipe.runtime.failures import Invocation, ToldJob, tail

STATE, PAGE, RECORD = "live.json", "live.html", "benchmark.jsonl"
TEMPLATES = Path(__file__).parents[1] / "report/templates"
REST, WAITS, EVERY_S = 200, 10, 5.0
"""The rest after a state in units of its CPU time, in units of its time on the clock (slow disks), and at least."""
FINISHED = "finished"
LOST_S = 60.0
"""So long after the time that a state gives for the next one, the run counts as lost."""
SHOWN, MOST = ("reward", "accuracy", "loss", "val_loss", "pg_loss", "entropy", "kl", "grad_norm"), 3
"""Metrics, of which a run shows the first that it has, and how many."""
SAID, POINTS, WIDTH, HEIGHT = 120, 100, 96, 22
"""Characters of a log's line; of a small curve points at most, and its size in pixels."""
HEADS = ("done", "running", "failed", "waiting")
_LINE = re.compile(r"\d{4}-\d\d-\d\d \S+ [\w.]+: ")  # how a line of a job's log begins

log = logging.getLogger(f"snakemake.logging.{__name__}")  # also in the run's own log file


class RunningJob(Row):
    """A job since when it runs (None: it waits in a queue), its seconds to go by like jobs, and what it said last."""

    rule: str
    wildcards: str
    since: float | None
    left: float | None
    said: str


class Curve(Row):
    """What one training run has measured: step or epoch -> metric -> value."""

    run: str
    points: dict[int, dict[str, float]]

    @property
    def last(self) -> int:
        """Return the last step."""
        return max(self.points)

    def drawn(self, metric: str) -> str:
        """Return a metric's points in a box of `WIDTH` by `HEIGHT`, as SVG's `polyline` takes them."""
        found = [(step, values[metric]) for step, values in sorted(self.points.items()) if metric in values]
        found = found[:: math.ceil(len(found) / POINTS)]
        first, low, high = found[0][0], min(value for _, value in found), max(value for _, value in found)
        across, up = (WIDTH - 2) / max(1, found[-1][0] - first), (HEIGHT - 2) / ((high - low) or 1)
        return " ".join(f"{1 + (step - first) * across:.1f},{1 + (high - value) * up:.1f}" for step, value in found)


class RunState(Row):
    """What a run is doing at a time, in seconds of the epoch; jobs are counted by rule.

    Attributes:
        again: when the next state will be written.
        over: how the run ended; empty while it goes on.
        done: with the jobs that were made already.
        failed: rule, wildcards and reason of each failed job.
        seconds: rule -> the median of its benchmark records.
        left: seconds to go at the pace so far; None while nothing can be said.
        unknown: waiting jobs of rules without record, which `left` takes for jobs as the average one.
        spent: CPU seconds that all states so far took.
    """

    begun: float
    written: float
    again: float
    over: str
    planned: dict[str, int]
    done: dict[str, int]
    running: tuple[RunningJob, ...]
    failed: tuple[tuple[str, str, str], ...]
    seconds: dict[str, float]
    left: float | None
    unknown: int
    spent: float
    curves: tuple[Curve, ...]

    @property
    def rules(self) -> Iterator[tuple[str, tuple[int, ...], float | None]]:
        """Yield each planned rule with its jobs by `HEADS`, and the seconds of one by its benchmark records."""
        busy, failed = Counter(job.rule for job in self.running), Counter(rule for rule, *_ in self.failed)
        for rule, n in self.planned.items():
            told = (self.done.get(rule, 0), busy[rule], failed[rule])
            yield rule, (*told, max(0, n - sum(told))), self.seconds.get(rule)

    def is_lost(self, now: float) -> bool:
        """Return whether the run has not said for a minute what it should have."""
        return not self.over and now > self.again + LOST_S

    def summary(self, now: float) -> str:
        """Return a sentence on how far the run is, and when it will be over."""
        told = f"{sum(self.done.values()):,} of {sum(self.planned.values()):,} jobs done"
        told += f", {len(self.failed)} failed" if self.failed else ""
        if self.over:
            return f"{self.over} after {duration(self.written - self.begun)}: {told}."
        told += f", {len(self.running)} begun"
        if self.is_lost(now):
            return f"{told}; no sign of the run since {clock(self.written)}."
        left = "" if self.left is None else f"; about {duration(max(0.0, self.left - (now - self.written)))} to go"
        return f"{told}{left}{f' ({self.unknown} jobs of rules that left no record)' if self.unknown else ''}."


def printable(text: str) -> str:
    """Return a text without what would move a terminal's cursor."""
    return "".join(char if char.isprintable() else " " for char in text)


def duration(seconds: float) -> str:
    """Return seconds as `1:05`, with hours as `2:01:05`."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}" if minutes >= 60 else f"{minutes}:{rest:02}"


def clock(moment: float) -> str:
    """Return a time of the epoch as this machine's clock and calendar show it."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(moment))


def seconds_in(record: Path) -> Iterator[float]:
    """Yield the seconds of a benchmark record; a line that is none is passed over."""
    for line in record.read_text(encoding="utf-8", errors="replace").splitlines():
        with suppress(ValueError, KeyError, TypeError):
            seconds = float(json.loads(line)["s"])
            if math.isfinite(seconds):
                yield seconds


def page_of(state: RunState, results: Path) -> str:
    """Return the page of a state, which needs no other file, and loads itself anew while the run goes on."""
    import jinja2

    loader = jinja2.FileSystemLoader(TEMPLATES)
    found = jinja2.Environment(loader=loader, undefined=jinja2.StrictUndefined, trim_blocks=True, autoescape=True)
    told: dict[str, Any] = {"state": state, "results": results, "heads": HEADS, "duration": duration, "clock": clock}
    told |= {"style": (TEMPLATES / "report.css").read_text(encoding="utf-8"), "every": round(EVERY_S)}
    told |= {"report": (results / "report.html").exists(), "size": (WIDTH, HEIGHT)}
    return found.get_template("live.html.j2").render(told)


class Live:
    """Writes the state of this process's run, of whose jobs Snakemake tells, until it is over."""

    def __init__(self, jobs: Invocation, results: Path) -> None:
        self._jobs, self._results = jobs, results
        self._over = threading.Event()
        self._is_warned = False
        self._thread = threading.Thread(target=self._go_on, name="live", daemon=True)
        # Files that count once a job has ended, at once those of no job of this run: job, rule, record, metrics.
        self._unread: list[tuple[int | None, str, Path, Path | None]] = []
        self._seconds: defaultdict[str, list[float]] = defaultdict(list)
        self._taken = self._spent = 0.0  # seconds of this run's jobs, and of all states
        self._since: dict[tuple[int, float], float] = {}
        self._curves: defaultdict[str, dict[int, dict[str, float]]] = defaultdict(dict)
        self._seen: set[Path] = set()

    def begin(self, dag: Any) -> None:
        """Begin to write, of a run that is planned and not yet started (`snakemake.dag.DAG`)."""
        with self._guarded():
            runs, self._begun = set(dag.needrun_jobs()), time.time()
            self._planned = Counter(job.rule.name for job in runs if job.log)
            for job in (job for job in dag.jobs if job.benchmark is not None):
                record, named = Path(str(job.benchmark)), dict(job.output.items()).get("metrics")
                metrics = None if named is None else Path(str(named))
                self._unread.append((None, job.rule.name, record, None if job in runs else metrics))
                self._unread += [(job.jobid, job.rule.name, record, metrics)] if job in runs else []
            self._thread.start()

    def end(self, how: str) -> None:
        """Write the last state, if a first one was begun."""
        if self._thread.ident is not None:
            self._over.set()
            self._thread.join()
            self._write(how, rest=0.0)

    def _go_on(self) -> None:
        rest, is_over = EVERY_S, False
        while not is_over:
            begun, spent = time.perf_counter(), time.thread_time()
            self._write("", rest=rest)
            computed = time.thread_time() - spent
            self._spent += computed
            rest = max(EVERY_S, REST * computed, WAITS * (time.perf_counter() - begun))
            is_over = self._over.wait(rest)

    def _write(self, over: str, *, rest: float) -> None:
        with self._guarded():
            state = self.look(over, rest=rest)
            storage.write_text(self._results / STATE, state.model_dump_json() + "\n")
            storage.write_text(self._results / PAGE, page_of(state, self._results))

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            yield
        except Exception as fault:  # noqa: BLE001 - what only shows a run must not end it
            if not self._is_warned:
                log.warning(f"{self._results / PAGE} stays as it was: {fault!r}")
            self._is_warned = True

    def look(self, over: str = "", *, rest: float = EVERY_S) -> RunState:
        """Return the state of the run at this time."""
        now, running = time.time(), [] if over else self._jobs.told("running")
        self._read_files(running)
        seconds = {rule: statistics.median(of) for rule, of in self._seconds.items() if of and rule in self._planned}
        shown = tuple(self._running(job, now, seconds.get(job.rule)) for job in running)
        done = Counter(job.rule for job in self._jobs.told("finished")) + Counter(dict(self._jobs.spared))
        done = self._planned if over == FINISHED else done  # some are not told to a run that is quiet
        failed = tuple((row.rule, row.wildcards, printable(row.reason)) for row in self._jobs.failed)
        waiting = self._planned - done - Counter(job.rule for job in running) - Counter(rule for rule, *_ in failed)
        usual = statistics.fmean(seconds.values()) if seconds else 0.0
        begun = [job.left for job in shown if job.left is not None]
        work = sum(seconds.get(rule, usual) * n for rule, n in waiting.items()) + sum(begun)
        spent = sum(now - job.since for job in shown if job.since) + self._taken
        pace = spent / (now - self._begun) if spent else 1.0
        curves = tuple(Curve(run=run, points=points) for run, points in sorted(self._curves.items()))
        return RunState(
            begun=self._begun,
            written=now,
            again=now + rest,
            over=over,
            planned=dict(sorted(self._planned.items())),
            done=dict(done),
            running=shown,
            failed=failed,
            seconds=seconds,
            left=max(work / pace, *begun, 0.0) if seconds and not over else None,
            unknown=sum(n for rule, n in waiting.items() if rule not in seconds),
            spent=self._spent,
            curves=curves,
        )

    def _running(self, job: ToldJob, now: float, usual: float | None) -> RunningJob:
        path, known = Path(job.log), (job.number, job.started)
        with suppress(OSError):
            if known not in self._since and path.stat().st_mtime >= job.started - 1:
                self._since[known] = path.stat().st_mtime  # an empty log is as old as its job
        since, points = self._since.get(known), self._curves.get(self._place(path.parent)[0])
        metrics = [f"{name} {value:.4g}" for name, value in points[max(points)].items()] if points else []
        lines = [_LINE.sub("", line, count=1)[:SAID] for line in tail(job.log, job.started).strip().splitlines()[-1:]]
        left = None if usual is None else max(0.0, usual - (now - (since or now)))
        said = "; ".join(filter(None, (", ".join(metrics), *map(printable, lines))))
        return RunningJob(rule=job.rule, wildcards=job.wildcards, since=since, left=left, said=said)

    def _read_files(self, running: list[ToldJob]) -> None:
        """Read what jobs have left that have ended, and the last checkpoint of those that run."""
        former, self._unread = self._unread, []
        ran = {told.number for told in self._jobs.told("finished")}  # a spared job's record is of an earlier run
        for job, rule, record, metrics in former:
            if job is not None and job not in self._jobs.ended:
                self._unread.append((job, rule, record, metrics))
                continue
            took: list[float] = []
            with suppress(OSError):  # none was left, or it cannot be read
                took = list(seconds_in(record))[-1:]
            self._seconds[rule] += took
            self._taken += sum(took) if job in ran else 0.0
            if metrics is not None:
                self._read_metrics(metrics, metrics.parent)
        for folder in (Path(told.log).parent for told in running):
            for path in set(folder.glob("state/step-*/metrics.jsonl")) - self._seen:
                self._seen.add(path)
                self._read_metrics(path, folder)

    def _read_metrics(self, path: Path, folder: Path) -> None:
        run, epoch = self._place(folder)
        with suppress(OSError, ValueError, KeyError, TypeError):  # gone or replaced meanwhile
            text = path.read_text(encoding="utf-8")
            for row in map(json.loads, text.splitlines() if path.suffix == ".jsonl" else [text]):
                values = [(name, float(row["values"][name])) for name in SHOWN if name in row["values"]][:MOST]
                if values:
                    self._curves[run][int(row.get("step", epoch))] = dict(values)

    def _place(self, folder: Path) -> tuple[str, int]:
        """Return the training run that a job's folder belongs to, and its epoch; 0 of a run that is one job."""
        name = folder.relative_to(self._results) if folder.is_relative_to(self._results) else folder
        run, _, epoch = name.as_posix().rpartition("/epoch~")
        return (run, int(epoch)) if run and epoch.isdecimal() else (name.as_posix(), 0)
