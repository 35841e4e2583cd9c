"""One call of Snakemake: which configuration it runs, and what happens around its jobs."""

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

from lever_pipe.base import atomic, contents, numerics, provenance
from lever_pipe.base.errors import LeverPipeError, MachineError
from lever_pipe.experiment.data_config import Data
from lever_pipe.experiment.studies import Experiment, parse_experiment
from lever_pipe.runtime import failures, forks, ownership, running, sizing, snakemake_adapter, snapshot
from lever_pipe.runtime.rerun import decision, own_images, skipping
from lever_pipe.runtime.rerun.artefacts import manifests_below, set_time, time_ns
from lever_pipe.runtime.rerun.decision import plugins_of
from lever_pipe.runtime.rerun.explain import record_code
from lever_pipe.runtime.rerun.why_names import first
from lever_pipe.runtime.snakemake_adapter import LOCAL, SLURM, Workflow, without_trace
from lever_pipe.runtime.store import Store, opened

SHIPPED = "resources/"
WORTH_A_SERVER = 8
"""Planned jobs, from which on their starts take longer than that of a server."""
OF_AGENTS = ("transformers.models.qwen3.modeling_qwen3",)
FUTURE_STOPS = "a job that reads it will stop the run. Give it the present time: touch FILE"
LOCKS = Path(".snakemake/locks")
SEARCHES_FOR_GARBAGE = (50_000, 20, 50)
"""A plan is objects that last: among them Python's own thresholds let it search for a fifth of the time, in vain."""
RUNNING = Path(".snakemake/lever_pipe/running")
"""Locked by the run that is at work in a working directory; says on which machine and boot the last one was."""
LATE = dict.fromkeys(("train_agent", "evaluate_agent", "evaluate_start", "warm_start_agent"), OF_AGENTS)
"""What stages import when they run, so that nothing else has to wait for it: worth seconds a job."""

log = logging.getLogger(f"snakemake.logging.{__name__}")  # also in the run's own log file


