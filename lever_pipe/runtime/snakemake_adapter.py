"""Every contact with what is not public in Snakemake and its plugins, written for the versions in `WRITTEN_FOR`.

`tests/unit/runtime/test_snakemake_adapter.py` holds a digest of the source of all that is touched, so it fails when
Snakemake changes it; `lever-pipe doctor` warns of a version that nobody has looked at. What is touched, and
why:

* `DAG.init`, which refuses files that are not there by a text that names rules and outputs.
* `DAG.update_needrun`, which jobs run: it asks only for outputs that other jobs read, and goes by times
  (`Job.output_mintime`), which know nothing of contents, of unseen jobs and of results that were moved.
* `dag_settings`, and the records of a rule's command: of a job that follows from another one Snakemake asks neither
  whether it is forced nor whether its command was edited.
* `modifier.skip_configfile`, which tells a `module` whose user gives its configuration.
* `configfiles` of its settings, which it hands to the jobs, and default resources before they are evaluated.
* `--target-jobs`: a job's own Snakemake does not say, before it plans, which job it is there for.
* `job_rate_limiter` of the scheduler: its rate cannot be unset.
* The terminal's log handler, by its name: it says eight lines a job, and gives advice about times of files, by the
  functions that log it.
* `cli.parse_config` and `load_configfile`: they read the configuration before any of the workflow's own code runs. The
  plugin `local`, which Snakemake imports first, wraps `cli.args_to_api` and replaces them for this workflow.
* `run_job` of the SLURM plugin and its reports: the executor `lever-slurm` repeats submissions.
* `cli.main` and `cli.parse_args`: the programming interface reads no words and no profiles.
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

from lever_pipe.base.errors import ConfigError, LeverPipeError, MachineError
from lever_pipe.experiment import configuration
from lever_pipe.experiment.configuration import DEFAULT_FILE, Configuration
from lever_pipe.experiment.studies import Experiment, parse_experiment

Workflow = Any  # snakemake.workflow.Workflow
Dag = Any  # snakemake.dag.DAG
Job = Any  # snakemake.jobs.Job

WRITTEN_FOR = {"snakemake": "9.27.1", "snakemake-executor-plugin-slurm": "2.8.0"}


def unknown_versions() -> dict[str, str]:
    """Return the packages, with their installed versions, of which nobody has looked at what is used here."""
    unknown: dict[str, str] = {}
    for name, expected in WRITTEN_FOR.items():
        with suppress(PackageNotFoundError):
            unknown |= {name: version(name)} if version(name) != expected else {}
    return unknown


# Plans.


_unamended: dict[tuple[Any, str], Any] = {}


def amend_methods(owner: Any, **wrappers: Callable[[Any], Any]) -> None:
    """Let methods and properties of a class, or functions of a module, go through wrappers; a later call replaces."""
    for name, wrapper in wrappers.items():
        setattr(owner, name, wrapper(_unamended.setdefault((owner, name), getattr(owner, name))))


def plan_by_contents(
    has_manifest: Callable[[Job], bool],
    why_again: Callable[[Job, bool], str],
    foresee: Callable[[Dag], dict[Job, str]],
    before_lock: Callable[[], None],
    *,
    whole: str,
) -> None:
    """Let manifests instead of times say what is made again, and make what is missing, whether or not a job reads it.

    Args:
        has_manifest: returns whether a job writes a manifest; all others are Snakemake's own affair.
        why_again: returns why what a job has made does not count; nothing if it does, or is not there. It is told
            whether another configuration or code counts: not for `--rerun-triggers` that leave out `params`.
        foresee: tells of a dry run's plan which of its jobs will be skipped, and why (`PlannedJob.skipped`).
        before_lock: is called when a run that locks its folder is planned, and raises what refuses it.
        whole: the rule that asks for all that there is to be made; other targets ask for what they need.
    """
    from snakemake.dag import DAG
    from snakemake.jobs import Job as OwnJob
    from snakemake.settings.types import RerunTrigger

    never = float("inf")  # without a time of its own a job would be given that of a job below it

    def amended_time(original: Any) -> property:
        async def mintime(job: Job) -> float | None:
            return never if has_manifest(job) else await original.fget(job)

        return property(mintime)

    def amended_plan(planned: Callable[..., Any]) -> Callable[..., Any]:
        async def update_needrun(dag: Dag, create_inventory: bool = False) -> None:
            is_whole = any(rule.name == whole for rule in dag.targetrules)
            for job in dag.bfs(dag.dependencies, *dag.targetjobs):
                if is_whole:
                    missing = [file for file in job.output if not (file.is_temp or await file.exists())]
                    dag.reason(job).missing_output.update(missing)
                if has_manifest(job):
                    dag.reason(job).params_changed = why_again(job, RerunTrigger.PARAMS in dag.workflow.rerun_triggers)
            await planned(dag, create_inventory)
            dag.foreseen = foresee(dag) if dag.workflow.dryrun else {}
            settings = dag.workflow.execution_settings  # none for a summary and its like
            if settings and settings.lock and not dag.workflow.dryrun and not dag.workflow.touch:
                before_lock()

        return update_needrun

    amend_methods(OwnJob, output_mintime=amended_time)
    amend_methods(DAG, update_needrun=amended_plan)


def explain_missing_input(explain: Callable[[str], None]) -> None:
    """Call a function with Snakemake's text where a run lacks an input that no rule makes.

    The function raises a better error, or Snakemake its own.
    """
    from snakemake.dag import DAG
    from snakemake.exceptions import MissingInputException

    def amended_init(original: Callable[..., Any]) -> Callable[..., Any]:
        async def init(dag: Dag, progress: bool = False) -> None:
            try:
                await original(dag, progress=progress)
            except MissingInputException as refusal:
                if not _plan_listeners:  # `planned_jobs` plans again
                    explain(str(refusal))
                raise

        return init

    amend_methods(DAG, init=amended_init)


def is_wanted(job: Job) -> bool:
    """Return whether a user wants a job to run, by force or by another command in its rule.

    Snakemake itself forces what a killed run left unfinished, but here a manifest says whether it is whole.
    """
    from snakemake.settings.types import RerunTrigger

    dag, workflow = job.dag, job.dag.workflow
    settings = workflow.dag_settings
    by_name = job.rule.name in settings.forcerun or not settings.forcerun.isdisjoint(job.output)
    is_target = settings.forcetargets and job in dag.targetjobs
    if settings.forceall or by_name or is_target:
        return True
    return RerunTrigger.CODE in workflow.rerun_triggers and any(workflow.persistence.code_changed(job))


# Configuration.


@contextmanager
def without_trace() -> Iterator[None]:
    """Turn a foreseeable problem into one that Snakemake prints without a traceback."""
    from snakemake.exceptions import WorkflowError

    try:
        yield
    except (LeverPipeError, OSError) as caught:
        problem = MachineError.of(caught) if isinstance(caught, OSError) else caught
        # Snakemake prints the lines of the traceback; a context manager that the error passes would set it again.
        no_traceback = property(lambda _: None, lambda *_: None)
        silent = type(type(problem).__name__, (WorkflowError,), {"__traceback__": no_traceback})
        raise silent(str(problem)) from None


@contextmanager
def own_reader() -> Iterator[None]:
    """Let Snakemake read configuration files and `--config` as this package does, before any rule is parsed.

    Its own reader takes the last of repeated keys, and an unreadable file ends in a traceback. Dotted names of
    `--config` are left out here, as Snakemake has no place for them: `strictly_read` applies them.
    """
    from snakemake import cli
    from snakemake.common import configfile
    from snakemake.settings import types

    def words(entries: Sequence[str] | None) -> dict[str, Any]:
        return {entry.path[0]: entry.value for entry in configuration.read_words(entries) if len(entry.path) == 1}

    def file(path: str | Path) -> dict[str, Any]:
        return configuration.read_file(Path(path))

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
    """Return the configuration of files and words as this package reads them, over that of Snakemake.

    Snakemake's own holds, besides, what a Snakefile sets that includes this workflow. The configuration that a
    `module` is given is its user's own affair.

    Raises:
        ConfigError: a file or word that cannot be read.
    """
    values, settings = copy.deepcopy(dict(config)), workflow.config_settings
    if workflow.modifier.skip_configfile:
        return Configuration(values, tuple(map(str, workflow.configfiles)))
    given = list(settings.configfiles)  # Snakemake puts the files of Snakefiles behind them
    files = [] if settings.replace_workflow_config else workflow.configfiles[len(given) :]
    found = configuration.read([_near(Path(path)) for path in (*files, *given)], settings.config_args)
    return found._replace(values=configuration.laid_over(values, found.values))


def _near(path: Path) -> Path:
    """Return a path below the working directory as a relative one, as messages show it."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def keep_files_from_jobs(workflow: Workflow) -> None:
    """Let no job's own Snakemake read configuration files, which may be edited meanwhile."""
    workflow.config_settings.configfiles = ()


