"""The private parts of Snakemake and its plugins that this package uses, in the versions of `WRITTEN_FOR`.

The code is here, except for lines that name a plugin.

`tests/unit/runtime/test_snakemake_adapter.py` contains a digest of the source of each private part, so it fails when
Snakemake changes one. `lever-pipe doctor` warns of an unverified version. These are the private parts, with reasons:

* `DAG.init`: its error for missing input names only rules and outputs.
* `DAG.update_needrun` selects the jobs to run. It considers only outputs that other jobs read, and compares file times
  (`Job.output_mintime`). Times miss changed contents, jobs that ended unobserved, and moved results.
* `dag_settings`, and the records of a rule's command: for a job that depends on a running job, Snakemake checks
  neither whether it is forced nor whether its command was edited.
* `modifier.skip_configfile`: set for a `module` that gets its configuration from the including workflow.
* `configfiles` of its settings, which it passes to the jobs, and default resources before they are evaluated.
* `--target-jobs`: before planning, a job's own Snakemake does not expose the job that it was started for.
* `job_rate_limiter` of the scheduler: its rate cannot be unset.
* The terminal's log handler, found by its name: it prints eight lines per job, and advice about file times. The advice
  is recognized by the functions that log it.
* `cli.parse_config` and `load_configfile`: they read the configuration before any of the workflow's own code runs. The
  plugin `local`, which Snakemake imports first, wraps `cli.args_to_api` and replaces them for this workflow.
* `run_job` of the SLURM plugin and its reports: the executor `lever-slurm` repeats submissions.
* `cli.main` and `cli.parse_args`: the Python API accepts no command-line arguments and no profiles.
"""

from __future__ import annotations

import copy
import io
import json
import logging
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

from snakemake_interface_logger_plugins.common import LogEvent

from lever_pipe.base.artefacts import MANIFEST, Call
from lever_pipe.base.errors import ConfigError, LeverPipeError, MachineError
from lever_pipe.experiment import configuration
from lever_pipe.experiment.configuration import DEFAULT_FILE, Configuration
from lever_pipe.experiment.manifests import files_of
from lever_pipe.experiment.studies import Experiment, parse_experiment

Workflow = Any  # snakemake.workflow.Workflow
Dag = Any  # snakemake.dag.DAG
Job = Any  # snakemake.jobs.Job

WRITTEN_FOR = {"snakemake": "9.27.1", "snakemake-executor-plugin-slurm": "2.8.0"}


def unknown_versions() -> dict[str, str]:
    """Return name and version of the installed packages for which this module is unverified."""
    unknown: dict[str, str] = {}
    for name, expected in WRITTEN_FOR.items():
        with suppress(PackageNotFoundError):
            unknown |= {name: version(name)} if version(name) != expected else {}
    return unknown


# Plans.


_unamended: dict[tuple[Any, str], Any] = {}


def amend_methods(owner: Any, **wrappers: Callable[[Any], Any]) -> None:
    """Wrap methods and properties of a class, or functions of a module; a later call replaces an earlier one."""
    for name, wrapper in wrappers.items():
        # Wrap the original, not an earlier wrapper: each workflow of a process calls this again.
        setattr(owner, name, wrapper(_unamended.setdefault((owner, name), getattr(owner, name))))


def has_manifest(job: Job) -> bool:
    """Return whether a job writes a manifest; a user's own rules may not."""
    return MANIFEST in set(job.output.keys()) and hasattr(job.params, "spec")


def call_of(job: Job, folder: Path = Path()) -> Call:
    """Return what a job with a manifest makes; `folder` is prepended to its paths."""
    inputs, outputs = files_of(job.input, folder), files_of(job.output, folder)
    manifest = outputs.pop(MANIFEST)
    assert isinstance(manifest, Path)
    return Call(stage=job.rule.name, inputs=inputs, outputs=outputs, manifest=manifest, **json.loads(job.params.spec))


