"""Configuration, checks, snapshot and summary of one Snakemake invocation, and of the jobs' own Snakemake processes."""

from __future__ import annotations

import atexit
import gc
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import FrameType, TracebackType
from typing import IO, Any

from lever_pipe.base import atomic, contents, numerics, plugins, provenance
from lever_pipe.base.artefacts import manifests_below
from lever_pipe.base.errors import LeverPipeError, MachineError, first
from lever_pipe.experiment.data import Data
from lever_pipe.experiment.studies import Experiment, parse_experiment
from lever_pipe.runtime import failures, forks, ownership, running, sizing, snakemake_adapter, snapshot
from lever_pipe.runtime.reruns import check, own_images, skip
from lever_pipe.runtime.reruns.check import plugins_of
from lever_pipe.runtime.reruns.manifest import before_plan, record_code, set_time, time_ns
from lever_pipe.runtime.snakemake_adapter import LOCAL, SLURM, Workflow, without_trace
from lever_pipe.runtime.store import Store, opened

SHIPPED = "resources/"
WORTH_A_SERVER = 8
"""Minimum number of planned jobs for a fork server: for fewer jobs, starting the server takes longer."""
OF_AGENTS = ("transformers.models.qwen3.modeling_qwen3",)
FUTURE_STOPS = "a job that reads it will stop the run. Set its time to now: touch FILE"
LOCKS = Path(".snakemake/locks")
SEARCHES_FOR_GARBAGE = (50_000, 20, 50)
"""Thresholds of the garbage collector. With Python's defaults, it took 20 % of the planning time and freed nothing,
because a plan's objects live until the end."""
RUNNING = Path(".snakemake/lever_pipe/running")
"""Lock file of the active run in a working directory; contains machine and boot of the last run."""
LATE = dict.fromkeys(("train_agent", "evaluate_agent", "evaluate_start", "warm_start_agent"), OF_AGENTS)
"""Late imports of stages; a fork server imports them beforehand, which saves seconds per job."""

log = logging.getLogger(f"snakemake.logging.{__name__}")  # also in the run's own log file


