"""Skip planned jobs whose artifact is valid or in the store, checked before each job starts, with final inputs.

Snakemake plans before the first job starts: if a job runs, all its dependents are planned, too. But a job that runs
again may write the same bytes. So each planned job is checked again, in the main process, before its outputs are
removed or it is submitted. If its artifact is complete (`check.is_complete`), or the store has its outputs, the job
counts as done. On a cluster, it is not queued. Forced jobs always run.
"""

from __future__ import annotations

import itertools
import logging
import os
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo

from lever_pipe.base import contents, numerics, provenance, storage
from lever_pipe.base.artefacts import MANIFEST, Call, absolute
from lever_pipe.base.contents import Digests
from lever_pipe.base.errors import LeverPipeError, counted
from lever_pipe.experiment.manifests import flat
from lever_pipe.runtime import ownership
from lever_pipe.runtime.reruns import check
from lever_pipe.runtime.slurm import squeue
from lever_pipe.runtime.snakemake_adapter import Dag, Job, call_of, emit_plan, has_manifest, is_wanted
from lever_pipe.runtime.store import Store, Work, key_of

log = logging.getLogger(f"snakemake.logging.{__name__}")  # also in the run's own log file
Executor = Any  # a plugin's executor
UNCHANGED, STORED = "unchanged", "from the store"
SKIPPED = {UNCHANGED: "Skipped {}: inputs unchanged.", STORED: "Skipped {}: results from the store."}
FORESEEN = {UNCHANGED: "{} will be skipped (inputs unchanged)", STORED: "{} will come from the store"}
SECONDS_BETWEEN_POLLS = 10.0
MAY_WRITE = frozenset(("RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT"))
"""States of a SLURM job whose processes may still write."""


class Skipping:
    """Decide which planned jobs of an invocation to skip.

    Args:
        store: outputs of earlier runs; None: only artifacts in the working directory count.

    Attributes:
        skipped: number of skipped jobs by reason.
    """

    def __init__(self, store: Store | None) -> None:
        self.skipped: Counter[str] = Counter()
        self._store = store
        self._digests = contents.remembered()
        self._versions = provenance.installed_versions() | {"numerics": numerics.path()}

    def skip(self, job: Job) -> bool:
        """Return whether a job's artifact is complete; restore it from the store if possible."""
        for path in map(Path, job.log):
            if path.is_symlink():  # Snakemake and the job would write to the link's target
                path.unlink()
        if job.is_group() or not has_manifest(job):
            return False
        try:
            why = "" if is_wanted(job) else self._skip_reason(job)
        except Exception as error:  # noqa: BLE001 - a failed check must not end all other jobs
            log.warning(f"{job.rule.name}: cannot check whether it is made already, so it runs: {error!r}")
            return False
        if why:
            self.skipped[why] += 1
        return bool(why)

    def foresee(self, dag: Dag) -> dict[Job, str]:
        """Return the planned jobs that will be skipped with reasons, as far as known before the run.

        The contents of a job's inputs are known if no planned job makes them, or if that job is skipped.
        """
        digests, skipped, running = _Foreseen(self._digests), dict[Job, str](), set[Job]()
        # In topological order, so that a job's dependencies are decided before the job.
        planned = list(itertools.chain.from_iterable(dag.toposorted(set(dag.needrun_jobs()))))
        for job in planned:
            is_known = not (job.is_group() or running.intersection(dag.dependencies[job]) or is_wanted(job))
            if not is_known or not has_manifest(job):
                running.add(job)
            elif check.is_complete(call := call_of(job), digests):
                skipped[job] = UNCHANGED
            elif self._store and (key := _key_of(job, call, digests)) and (work := self._find(key, call)):
                digests.note(call, work)
                skipped[job] = STORED
            else:
                running.add(job)
        emit_plan(planned, skipped)
        if skipped:
            counts = sorted(Counter(skipped.values()).items(), reverse=True)
            log.warning(f"Of the jobs below, {' and '.join(FORESEEN[why].format(n) for why, n in counts)}.")
        return skipped

    def summary(self) -> str:
        """Return a sentence for each kind of skipped job; empty if every job ran."""
        return " ".join(SKIPPED[why].format(counted(n, "job")) for why, n in sorted(self.skipped.items(), reverse=True))

    def _find(self, key: str, call: Call) -> Work | None:
        return self._store.find(key, flat(call.outputs), versions=self._versions) if self._store else None

    def _skip_reason(self, job: Job) -> str:
        call = call_of(job)
        if check.is_complete(call, self._digests):
            _let_stand(job)
            return UNCHANGED
        # A job of a killed run may still write the outputs.
        if self._store is None or ownership.owner_of(call.manifest) is not None:
            return ""
        if not (key := _key_of(job, call, self._digests)):
            return ""
        # First, because a crash between the two steps must not leave a valid manifest next to other outputs.
        call.manifest.unlink(missing_ok=True)
        outputs = flat(call.outputs)
        row = self._store.restore(key, outputs, versions=self._versions)
        if row is None:
            return ""
        for log_file in job.log:
            Path(log_file).unlink(missing_ok=True)  # it belongs to the replaced outputs
        paths = {name: str(path) for name, path in {**flat(call.inputs), **outputs, MANIFEST: call.manifest}.items()}
        storage.write_row(call.manifest, row.model_copy(update={"paths": paths}))
        return STORED