class Run:
    """What the workflow asks for and calls, in the main process and in a job's own Snakemake.

    Args:
        workflow: Snakemake's.
        config: the configuration as Snakemake or the user of the `module` gives it.
        root: the workflow's folder, where what it ships lies.

    Attributes:
        experiment: the parsed configuration.
        resources_of: gives a rule's threads and resources.

    Raises:
        WorkflowError: the configuration does not parse, or a job has no snapshot to read (of Snakemake).
    """

    def __init__(self, workflow: Workflow, config: Mapping[str, Any], root: Path) -> None:
        self._workflow, self._root, self._started = workflow, root, time.monotonic()
        self._running: running.RunningJobs | None = None
        gc.freeze()
        gc.set_threshold(*SEARCHES_FOR_GARBAGE)
        set_cache_folder_of_jobs(root)
        with without_trace():
            self.experiment = experiment_of(workflow, config, root)
            numerics.choose(self.experiment.numerics)  # jobs inherit it
            self._failures = failures.Failures()
            self._skipping = skipping.Skipping(store_of(self.experiment))
            gpu_request = snakemake_adapter.gpu_request(workflow)
            self._listed = set[str]()
            self.resources_of = sizing.resources_for(self.experiment, gpu_request=gpu_request)
        if workflow.is_main_process:
            self._failures.attach()
            snakemake_adapter.silence_trigger_advice()

    def use_content_based_reruns(self) -> None:
        """Let Snakemake plan by what the manifests say; in a job's own, skip what another has made."""
        decision.set_rerun_on_library_versions(self.experiment.rerun_on_library_versions)
        if not self._workflow.is_main_process:
            skipping.skip_if(skipping.completed_by_another_job)
            return
        artefacts = (decision.has_manifest, decision.why_again, self._skipping.foresee)
        snakemake_adapter.plan_by_contents(*artefacts, without_trace()(hold_folder), whole="all")
        snakemake_adapter.explain_missing_input(without_trace()(self._refuse_missing))
        decision.before_plan(Path(self.experiment.results))

    @without_trace()
    def listing_of_images(self, path: str, data: Data, split: str) -> str:
        """Return the path of the digests of a split's own images; the main process writes the file while it plans."""
        if self._workflow.is_main_process and path not in self._listed:
            self._listed.add(path)
            images = own_images.write_listing(Path(path), data, split, contents.remembered())
            if own_images.MISSING in images.values() and (absent := own_images.missing(data, split)):
                log.warning(f"Missing images, a run stops before its first job: {absent}.")
        return path

    @without_trace()
    def begin(self) -> None:
        """Save what this invocation will compute, check what it needs, skip what is made; not in a job's Snakemake.

        Raises:
            WorkflowError: something that jobs would fail on (of Snakemake).
        """
        from lever_pipe.runtime.checks import doctor  # only a run asks it

        if not self._workflow.is_main_process:
            return
        workflow, experiment, results = self._workflow, self.experiment, Path(self.experiment.results)
        jobs, executor = list(workflow.dag.needrun_jobs()), str(workflow.executor_plugin.name)
        results.mkdir(parents=True, exist_ok=True)
        # First, so that what a job of a former run makes while the check looks for it is younger than this plan.
        snapshot.save(experiment.model_dump(mode="json"), snapshot.planned(jobs), self._root)
        for stage, code, plugins in _codes_of(jobs):  # so that `why` can name the modules that differ
            record_code(results, stage, plugins, code)
        contents.remembered().save()  # a job's own Snakemake asks for the identity of the same models
        snapshot.remember_codes()
        _set_back_future_times(jobs)
        prefix = (workflow.executor_settings.jobname_prefix or "") if executor in SLURM else None
        doctor.preflight(experiment, executor=executor, jobs=doctor.submitted(jobs), prefix=prefix)
        snakemake_adapter.keep_files_from_jobs(workflow)
        skipping.skip_if(self._skipping.skip)
        if executor == LOCAL:
            snakemake_adapter.leave_pace_to_cores(workflow.scheduler)
            snakemake_adapter.log_one_line_per_job(len(jobs))
        if not snakemake_adapter.is_quiet(workflow):
            self._running = running.RunningJobs(len(jobs))
            self._running.start()
        if experiment.forked_jobs and len(jobs) >= WORTH_A_SERVER and sys.platform == "linux":
            forks.fork_calls(modules_of(jobs))

    def _refuse_missing(self, refusal: str) -> None:
        """Refuse a run without its raw files by all that it lacks.

        Args:
            refusal: Snakemake's text, which names the files of one job.

        Raises:
            PreflightError: names files, model folders and where to get them.
        """
        from lever_pipe.runtime.checks import findings, local_checks

        names = [name for raw in local_checks.raw_files(self.experiment) for name in raw.names]
        if not any(name in refusal for name in names):
            return  # another file, which no check knows
        rules = [rule.name for rule in self._workflow.rules]
        findings.require_no_problem(local_checks.check(self.experiment, rules=rules, folder=Path()))

    def closing_summary(self) -> str:
        """Return the lines that end a successful run: the answers, and where the rest is, of what it asked for."""
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
        """Return the lines that end a failed run: what failed, with its last lines."""
        self._end()
        return f"\n{self._failures.summary(but='SIGINT' if _interrupts else None)}{self._skipping.summary()}\n"

    def _end(self) -> None:
        if self._running:
            self._running.stop()
        end(self.experiment)


def set_cache_folder_of_jobs(root: Path) -> None:
    """Make `python` in a job's shell the interpreter that runs the workflow, and `lever_pipe` the package beside it."""
    for name, folder in (("PATH", Path(sys.executable).parent), ("PYTHONPATH", root)):
        os.environ[name] = os.pathsep.join([str(folder), *filter(None, [os.environ.get(name)])])


def experiment_of(workflow: Workflow, config: Mapping[str, Any], root: Path) -> Experiment:
    """Return the experiment: of the configuration in the main process, of the snapshot in a job's Snakemake.

    Args:
        workflow: Snakemake's.
        config: the configuration as Snakemake or the user of the `module` gives it.
        root: the workflow's folder, where what it ships lies.

    Raises:
        ConfigError: the configuration does not parse.
        SnapshotError: a job without a snapshot, or whose rules were edited after the invocation began.
    """
    if workflow.is_main_process:
        # What will be frozen is read before any fingerprint: an edit while the plan is made is none of this invocation.
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
    """Return values of which those that name shipped resources name them from any working directory."""
    if isinstance(value, Mapping):
        return {key: _placed(item, root) for key, item in value.items()}
    if isinstance(value, list):
        return [_placed(item, root) for item in value]
    is_elsewhere = isinstance(value, str) and value.startswith(SHIPPED) and not Path(value).exists()
    return str(root / value) if is_elsewhere and (root / value).exists() else value