class Run:
    """The interface of this package to the Snakefile, in the main process and in a job's own Snakemake.

    Args:
        workflow: Snakemake's workflow.
        config: the configuration from Snakemake or from the including `module`.
        root: the workflow's folder, which contains the shipped resources.

    Attributes:
        experiment: the parsed configuration.
        resources_of: returns a rule's threads and resources.

    Raises:
        WorkflowError: Snakemake's error for an invalid configuration, or a job without a snapshot.
    """

    def __init__(self, workflow: Workflow, config: Mapping[str, Any], root: Path) -> None:
        self._workflow, self._root, self._started = workflow, root, time.monotonic()
        self._running: running.RunningJobs | None = None
        gc.freeze()  # imported modules live until the end, too: exclude them from collections
        gc.set_threshold(*SEARCHES_FOR_GARBAGE)
        set_interpreter_and_package_of_jobs(root)
        with without_trace():
            plugins.require_current_name()
            self.experiment = experiment_of(workflow, config, root)
            numerics.choose(self.experiment.numerics)  # sets environment variables that jobs inherit
            self._failures = failures.Failures()
            self._skipping = skip.Skipping(store_of(self.experiment))
            gpu_request = snakemake_adapter.gpu_request(workflow)
            self._listed = set[str]()
            self.resources_of = sizing.resources_for(self.experiment, gpu_request=gpu_request)
        if workflow.is_main_process:
            self._failures.attach()
            snakemake_adapter.silence_trigger_advice()

    def use_content_based_reruns(self) -> None:
        """Make Snakemake plan by manifests; in a job's own Snakemake, skip the job if another one made its artifact."""
        check.set_rerun_on_library_versions(self.experiment.rerun_on_library_versions)
        if not self._workflow.is_main_process:
            skip.skip_if(skip.completed_by_another_job)
            return
        callbacks = (check.why_again, self._skipping.foresee)
        snakemake_adapter.plan_by_contents(*callbacks, without_trace()(hold_folder), whole="all")
        snakemake_adapter.explain_missing_input(without_trace()(self._refuse_missing))
        before_plan(Path(self.experiment.results))

    @without_trace()
    def listing_of_images(self, path: str, data: Data, split: str) -> str:
        """Return the path of the listing of a split's images; the main process writes the file while it plans."""
        if self._workflow.is_main_process and path not in self._listed:
            self._listed.add(path)
            images = own_images.write_listing(Path(path), data, split, contents.remembered())
            if own_images.MISSING in images.values() and (absent := own_images.missing(data, split)):
                log.warning(f"Missing images; a run stops before its first job: {absent}.")
        return path

    @without_trace()
    def begin(self) -> None:
        """Save this invocation's snapshot, check its requirements and set up skipping; do nothing in a job's Snakemake.

        Raises:
            WorkflowError: Snakemake's error for a problem on which jobs would fail.
        """
        from lever_pipe.runtime.checks import doctor  # only runs need it, not dry runs or jobs

        if not self._workflow.is_main_process:
            return
        workflow, experiment, results = self._workflow, self.experiment, Path(self.experiment.results)
        jobs, executor = list(workflow.dag.needrun_jobs()), str(workflow.executor_plugin.name)
        results.mkdir(parents=True, exist_ok=True)
        # First: if a job of an earlier run ends during the checks, its artifact must be newer than this plan.
        snapshot.save(experiment.model_dump(mode="json"), snapshot.planned(jobs), self._root)
        for stage, code, names in _codes_of(jobs):  # so that `why` can name the modules that differ
            record_code(results, stage, names, code)
        contents.remembered().save()  # the jobs' own Snakemake processes need the digests of the same models
        snapshot.remember_codes()
        _set_back_future_times(jobs)
        prefix = (workflow.executor_settings.jobname_prefix or "") if executor in SLURM else None
        doctor.preflight(experiment, executor=executor, jobs=doctor.submitted(jobs), prefix=prefix)
        snakemake_adapter.keep_files_from_jobs(workflow)
        skip.skip_if(self._skipping.skip)
        if executor == LOCAL:
            snakemake_adapter.leave_pace_to_cores(workflow.scheduler)
            snakemake_adapter.log_one_line_per_job(len(jobs))
        if not snakemake_adapter.is_quiet(workflow):
            self._running = running.RunningJobs(len(jobs))
            self._running.start()
        # `forks` needs prctl and pidfd_open, which only Linux has.
        if experiment.forked_jobs and len(jobs) >= WORTH_A_SERVER and sys.platform == "linux":
            forks.fork_calls(modules_of(jobs))

    def _refuse_missing(self, refusal: str) -> None:
        """Refuse a run without its raw files; list everything that is missing.

        Args:
            refusal: Snakemake's message, which names only the files of one job.

        Raises:
            PreflightError: names all missing files and model folders, and their sources.
        """
        from lever_pipe.runtime.checks import findings, local_checks

        names = [name for raw in local_checks.raw_files(self.experiment) for name in raw.names]
        if not any(name in refusal for name in names):
            return  # not a raw file: let Snakemake raise its own error
        rules = [rule.name for rule in self._workflow.rules]
        findings.require_no_problem(local_checks.check(self.experiment, rules=rules, folder=Path()))

    def closing_summary(self) -> str:
        """Return the closing lines of a successful run: skipped jobs, answers, and paths of the requested results."""
        minutes, results = (time.monotonic() - self._started) / 60, Path(self.experiment.results)
        self._end()
        notes = f"\n{skipped}" if (skipped := self._skipping.summary()) else ""
        requested_targets = {Path(file) for job in self._workflow.dag.jobs for file in job.output}
        answers, page, report = "", results / "grid/report.html", results / "report.html"
        locations = f"Grid:    {page}\n" if page in requested_targets else ""
        if report in requested_targets:
            title = f"{self.experiment.report.title}\n".lstrip()
            answers = f"\n{title}{(results / 'report/answers.txt').read_text(encoding='utf-8')}"
            locations += f"Report:  {report}\nTables:  {results}/report/tables/\nFigures: {results}/figures/\n"
        return f"\nDone in {minutes:.1f} minutes.{notes}\n{answers}\n{locations}"

    def failure_summary(self) -> str:
        """Return the closing lines of a failed run: the failed jobs with the last lines of their logs."""
        self._end()
        return f"\n{self._failures.summary(but='SIGINT' if _interrupts else None)}{self._skipping.summary()}\n"

    def _end(self) -> None:
        if self._running:
            self._running.stop()
        end(self.experiment)


