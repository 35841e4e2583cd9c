"""What a run is doing: `live.json` in its results folder, which `watch` shows, and `live.html` for a browser.

A thread of the main process writes both from what Snakemake tells of its jobs and from the files that these leave: run
by run the metrics of finished epochs and checkpoints, the last line of a log, benchmark records. It rests `REST` times
as long as it computed, so it takes no more than that share of a core, however large the run is; a fault of its own is
told once and ends nothing else. Whoever reads the files is another process, which the run does not know of.
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
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from lever_pipe.base import storage
from lever_pipe.base.records import Row
from lever_pipe.runtime.failures import Invocation, ToldJob, tail

STATE, PAGE = "live.json", "live.html"
TEMPLATES = Path(__file__).parents[1] / "report/templates"
RECORD, LOG = "benchmark.jsonl", "log.txt"
REST, WAITS = 200, 10
"""The rest after a state, in units of the CPU time that it took, and of its time on the clock (a slow file system)."""
EVERY_S = 5.0
"""The least rest."""
LOST_S = 60.0
"""So long after the time that a state gives for the next one, the run counts as lost."""
RECORDS = 20
"""So many earlier records of a rule are looked at."""
SHOWN = ("reward", "normalised_reward", "accuracy", "loss", "val_loss", "pg_loss", "entropy", "kl", "grad_norm")
"""Metrics of which a run shows the first `MOST` that it has."""
MOST = 3
HEADS = ("done", "running", "failed", "waiting")
SAID = 120
"""Characters of a log's line that are kept."""
POINTS, WIDTH, HEIGHT = 100, 96, 22
"""Of a small curve: points at most, and its size in pixels."""
_LINE = re.compile(r"\d{4}-\d\d-\d\d \S+ [\w.]+: ")
"""How a line of a job's log begins."""

log = logging.getLogger(f"snakemake.logging.{__name__}")  # also in the run's own log file


class RunningJob(Row):
    """A job that has begun, or waits in a cluster's queue.

    Attributes:
        since: when it began, in seconds of the epoch; None in a queue.
        left: seconds to go, by the records of like jobs; None without one.
        said: its run's last metrics, and the last line of its log.
    """

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
        found = found[:: math.ceil(len(found) / POINTS)] if found else []
        low, high = min((value for _, value in found), default=0), max((value for _, value in found), default=0)
        width, height = max(1, found[-1][0] - found[0][0]) if found else 1, (high - low) or 1
        places = (
            (1 + (s - found[0][0]) / width * (WIDTH - 2), 1 + (high - v) / height * (HEIGHT - 2)) for s, v in found
        )
        return " ".join(f"{x:.1f},{y:.1f}" for x, y in places)


class RuleState(NamedTuple):
    """The jobs of a rule by `HEADS`, and the seconds of one by its benchmark records."""

    rule: str
    jobs: tuple[int, ...]
    seconds: float | None


class RunState(Row):
    """What a run is doing at a time; jobs are counted by rule, `done` with those that were made already.

    Attributes:
        begun: when the run did, as all times in seconds of the epoch.
        written: the time that this holds for.
        again: when the next state will be written.
        over: how the run ended; empty while it goes on.
        seconds: rule -> the median of its benchmark records.
        left: seconds to go at the pace so far; None while nothing can be said.
        unknown: waiting jobs of rules without record, which `left` takes for jobs as the average one.
        spent: CPU seconds that all states so far took.
        failed: rule, wildcards and reason of each failed job.
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
    def rules(self) -> Iterator[RuleState]:
        """Yield the planned rules."""
        busy, failed = Counter(job.rule for job in self.running), Counter(rule for rule, *_ in self.failed)
        for rule, n in self.planned.items():
            done = self.done.get(rule, 0)
            waiting = max(0, n - done - busy[rule] - failed[rule])
            yield RuleState(rule, (done, busy[rule], failed[rule], waiting), self.seconds.get(rule))

    def summary(self, now: float) -> str:
        """Return a sentence on how far the run is, and when it will be over."""
        done, planned, n_failed = sum(self.done.values()), sum(self.planned.values()), len(self.failed)
        told = f"{done:,} of {planned:,} jobs done{f', {n_failed} failed' if n_failed else ''}"
        if self.over:
            return f"{self.over} after {duration(self.written - self.begun)}: {told}."
        told += f", {len(self.running)} begun"
        if now > self.again + LOST_S:
            return f"{told}; no sign of the run since {clock(self.written)}."
        if self.left is not None:
            told += f"; about {duration(max(0.0, self.left - (now - self.written)))} to go"
        return f"{told}{f' ({self.unknown} jobs of rules that left no record)' if self.unknown else ''}."


def duration(seconds: float) -> str:
    """Return seconds as `1:05`, with hours as `2:01:05`."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}" if minutes >= 60 else f"{minutes}:{rest:02}"