def plan_by_contents(
    why_again: Callable[[Job, bool], str],
    foresee: Callable[[Dag], dict[Job, str]],
    before_lock: Callable[[], None],
    *,
    whole: str,
) -> None:
    """Plan by manifests instead of file times, and make missing outputs even if no job reads them.

    Snakemake decides about jobs without a manifest.

    Args:
        why_again: returns the reason to rerun a job; empty if its outputs are valid or absent. The second argument is
            whether a changed configuration or code is a reason: not if `--rerun-triggers` omits `params`.
        foresee: returns the jobs of a dry run's plan that will be skipped, with reasons (`PlannedJob.skipped`).
        before_lock: called after the plan of a run that locks its folder; raises an error to refuse the run.
        whole: the rule whose targets include every output; for other targets, only needed outputs are made.
    """
    from snakemake.dag import DAG
    from snakemake.jobs import Job as OwnJob
    from snakemake.settings.types import RerunTrigger

    never = float("inf")  # for None, Snakemake would use the time of a downstream job

    def amended_time(original: Any) -> property:
        async def mintime(job: Job) -> float | None:
            return never if has_manifest(job) else await original.fget(job)

        return property(mintime)

    def amended_plan(planned: Callable[..., Any]) -> Callable[..., Any]:
        async def update_needrun(dag: Dag, create_inventory: bool = False) -> None:
            # Set reasons before Snakemake plans: it then also plans the jobs that depend on these.
            is_whole = any(rule.name == whole for rule in dag.targetrules)
            for job in dag.bfs(dag.dependencies, *dag.targetjobs):
                if is_whole:
                    missing = [file for file in job.output if not (file.is_temp or await file.exists())]
                    dag.reason(job).missing_output.update(missing)
                if has_manifest(job):
                    dag.reason(job).params_changed = why_again(job, RerunTrigger.PARAMS in dag.workflow.rerun_triggers)
            await planned(dag, create_inventory)
            dag.foreseen = foresee(dag) if dag.workflow.dryrun else {}
            settings = dag.workflow.execution_settings  # None for commands such as --summary
            if settings and settings.lock and not dag.workflow.dryrun and not dag.workflow.touch:
                before_lock()

        return update_needrun

    amend_methods(OwnJob, output_mintime=amended_time)
    amend_methods(DAG, update_needrun=amended_plan)


def explain_missing_input(explain: Callable[[str], None]) -> None:
    """Call a function with Snakemake's message when an input is missing that no rule makes.

    The function may raise a better error; otherwise Snakemake's error is raised.
    """
    from snakemake.dag import DAG
    from snakemake.exceptions import MissingInputException

    def amended_init(original: Callable[..., Any]) -> Callable[..., Any]:
        async def init(dag: Dag, progress: bool = False) -> None:
            try:
                await original(dag, progress=progress)
            except MissingInputException as refusal:
                if not _plan_listeners:  # `planned_jobs` handles this error itself and plans again
                    explain(str(refusal))
                raise

        return init

    amend_methods(DAG, init=amended_init)


def is_wanted(job: Job) -> bool:
    """Return whether the user forced a job or edited its rule's command.

    Snakemake also forces the unfinished jobs of a killed run. Here the manifest decides whether such a job is complete.
    """
    from snakemake.settings.types import RerunTrigger

    dag, workflow = job.dag, job.dag.workflow
    settings = workflow.dag_settings
    # `--forcerun` contains names of rules and paths of outputs.
    by_name = job.rule.name in settings.forcerun or not settings.forcerun.isdisjoint(job.output)
    is_target = settings.forcetargets and job in dag.targetjobs
    if settings.forceall or by_name or is_target:
        return True
    return RerunTrigger.CODE in workflow.rerun_triggers and any(workflow.persistence.code_changed(job))


# Configuration.


@contextmanager
def without_trace() -> Iterator[None]:
    """Convert expected errors to an error that Snakemake prints without a traceback."""
    from snakemake.exceptions import WorkflowError

    try:
        yield
    except (LeverPipeError, OSError) as caught:
        problem = MachineError.of(caught) if isinstance(caught, OSError) else caught
        # Snakemake prints the traceback's lines. A context manager would set `__traceback__` again, so make it inert.
        no_traceback = property(lambda _: None, lambda *_: None)
        silent = type(type(problem).__name__, (WorkflowError,), {"__traceback__": no_traceback})
        raise silent(str(problem)) from None