def set_interpreter_and_package_of_jobs(root: Path) -> None:
    """Make jobs' shells use this Python interpreter, and the `lever_pipe` package in the workflow's folder."""
    for name, folder in (("PATH", Path(sys.executable).parent), ("PYTHONPATH", root)):
        os.environ[name] = os.pathsep.join([str(folder), *filter(None, [os.environ.get(name)])])


def experiment_of(workflow: Workflow, config: Mapping[str, Any], root: Path) -> Experiment:
    """Return the experiment: from the configuration in the main process, from the snapshot in a job's Snakemake.

    Args:
        workflow: Snakemake's workflow.
        config: the configuration from Snakemake or from the including `module`.
        root: the workflow's folder, which contains the shipped resources.

    Raises:
        ConfigError: the configuration does not parse.
        SnapshotError: a job has no snapshot, or its rules were edited after the invocation began.
    """
    if workflow.is_main_process:
        # Cache the digests of the sources before any fingerprint, so that edits during planning are detected later.
        snapshot.package_digest(), snapshot.workflow_digest(root)
        snapshot.recall_codes()
        found = snakemake_adapter.strictly_read(workflow, config)
        experiment = parse_experiment(_placed(found.values, root), source=found.source)
        if line := found.destination(experiment.results):
            log.info(line)
        signal.signal(signal.SIGINT, _interrupt_once)
        atexit.register(_end_by_signal)
        sys.excepthook = _trace_no_ctrl_c
        return experiment
    return parse_experiment(snapshot.load_config(root), source=f"the snapshot of {snapshot.VARIABLE}")


def _placed(value: Any, root: Path) -> Any:
    """Prepend the workflow's folder to paths of shipped resources that do not exist in the working directory."""
    if isinstance(value, Mapping):
        return {key: _placed(item, root) for key, item in value.items()}
    if isinstance(value, list):
        return [_placed(item, root) for item in value]
    is_elsewhere = isinstance(value, str) and value.startswith(SHIPPED) and not Path(value).exists()
    return str(root / value) if is_elsewhere and (root / value).exists() else value


def hold_folder() -> None:
    """Lock the working directory while this process lives; remove Snakemake's locks of a run that was killed here.

    Only one run per folder is allowed. The kernel releases the lock when its process ends in any way, so a process that
    gets it is the only run of this machine in the folder.

    Raises:
        MachineError: another run is active.
    """
    if _held:  # this process has planned before
        return
    RUNNING.parent.mkdir(parents=True, exist_ok=True)
    try:
        handle = ownership.try_lock(RUNNING)
    except OSError:  # a file system without locks: rely on Snakemake's own locks
        return
    if handle is None:
        expected = f"{Path.cwd()}: expected a working directory in which no other run is at work"
        raise MachineError(expected, found="one", do="Wait for its end; two at once need a folder each.")
    # Snakemake's locks have no owner. They are stale only if the last run was of this machine and boot, because then it
    # would hold the lock above if it were alive.
    handle.seek(0)
    former = handle.read()
    if former == atomic.machine() and (left := list(LOCKS.glob("*.lock"))):
        for lock in left:
            lock.unlink()
        log.warning("The previous run was killed; its finished results are kept, and its lock is removed.")
    handle.truncate(0)
    handle.write(atomic.machine())
    handle.flush()
    _held.append(handle)