def _key_of(job: Job, call: Call, digests: Digests) -> str:
    """Return the key of a job's work in the store; empty if an input is missing."""
    try:
        return key_of(call.stage, str(job.params.spec), {n: digests.of(path) for n, path in flat(call.inputs).items()})
    except (LeverPipeError, OSError):
        return ""


def completed_by_another_job(job: Job, *, sleep: Callable[[float], None] = time.sleep) -> bool:
    """Return whether another job has made the artifact since the plan was saved; runs in a job's own Snakemake.

    After a killed run, one of its queued jobs and the job of the current run may both make the artifact. The second
    one's Snakemake would delete outputs that other jobs already read. So it waits for the process and the SLURM job of
    the first one.
    """
    if job.is_group() or not has_manifest(job):
        return False
    manifest = call_of(job).manifest
    owner = ownership.owner_of(manifest)
    if owner is not None and not (owner.job and owner.job == os.environ.get("SLURM_JOB_ID")):
        log.warning(f"{manifest.parent} is being made by another job: {owner}; waiting")
        with ownership.owned(manifest):  # blocks until the other process releases its lock
            pass
        while owner.job and squeue.state_of(owner.job) in MAY_WRITE:
            sleep(SECONDS_BETWEEN_POLLS)
    is_complete = check.is_from_this_plan(job)
    if is_complete:
        log.warning(f"{job.rule.name}: made already by another job; nothing to do")
    return is_complete


_conditions: list[Callable[[Job], bool]] = []
"""Conditions of this process's executors to skip a job. Snakemake creates executors before `onstart` from its own
settings, without this workflow's configuration, so they read this list. It stays empty in other workflows."""


def skip_if(is_complete: Callable[[Job], bool]) -> None:
    """Set the condition on which the executors of this process skip a job."""
    _conditions[:] = [is_complete]


def report_completed(executor: Executor, jobs: list[Job]) -> list[Job]:
    """Report skipped jobs as successful, and return the others."""
    left = []
    for job in jobs:
        if any(is_complete(job) for is_complete in _conditions):
            executor.report_job_success(SubmittedJobInfo(job))
        else:
            left.append(job)
    return left


class _Foreseen(Digests):
    """Expected digests of files when a plan's jobs start, as far as they are known.

    Args:
        now: digests of the current files.
    """

    def __init__(self, now: Digests) -> None:
        self._now = now
        self._later: dict[str, tuple[Path, str] | None] = {}

    def of(self, path: Path) -> str:
        """Return the expected digest of a file or folder.

        Raises:
            FileNotFoundError: the file will not exist, or its content is unknown.
        """
        name = absolute(path)
        for location in (name, *map(str, Path(name).parents)):
            if location in self._later:
                later = self._later[location]
                if later is None:
                    raise FileNotFoundError(path)
                stored, whole = later
                return whole if name == location else self._now.of(stored / os.path.relpath(name, location))
        return self._now.of(path)

    def note(self, call: Call, work: Work) -> None:
        """Record path in the store and digest of a planned job's outputs; its manifest's content stays unknown."""
        stored = {absolute(path): (work.outputs[n], work.manifest.outputs[n]) for n, path in flat(call.outputs).items()}
        self._later |= {**stored, absolute(call.manifest): None}


def _let_stand(job: Job) -> None:
    """Reset input times in the future: Snakemake would take them as changes after the job's end and remove outputs."""
    now_ns = time.time_ns()
    for path in map(Path, job.input):
        if path.exists() and path.stat().st_mtime_ns > now_ns:  # another machine's clock is ahead
            os.utime(path)