def hold_folder() -> None:
    """Hold the working directory as long as this process lives; drop Snakemake's lock of a run that was killed here.

    One run a folder: the kernel lets go of the file however its holder ends, so that who gets it knows that no other
    run of this machine is at work.

    Raises:
        MachineError: another run is.
    """
    if _held:  # planned once more
        return
    RUNNING.parent.mkdir(parents=True, exist_ok=True)
    try:
        handle = ownership.try_lock(RUNNING)
    except OSError:  # a file system without locks: Snakemake's own decide
        return
    if handle is None:
        expected = f"{Path.cwd()}: expected a working directory in which no other run is at work"
        raise MachineError(expected, found="one", do="Wait for its end; two at once need a folder each.")
    handle.seek(0)
    former = handle.read()
    if former == atomic.machine() and (left := list(LOCKS.glob("*.lock"))):
        for lock in left:
            lock.unlink()
        log.warning("The run before this one was killed; what it finished stays, and its lock is removed.")
    handle.truncate(0)
    handle.write(atomic.machine())
    handle.flush()
    _held.append(handle)


_held: list[IO[str]] = []
"""Keeps the file open, and so locked, until this process ends."""


def _interrupt_once(number: int, frame: FrameType | None) -> None:
    """End Snakemake at the first Ctrl-C; its jobs get each later one themselves, and its own end is left whole."""
    _interrupts.append(number)
    snakemake_adapter.silence_errors()  # the jobs' ends by the same Ctrl-C are no news
    signal.signal(number, lambda *_: None)  # no SIG_IGN: what it starts would ignore Ctrl-C too
    signal.default_int_handler(number, frame)


_interrupts: list[int] = []
"""The signal of a Ctrl-C, if there was one."""


def _trace_no_ctrl_c(kind: type[BaseException], problem: BaseException, trace: TracebackType | None) -> None:
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, problem, trace)


def _end_by_signal() -> None:
    """End this process by the signal that ended its run: a shell's loop goes on after Snakemake's own exit status."""
    for number in _interrupts:
        sys.stderr.write("SIGINT: ended. What finished stays; the same command goes on.\n")
        sys.stdout.flush()
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)


def store_of(experiment: Experiment) -> Store | None:
    """Return the store that the configuration names, if any."""
    return None if experiment.store is None else opened(experiment.store.model_dump())


def _set_back_future_times(jobs: list[Any]) -> None:
    """Give the present time to inputs of a later one: Snakemake ends a run whose outputs are older than these."""
    now, ahead = time.time_ns(), list[Path]()
    for path in dict.fromkeys(Path(file) for job in jobs for file in job.input):
        if time_ns(path) > now:
            set_time(path, now)
            ahead.append(path)
    if left := [path for path in ahead if time_ns(path) > now]:
        log.warning(f"{first(list(map(str, left)))}: of a time to come, and not this user's to change: {FUTURE_STOPS}")
    elif ahead:
        log.warning(f"{first(list(map(str, ahead)))}: of a time to come; set to now, as no time decides anything here.")


def modules_of(jobs: list[Any]) -> list[str]:
    """Return the stages of jobs, the plugins that their configurations name, and what they import late."""
    planned = list(_codes_of(jobs))
    names = {provenance.stages()[stage] for stage, _, _ in planned}
    names |= {f"{provenance.PACKAGE.name}.{name}" for _, _, plugins in planned for name in plugins}
    return [*sorted(names), *sorted({module for stage, _, _ in planned for module in LATE.get(stage, ())})]


def end(experiment: Experiment) -> None:
    """Remember the contents that were read, remove what nobody reads, and keep the store within its bound."""
    contents.remembered().save()
    with suppress(OSError):  # results that are gone, or another user's
        ownership.sweep(Path(experiment.results))
        drop_empty_logs(Path(experiment.results))
    store = store_of(experiment)
    if store is not None:
        try:
            store.trim()
        except (LeverPipeError, OSError) as error:  # the summary of the run comes first
            log.warning(f"{store.folder}: not trimmed: {error}")


def drop_empty_logs(results: Path) -> None:
    """Remove the logs of finished jobs that said nothing; Snakemake makes them anew where none is left."""
    for manifest in manifests_below(results):
        log_file = manifest.with_name(manifest.name.removesuffix("run.json") + "log.txt")
        if log_file.is_file() and not log_file.stat().st_size:
            log_file.unlink()


def _codes_of(jobs: list[Any]) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Yield each stage with each of its fingerprints and the plugins that its configuration names."""
    of_code: dict[tuple[str, str], dict[str, Any]] = {}
    for stage, spec in snapshot.planned(jobs).values():
        identity = json.loads(spec)
        of_code[stage, identity["code"]] = identity["config"]
    for (stage, code), config in of_code.items():
        yield stage, code, plugins_of(stage, config)