def gpu_request(workflow: Workflow) -> str:
    """Return how the profile's default-resources say that GPUs are asked for: `gpu` where they say nothing."""
    defaults = workflow.resource_settings.default_resources
    request = defaults.get("gpu_request") if defaults else None
    return str(getattr(request, "raw", None) or "gpu")


# Executors.

USUAL_RATE = (100, 1)
"""Jobs and seconds of Snakemake's `--max-jobs-per-timespan` where nobody gives one."""
LOCAL, SLURM = "local", ("lever-slurm", "slurm")
"""Names of executors."""


def leave_pace_to_cores(scheduler: Any) -> None:
    """Let cores alone bound the jobs of this machine, unless a user asks for another rate than Snakemake's own.

    Under a rate, each look of the scheduler at the ready jobs begins another one a second later, so that N finished
    jobs cost N looks a second: half a core after some hundred jobs. No value of `--max-jobs-per-timespan` is none.
    """
    rate = scheduler.job_rate_limiter
    if rate is not None and (rate.max_jobs, rate.timespan) == USUAL_RATE:
        scheduler.job_rate_limiter = None


# The terminal; the run's own log file keeps all that Snakemake says.

LOGGER, TERMINAL = "snakemake.logging", "DefaultStreamHandler"
AROUND_A_JOB = (LogEvent.JOB_STARTED, LogEvent.JOB_FINISHED)