@contextmanager
def own_reader() -> Iterator[None]:
    """Make Snakemake read configuration files and `--config` with this package's reader, before any rule is parsed.

    Snakemake's reader silently uses the last of repeated keys, and prints a traceback for an unreadable file. Dotted
    names of `--config` are omitted here, because Snakemake does not support them: `strictly_read` applies them.
    """
    from snakemake import cli
    from snakemake.common import configfile
    from snakemake.settings import types

    def words(entries: Sequence[str] | None) -> dict[str, Any]:
        return {entry.path[0]: entry.value for entry in configuration.read_words(entries) if len(entry.path) == 1}

    def file(path: str | Path) -> dict[str, Any]:
        return configuration.read_file(Path(path))

    # `types` imported the function by name, so it needs its own replacement.
    replaced = [(cli, "parse_config", words), (types, "load_configfile", file), (configfile, "load_configfile", file)]
    former = [(module, name, getattr(module, name)) for module, name, _ in replaced]
    for module, name, function in replaced:
        setattr(module, name, without_trace()(function))
    try:
        yield
    finally:
        for module, name, function in former:
            setattr(module, name, function)


def strictly_read(workflow: Workflow, config: Mapping[str, Any]) -> Configuration:
    """Read configuration files and `--config` with this package's reader, and merge them over Snakemake's values.

    Snakemake's configuration also contains the values that an including Snakefile sets. The configuration of a
    `module` is used unchanged.

    Raises:
        ConfigError: a file or argument cannot be read.
    """
    values, settings = copy.deepcopy(dict(config)), workflow.config_settings
    if workflow.modifier.skip_configfile:
        return Configuration(values, tuple(map(str, workflow.configfiles)))
    # `workflow.configfiles` lists the files of the command line first, then those of Snakefiles. Later files win here,
    # so the command line's files go last.
    given = list(settings.configfiles)
    files = [] if settings.replace_workflow_config else workflow.configfiles[len(given) :]
    found = configuration.read([_near(Path(path)) for path in (*files, *given)], settings.config_args)
    return found._replace(values=configuration.laid_over(values, found.values))


def _near(path: Path) -> Path:
    """Return a path below the working directory as a relative one, as messages show it."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def keep_files_from_jobs(workflow: Workflow) -> None:
    """Pass no configuration files to the jobs' own Snakemake processes: the files may be edited during the run."""
    workflow.config_settings.configfiles = ()


def gpu_request(workflow: Workflow) -> str:
    """Return the GPU resource's name from the profile's default-resources; `gpu` by default."""
    defaults = workflow.resource_settings.default_resources
    request = defaults.get("gpu_request") if defaults else None
    return str(getattr(request, "raw", None) or "gpu")


# Executors.

USUAL_RATE = (100, 1)
"""Jobs and seconds of Snakemake's default for `--max-jobs-per-timespan`."""
LOCAL, SLURM = "local", ("lever-slurm", "slurm")
"""Names of executors."""


def leave_pace_to_cores(scheduler: Any) -> None:
    """Remove Snakemake's default job rate limit, so that only cores limit the jobs of this machine.

    With a rate limit, each scheduling pass starts another pass a second later. After N finished jobs there are N passes
    a second: half a core after some hundred jobs. No value of `--max-jobs-per-timespan` disables the limit. A rate that
    the user sets is kept.
    """
    rate = scheduler.job_rate_limiter
    if rate is not None and (rate.max_jobs, rate.timespan) == USUAL_RATE:
        scheduler.job_rate_limiter = None


# The terminal. The run's own log file still contains every message of Snakemake.

LOGGER, TERMINAL = "snakemake.logging", "DefaultStreamHandler"
AROUND_A_JOB = (LogEvent.JOB_STARTED, LogEvent.JOB_FINISHED)


ADVISERS = ("log_provenance_info", "log_metadata_info")
"""Functions that log advice about `--rerun-triggers mtime` and lost metadata. It is wrong here: contents decide."""


def silence_trigger_advice() -> None:
    """Keep Snakemake's advice about rerun triggers off the terminal."""
    for handler in _terminal():
        handler.addFilter(_is_no_trigger_advice)


def _is_no_trigger_advice(record: logging.LogRecord) -> bool:
    return record.funcName not in ADVISERS


def is_quiet(workflow: Workflow) -> bool:
    """Return whether the user chose a quieter output than one line per job."""
    from snakemake.settings.enums import Quietness

    return bool({Quietness.ALL, Quietness.RULES, Quietness.PROGRESS} & set(workflow.output_settings.quiet or ()))