def clock(moment: float) -> str:
    """Return a time of the epoch as this machine's clock shows it."""
    return time.strftime("%H:%M:%S", time.localtime(moment))


def seconds_in(record: Path) -> Iterator[float]:
    """Yield the seconds of a benchmark record; a line that is none is passed over."""
    for line in record.read_text(encoding="utf-8", errors="replace").splitlines():
        with suppress(ValueError, KeyError, TypeError):
            seconds = float(json.loads(line)["s"])
            if math.isfinite(seconds):
                yield seconds


def headline(values: Mapping[str, float]) -> str:
    """Return metrics as a line shows them."""
    return ", ".join(f"{name} {value:.4g}" for name, value in values.items())


def page_of(state: RunState, results: Path) -> str:
    """Return the page of a state, which needs no other file, and loads itself anew while the run goes on."""
    import jinja2

    loader = jinja2.FileSystemLoader(TEMPLATES)
    found = jinja2.Environment(loader=loader, undefined=jinja2.StrictUndefined, trim_blocks=True, autoescape=True)
    style = (TEMPLATES / "report.css").read_text(encoding="utf-8")
    report = "report.html" if (results / "report.html").exists() else ""
    told: dict[str, Any] = {"state": state, "results": results, "report": report, "style": style}
    told |= {"heads": HEADS, "duration": duration, "clock": clock, "every": round(EVERY_S), "size": (WIDTH, HEIGHT)}
    return found.get_template("live.html.j2").render(told)