ADVISERS = ("log_provenance_info", "log_metadata_info")
"""Functions that log advice about `--rerun-triggers mtime` and lost metadata; contents decide here."""


def silence_trigger_advice() -> None:
    """Keep Snakemake's advice about rerun triggers off the terminal."""
    for handler in _terminal():
        handler.addFilter(_is_no_trigger_advice)


def _is_no_trigger_advice(record: logging.LogRecord) -> bool:
    return record.funcName not in ADVISERS


def is_quiet(workflow: Workflow) -> bool:
    """Return whether the user asked for less than a line a job."""
    from snakemake.settings.enums import Quietness

    return bool({Quietness.ALL, Quietness.RULES, Quietness.PROGRESS} & set(workflow.output_settings.quiet or ()))


class JobLines(logging.Formatter):
    """One line per job at its start, with the number of finished jobs."""

    def __init__(self, usual: logging.Formatter | None, n_jobs: int) -> None:
        super().__init__()
        self._usual, self._done, self._n_jobs = usual or logging.Formatter(), 0, n_jobs

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a record is shown; of the counts that is the last."""
        fields = vars(record)
        if fields.get("event") == LogEvent.PROGRESS:
            self._done, self._n_jobs = fields["done"], fields["total"]
            return self._done == self._n_jobs
        return fields.get("event") not in AROUND_A_JOB and record.msg != "Select jobs to execute..."

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a job, and everything else as Snakemake writes it."""
        fields = vars(record)
        if fields.get("event") != LogEvent.JOB_INFO:
            return self._usual.format(record)
        text = fields["rule_msg"] or fields["rule_name"]
        return f"{time.strftime('%H:%M:%S')}  {self._done} of {self._n_jobs} done, started: {text}"


def log_one_line_per_job(n_jobs: int) -> None:
    """Let the terminal say no more of a job that goes well."""
    for handler in _terminal():
        lines = JobLines(handler.formatter, n_jobs)
        handler.addFilter(lines.filter)
        handler.setFormatter(lines)


def silence_errors() -> None:
    """Let the terminal say nothing of jobs that fail from here on."""
    for handler in _terminal():
        handler.addFilter(lambda record: record.levelno < logging.ERROR)


def _terminal() -> list[logging.Handler]:
    return [handler for handler in logging.getLogger(LOGGER).handlers if handler.name == TERMINAL]


# Dry runs.

QUIET = ("--quiet", "rules", "progress", "--dry-run")
"""With these two a dry run ends when it has planned."""
MANY_CORES = 100_000
"""Where no cores are named, as on a cluster, a dry run takes one for granted and cuts the threads of each job to it."""


class PlannedCall(NamedTuple):
    """What a planned job calls its stage with; `inputs` maps a name to its paths."""

    config: dict[str, Any]
    code: str
    inputs: dict[str, list[str]]


class PlannedJob(NamedTuple):
    """A job that would run.

    Attributes:
        reason: Snakemake's own words.
        resources: what is known before the job runs; of functions, the value for the first attempt.
        triggers: in which ways a user asked for the job: `forced`, or an edited `command` or `environment`.
        call: what it calls its stage with; None for a rule without `spec`.
        skipped: why it will not be computed, as far as that is known.
    """

    rule: str
    wildcards: dict[str, str]
    reason: str
    threads: int
    resources: dict[str, Any]
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    triggers: tuple[str, ...] = ()
    call: PlannedCall | None = None
    skipped: str = ""


class UnplannableError(ConfigError):
    """Snakemake cannot plan; `found` is what it wrote, from the line on that names the error."""

    def __init__(self, status: str | int, output: str) -> None:
        lines = output.strip().splitlines()
        start = next((i for i, line in enumerate(lines) if "Error" in line or "Exception" in line), 0)
        found = "\n    ".join(lines[start:]) or f"exit status {status}"
        super().__init__("expected a workflow that Snakemake can plan", found=found, do="Fix what it names.")