class JobLines(logging.Formatter):
    """One line per job at its start, with the number of finished jobs."""

    def __init__(self, usual: logging.Formatter | None, n_jobs: int) -> None:
        super().__init__()
        self._usual, self._done, self._n_jobs = usual or logging.Formatter(), 0, n_jobs

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to show a record; of the progress records, only the last is shown."""
        fields = vars(record)
        if fields.get("event") == LogEvent.PROGRESS:
            self._done, self._n_jobs = fields["done"], fields["total"]
            return self._done == self._n_jobs
        return fields.get("event") not in AROUND_A_JOB and record.msg != "Select jobs to execute..."

    def format(self, record: logging.LogRecord) -> str:
        """Return one line for a job's start, and Snakemake's own text for other records."""
        fields = vars(record)
        if fields.get("event") != LogEvent.JOB_INFO:
            return self._usual.format(record)
        text = fields["rule_msg"] or fields["rule_name"]
        return f"{time.strftime('%H:%M:%S')}  {self._done} of {self._n_jobs} done, started: {text}"


def log_one_line_per_job(n_jobs: int) -> None:
    """Print one line on the terminal when a job starts, instead of several of Snakemake; still print errors."""
    for handler in _terminal():
        lines = JobLines(handler.formatter, n_jobs)
        handler.addFilter(lines.filter)
        handler.setFormatter(lines)


def silence_errors() -> None:
    """Keep errors off the terminal from now on."""
    for handler in _terminal():
        handler.addFilter(lambda record: record.levelno < logging.ERROR)


def _terminal() -> list[logging.Handler]:
    return [handler for handler in logging.getLogger(LOGGER).handlers if handler.name == TERMINAL]


# Dry runs.

QUIET = ("--quiet", "rules", "progress", "--dry-run")
"""With `--quiet rules progress`, a dry run ends after planning."""
MANY_CORES = 100_000
"""Without `--cores`, as on a cluster, a dry run assumes one core and reduces the threads of each job to it."""


class PlannedJob(NamedTuple):
    """A job that would run.

    Attributes:
        reason: Snakemake's text.
        resources: the resources known before the job runs; a function's value is that for the first attempt.
        triggers: user actions that cause the job: `forced`, or an edited `command` or `environment`.
        call: what it makes; None for a rule without a manifest.
        skipped: reason to skip the job, if known before the run; otherwise empty.
    """

    rule: str
    wildcards: dict[str, str]
    reason: str
    threads: int
    resources: dict[str, Any]
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    triggers: tuple[str, ...] = ()
    call: Call | None = None
    skipped: str = ""


class UnplannableError(ConfigError):
    """Snakemake cannot plan; `found` is its output from the first line that names the error."""

    def __init__(self, status: str | int, output: str) -> None:
        lines = output.strip().splitlines()
        start = next((i for i, line in enumerate(lines) if "Error" in line or "Exception" in line), 0)
        found = "\n    ".join(lines[start:]) or f"exit status {status}"
        super().__init__("expected a workflow that Snakemake can plan", found=found, do="Fix the error that it names.")


def planned_jobs(words: Sequence[str]) -> list[PlannedJob]:
    """Return the jobs that Snakemake would run with these arguments, without jobs that have no outputs.

    If raw files are absent, the plan assumes them (`is_assumed`).

    Run Snakemake's dry run in this process, so do not call this within a run. Like every dry run, it writes a cache of
    file times below `.snakemake`, which the next run removes, and a cache of digests.

    Raises:
        UnplannableError: Snakemake fails.
        ConfigError: an argument or a configuration file cannot be read.
    """
    options = arguments_of(words)
    configured(options)  # raises this package's clear error before Snakemake reads the same files
    end = words.index("--") if "--" in words else len(words)  # all words after it are targets
    cores = [] if options["cores"] else ["--cores", str(MANY_CORES)]
    call = [*words[:end], *QUIET, *cores, *words[end:]]
    try:
        return _dry_run(call)
    except UnplannableError as refusal:
        # Assume raw files only now: if results exist whose raw files are gone, the first plan succeeds without them.
        if "MissingInputException" not in refusal.found:
            raise
    _assuming.append(True)
    try:
        return _dry_run(call)
    finally:
        _assuming.clear()


def _dry_run(words: Sequence[str]) -> list[PlannedJob]:
    from snakemake import cli

    start, jobs, out, err = Path.cwd(), list[PlannedJob](), io.StringIO(), io.StringIO()

    def on_plan(planned: Iterable[Job], skipped: Mapping[Job, str]) -> None:
        folder = Path(os.path.relpath(Path.cwd(), start))  # `--directory` changes the working directory
        jobs[:] = [planned_job(job, folder, skipped.get(job, "")) for job in planned]

    logger, on_termination, status = logging.getLogger(LOGGER), signal.getsignal(signal.SIGTERM), None
    propagates, logger.propagate = logger.propagate, False
    _plan_listeners.append(on_plan)
    with redirect_stdout(out), redirect_stderr(err):
        try:
            cli.main(list(words))
        except SystemExit as leaving:
            status = leaving.code
        finally:
            _plan_listeners.remove(on_plan)
            logger.propagate = propagates
            signal.signal(signal.SIGTERM, on_termination)  # Snakemake's scheduler replaced this handler
    if status:
        raise UnplannableError(status, out.getvalue() or err.getvalue())
    return [job for job in jobs if job.outputs]


_assuming: list[bool] = []
"""Non-empty while this process makes a plan that assumes absent raw files."""


def is_assumed(path: str) -> bool:
    """Return whether to omit an absent raw file from the inputs, because the current plan assumes that it exists."""
    return bool(_assuming) and not Path(path).exists()


_plan_listeners: list[Callable[[Iterable[Job], Mapping[Job, str]], None]] = []
"""Callbacks of this process for a dry run's planned jobs and the reasons for skipped ones."""