class Live:
    """Writes the state of this process's run until it is over.

    Args:
        jobs: what Snakemake has told of them.
        results: the run's folder.
    """

    def __init__(self, jobs: Invocation, results: Path) -> None:
        self._jobs, self._results = jobs, results
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._go_on, name="live", daemon=True)
        self._begun = time.time()
        self._metrics: dict[Path, int | None] = {}  # files that nobody has read yet, each with the job that makes it
        self._earlier: dict[str, list[Path]] = {}
        self._seconds: defaultdict[str, list[float]] = defaultdict(list)
        self._counted: set[int] = set()
        self._taken = self._spent = 0.0  # seconds of this run's jobs, and of all states
        self._since: dict[tuple[int, float], float] = {}
        self._curves: defaultdict[str, dict[int, dict[str, float]]] = defaultdict(dict)
        self._seen: set[Path] = set()

    def begin(self, dag: Any) -> None:
        """Begin to write, of a run that is planned and not yet started (`snakemake.dag.DAG`)."""
        runs = set(dag.needrun_jobs())
        self._begun, self._planned = time.time(), Counter(job.rule.name for job in runs if job.log)
        for job in dag.jobs:
            if job.benchmark is not None and job.rule.name in self._planned:
                self._earlier.setdefault(job.rule.name, []).append(Path(str(job.benchmark)))
            if "metrics" in job.output.keys():  # noqa: SIM118 - of Snakemake, whose `in` looks for files
                self._metrics[Path(str(job.output.metrics))] = job.jobid if job in runs else None
        self._thread.start()

    def end(self, how: str) -> None:
        """Write the last state, if a first one was begun."""
        if self._thread.is_alive():
            self._over.set()
            self._thread.join()
            self._write(how, rest=0.0)

    def _go_on(self) -> None:
        rest = EVERY_S
        while True:
            begun, spent = time.perf_counter(), time.thread_time()
            if not self._write("", rest=rest):
                return
            computed, took = time.thread_time() - spent, time.perf_counter() - begun
            self._spent += computed
            rest = max(EVERY_S, REST * computed, WAITS * took)
            if self._over.wait(rest):
                return

    def _write(self, over: str, *, rest: float) -> bool:
        try:
            state = self.look(over, rest=rest)
            storage.write_text(self._results / STATE, state.model_dump_json() + "\n")
            storage.write_text(self._results / PAGE, page_of(state, self._results))
        except Exception as fault:  # noqa: BLE001 - what only shows a run must not end it
            log.warning(f"{self._results / PAGE} stays as it is: {fault!r}")
            return False
        return True

    def look(self, over: str = "", *, rest: float = EVERY_S) -> RunState:
        """Return the state of the run at this time."""
        now, running, ended = time.time(), self._jobs.told("running"), self._jobs.told("finished")
        self._read_records(ended)
        self._read_metrics(running)
        seconds = {rule: statistics.median(values) for rule, values in self._seconds.items() if values}
        shown = tuple(self._running(job, now, seconds) for job in running) if not over else ()
        done = Counter(job.rule for job in ended) + self._jobs.spared
        failed = tuple((row.rule, row.wildcards, row.reason) for row in self._jobs.failed)
        waiting = self._planned - done - Counter(job.rule for job in shown) - Counter(rule for rule, *_ in failed)
        begun = [job.left for job in shown if job.left is not None]
        usual = statistics.fmean(value for values in self._seconds.values() for value in values) if seconds else 0.0
        work = sum(seconds.get(rule, usual) * n for rule, n in waiting.items()) + sum(begun)
        spent = sum(now - job.since for job in shown if job.since) + self._taken
        pace = spent / (now - self._begun) if spent else 1.0
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
            spent=self._spent,
            unknown=sum(n for rule, n in waiting.items() if rule not in seconds),
            curves=tuple(Curve(run=run, points=of) for run, of in sorted(self._curves.items()) if any(of.values())),
        )

    def _running(self, job: ToldJob, now: float, seconds: Mapping[str, float]) -> RunningJob:
        since = self._since.get((job.number, job.started))
        if since is None and (moment := _touched(Path(job.log))) >= job.started - 1:
            since = self._since[job.number, job.started] = moment  # an empty log is as old as its job
        usual = seconds.get(job.rule)
        left = None if usual is None else max(0.0, usual - (now - (since or now)))
        run, _ = self._place(Path(job.log).parent)
        points = self._curves.get(run) or {0: {}}
        lines = tail(job.log, job.started).strip().splitlines()
        last = _LINE.sub("", lines[-1], count=1)[:SAID] if lines else ""
        said = "; ".join(filter(None, (headline(points[max(points)]), last)))
        return RunningJob(rule=job.rule, wildcards=job.wildcards, since=since, left=left, said=said)

    def _read_records(self, ended: list[ToldJob]) -> None:
        """Note what jobs took: of this run's each that ended, of earlier ones a few a rule."""
        for rule, paths in self._earlier.items():
            found = [path for path in paths if path.exists()][:RECORDS]
            self._seconds[rule] += [value for path in found for value in seconds_in(path)]
        self._earlier = {}
        for job in ended:
            record = Path(job.log.removesuffix(LOG) + RECORD)
            if job.number not in self._counted and record.exists():
                self._counted.add(job.number)
                took = list(seconds_in(record))[-1:]
                self._seconds[job.rule] += took
                self._taken += sum(took)

    def _read_metrics(self, running: list[ToldJob]) -> None:
        """Read the metrics of jobs that have ended, and of the last checkpoint of those that run."""
        for path, number in list(self._metrics.items()):
            if number is None or number in self._jobs.ended:
                del self._metrics[path]
                self._read(path, path.parent)
        for job in running:
            folder = Path(job.log).parent
            for path in set(folder.glob("state/step-*/metrics.jsonl")) - self._seen:
                self._seen.add(path)
                self._read(path, folder)

    def _read(self, path: Path, folder: Path) -> None:
        run, epoch = self._place(folder)
        with suppress(OSError, ValueError, KeyError, TypeError):  # gone or replaced meanwhile
            text = path.read_text(encoding="utf-8")
            for row in map(json.loads, text.splitlines() if path.suffix == ".jsonl" else [text]):
                values = [(name, float(row["values"][name])) for name in SHOWN if name in row["values"]]
                self._curves[run][int(row.get("step", epoch))] = dict(values[:MOST])

    def _place(self, folder: Path) -> tuple[str, int]:
        """Return the training run that a job's folder belongs to, and its epoch; 0 of a run that is one job."""
        name = folder.relative_to(self._results) if folder.is_relative_to(self._results) else folder
        run, _, epoch = name.as_posix().rpartition("/epoch~")
        return (run, int(epoch)) if run and epoch.isdecimal() else (name.as_posix(), 0)


def _touched(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return -math.inf