_held: list[IO[str]] = []
"""Lock file, kept open and therefore locked until this process ends."""


def _interrupt_once(number: int, frame: FrameType | None) -> None:
    """End Snakemake at the first Ctrl-C; ignore later ones, which jobs still receive, to complete the shutdown."""
    _interrupts.append(number)
    snakemake_adapter.silence_errors()  # the same Ctrl-C ends the jobs: do not report them as errors
    signal.signal(number, lambda *_: None)  # not SIG_IGN, which child processes would inherit
    signal.default_int_handler(number, frame)


_interrupts: list[int] = []
"""The signal of a Ctrl-C, or empty."""


def _trace_no_ctrl_c(kind: type[BaseException], problem: BaseException, trace: TracebackType | None) -> None:
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, problem, trace)


def _end_by_signal() -> None:
    """End this process by the signal that ended its run: after a mere exit status, a shell's loop would continue."""
    for number in _interrupts:
        sys.stderr.write("SIGINT: ended. Finished results are kept; the same command continues the run.\n")
        sys.stdout.flush()
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)


def store_of(experiment: Experiment) -> Store | None:
    """Open the configured store, if any."""
    return None if experiment.store is None else opened(experiment.store.model_dump())


def _set_back_future_times(jobs: list[Any]) -> None:
    """Set input times in the future to now: Snakemake stops a run if a job's outputs are older than its inputs."""
    now, ahead = time.time_ns(), list[Path]()
    for path in dict.fromkeys(Path(file) for job in jobs for file in job.input):
        if time_ns(path) > now:
            set_time(path, now)
            ahead.append(path)
    if left := [path for path in ahead if time_ns(path) > now]:
        log.warning(
            f"{first(list(map(str, left)))}: modification time in the future; this user cannot change it: "
            f"{FUTURE_STOPS}"
        )
    elif ahead:
        log.warning(f"{first(list(map(str, ahead)))}: modification time in the future; set to now.")


def modules_of(jobs: list[Any]) -> list[str]:
    """Return the modules of jobs' stages and plugins, and their late imports."""
    planned = list(_codes_of(jobs))
    names = {provenance.stages()[stage] for stage, _, _ in planned}
    names |= {f"{provenance.PACKAGE.name}.{name}" for _, _, modules in planned for name in modules}
    return [*sorted(names), *sorted({module for stage, _, _ in planned for module in LATE.get(stage, ())})]


def end(experiment: Experiment) -> None:
    """Save the cache of digests, remove leftovers and empty logs, and trim the store."""
    contents.remembered().save()
    with suppress(OSError):  # the results were removed, or belong to another user
        ownership.sweep(Path(experiment.results))
        drop_empty_logs(Path(experiment.results))
    store = store_of(experiment)
    if store is not None:
        try:
            store.trim()
        except (LeverPipeError, OSError) as error:  # must not prevent the summary of the run
            log.warning(f"{store.folder}: not trimmed: {error}")


def drop_empty_logs(results: Path) -> None:
    """Remove empty logs of finished jobs; Snakemake creates missing logs again."""
    for manifest in manifests_below(results):
        log_file = manifest.with_name(manifest.name.removesuffix("run.json") + "log.txt")
        if log_file.is_file() and not log_file.stat().st_size:
            log_file.unlink()


def _codes_of(jobs: list[Any]) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Yield each stage with each of its code fingerprints and the plugins of its configuration."""
    of_code: dict[tuple[str, str], dict[str, Any]] = {}
    for stage, spec in snapshot.planned(jobs).values():
        identity = json.loads(spec)
        of_code[stage, identity["code"]] = identity["config"]
    for (stage, code), config in of_code.items():
        yield stage, code, plugins_of(stage, config)