def emit_plan(jobs: Iterable[Job], skipped: Mapping[Job, str]) -> None:
    """Pass the jobs of a dry run's plan, and the reasons for skipped ones, to the listeners of this process."""
    for on_plan in _plan_listeners:
        on_plan(jobs, skipped)


def arguments_of(words: Sequence[str]) -> dict[str, Any]:
    """Return Snakemake's options from command-line arguments and profiles.

    Raises:
        ConfigError: Snakemake rejects the arguments.
    """
    from snakemake import cli
    from snakemake.exceptions import CliException

    output = io.StringIO()
    try:
        with redirect_stdout(output), redirect_stderr(output):
            return dict(vars(cli.parse_args(list(words))[1]))
    except (CliException, ValueError, OSError) as refusal:
        found = str(refusal).rstrip(".")
    except SystemExit:  # raised by argparse, whose last line of output is the reason
        found = output.getvalue().strip().rpartition("\n")[2]
    raise ConfigError("expected valid Snakemake arguments", found=found, do="Write them as for snakemake itself.")


def configured(options: Mapping[str, Any]) -> Configuration:
    """Return the configuration of a run with these options.

    Raises:
        ConfigError: a file or argument cannot be read.
    """
    given, usual = list(options.get("configfile") or ()), Path(options.get("directory") or "") / DEFAULT_FILE
    is_read = not options.get("replace_workflow_config") and usual.exists()
    return configuration.read([*([usual] if is_read else []), *given], options.get("config"))


def experiment_of(words: Sequence[str]) -> tuple[Experiment, Configuration]:
    """Return the experiment of a run with these arguments, and its configuration.

    Raises:
        ConfigError: the arguments or the configuration cannot be read.
    """
    found = configured(arguments_of(words))
    return parse_experiment(found.values, source=found.source), found


def planned_job(job: Job, folder: Path, skipped: str = "") -> PlannedJob:
    """Convert a job of Snakemake's plan; `folder` is Snakemake's working directory and is prepended to its paths."""

    def named(files: Iterable[Any]) -> list[str]:
        return [str(folder / str(path)) for path in files]

    reason = job.dag.reason(job)
    edited = {"command": reason.code_changed, "environment": reason.software_stack_changed}
    return PlannedJob(
        rule=job.rule.name,
        wildcards={name: str(value) for name, value in job.wildcards_dict.items()},
        reason=str(reason),
        threads=int(job.threads),
        # "<TBD>" is Snakemake's placeholder for a value that depends on inputs that do not exist yet.
        resources={name: value for name, value in job.resources.items() if str(value) != "<TBD>"},
        inputs=tuple(named(job.input)),
        outputs=tuple(named(job.output)),
        triggers=("forced",) if reason.forced else tuple(word for word, is_so in edited.items() if is_so),
        call=call_of(job, folder) if has_manifest(job) else None,
        skipped=skipped,
    )