def planned_jobs(words: Sequence[str]) -> list[PlannedJob]:
    """Return the jobs that Snakemake would run with these words, without targets that make nothing.

    Where raw files are absent, the plan assumes them (`is_assumed`).

    Runs Snakemake's dry run in this process, so it must not be called from within a run. Like every dry run it leaves
    a cache of file times below `.snakemake`, which the next run removes, and one of digests.

    Raises:
        UnplannableError: Snakemake fails.
        ConfigError: words, or a configuration file, that cannot be read.
    """
    options = arguments_of(words)
    configured(options)
    end = words.index("--") if "--" in words else len(words)  # behind it all words are targets
    cores = [] if options["cores"] else ["--cores", str(MANY_CORES)]
    call = [*words[:end], *QUIET, *cores, *words[end:]]
    try:
        return _dry_run(call)
    except UnplannableError as refusal:
        # Results whose raw files are gone are planned without assumptions: their makers need not run.
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
        folder = Path(os.path.relpath(Path.cwd(), start))  # `--directory` moves Snakemake
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
            signal.signal(signal.SIGTERM, on_termination)  # Snakemake's scheduler sets its own
    if status:
        raise UnplannableError(status, out.getvalue() or err.getvalue())
    return [job for job in jobs if job.outputs]


_assuming: list[bool] = []
"""Not empty while this process plans with absent raw files."""


def is_assumed(path: str) -> bool:
    """Return whether the present plan assumes a raw file, so that no job may name it as input."""
    return bool(_assuming) and not Path(path).exists()


_plan_listeners: list[Callable[[Iterable[Job], Mapping[Job, str]], None]] = []
"""Who in this process hears the jobs of a dry run's plan, and why some of them will be skipped."""


def emit_plan(jobs: Iterable[Job], skipped: Mapping[Job, str]) -> None:
    """Tell the jobs of a dry run's plan, and why some will be skipped, to who hears them in this process."""
    for on_plan in _plan_listeners:
        on_plan(jobs, skipped)


def arguments_of(words: Sequence[str]) -> dict[str, Any]:
    """Return what Snakemake reads from words and profiles.

    Raises:
        ConfigError: it does not understand them.
    """
    from snakemake import cli
    from snakemake.exceptions import CliException

    output = io.StringIO()
    try:
        with redirect_stdout(output), redirect_stderr(output):
            return dict(vars(cli.parse_args(list(words))[1]))
    except (CliException, ValueError, OSError) as refusal:
        found = str(refusal).rstrip(".")
    except SystemExit:  # of argparse, which says why in its last line
        found = output.getvalue().strip().rpartition("\n")[2]
    raise ConfigError(
        "expected words that Snakemake understands", found=found, do="Write them as for snakemake itself."
    )


def configured(options: Mapping[str, Any]) -> Configuration:
    """Return the configuration of a run with these options.

    Raises:
        ConfigError: a file or word that cannot be read.
    """
    given, usual = list(options.get("configfile") or ()), Path(options.get("directory") or "") / DEFAULT_FILE
    is_read = not options.get("replace_workflow_config") and usual.exists()
    return configuration.read([*([usual] if is_read else []), *given], options.get("config"))


def experiment_of(words: Sequence[str]) -> tuple[Experiment, Configuration]:
    """Return the experiment of a run with these words, and the configuration that it comes from.

    Raises:
        ConfigError: words or a configuration that cannot be read.
    """
    found = configured(arguments_of(words))
    return parse_experiment(found.values, source=found.source), found


def planned_job(job: Job, folder: Path, skipped: str = "") -> PlannedJob:
    """Return a job of Snakemake's plan; its files as they are named from where `folder` is relative to."""

    def named(files: Iterable[Any]) -> list[str]:
        return [str(folder / str(path)) for path in files]

    inputs = {name: named([value] if isinstance(value, str) else value) for name, value in job.input.items()}
    spec, reason = getattr(job.params, "spec", None), job.dag.reason(job)
    edited = {"command": reason.code_changed, "environment": reason.software_stack_changed}
    return PlannedJob(
        rule=job.rule.name,
        wildcards={name: str(value) for name, value in job.wildcards_dict.items()},
        reason=str(reason),
        threads=int(job.threads),
        resources={name: value for name, value in job.resources.items() if str(value) != "<TBD>"},
        inputs=tuple(named(job.input)),
        outputs=tuple(named(job.output)),
        triggers=("forced",) if reason.forced else tuple(word for word, is_so in edited.items() if is_so),
        call=PlannedCall(inputs=inputs, **json.loads(str(spec))) if spec is not None else None,
        skipped=skipped,
    )
