"""A job whose artefact is made, or in the store, is not run: asked anew when its turn comes and its inputs are final.

Snakemake plans before the first job: where one job runs, all that depends on it is planned, too. But a job that runs
again may yield the very same bytes. So each planned job is asked again, in the main process and before anything is
removed or submitted: if its artefact is made (`decision.is_complete`), or if the store has what it would make, then it
counts as done. On a cluster nothing is queued for it. A job that the user forces runs.
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
from lever_pipe.base.contents import Digests
from lever_pipe.base.errors import LeverPipeError
from lever_pipe.experiment.manifests import files_of, flat
from lever_pipe.runtime import ownership
from lever_pipe.runtime.rerun import decision
from lever_pipe.runtime.rerun.artefacts import MANIFEST, absolute
from lever_pipe.runtime.rerun.why_names import counted
from lever_pipe.runtime.slurm import squeue
from lever_pipe.runtime.snakemake_adapter import Dag, Job, emit_plan, is_wanted
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
    """Which jobs of an invocation need not run.

    Args:
        store: what earlier runs made; None: only what lies in its place counts.

    Attributes:
        skipped: how many jobs were skipped, by why.
    """

    def __init__(self, store: Store | None) -> None:
        self.skipped: Counter[str] = Counter()
        self._store = store
        self._digests = contents.remembered()
        self._versions = provenance.installed_versions() | {"numerics": numerics.path()}

    def skip(self, job: Job) -> bool:
        """Return whether a job's artefact is there, or put there from the store."""
        for path in map(Path, job.log):
            if path.is_symlink():  # Snakemake and the job write through it
                path.unlink()
        if job.is_group() or MANIFEST not in set(job.output.keys()):
            return False
        try:
            why = "" if is_wanted(job) else self._skip_reason(job)
        except Exception as error:  # noqa: BLE001 - a look that fails must not end all other jobs
            log.warning(f"{job.rule.name}: cannot tell whether it is made already, so it runs: {error!r}")
            return False
        if why:
            self.skipped[why] += 1
        return bool(why)

    def foresee(self, dag: Dag) -> dict[Job, str]:
        """Return the planned jobs that will be skipped, as far as that is known before one has run, each with why.

        What a planned job reads is known where nobody makes it again, or where who makes it is skipped.
        """
        digests, skipped, running = _Foreseen(self._digests), dict[Job, str](), set[Job]()
        planned = list(itertools.chain.from_iterable(dag.toposorted(set(dag.needrun_jobs()))))
        for job in planned:
            is_known = not (job.is_group() or running.intersection(dag.dependencies[job]) or is_wanted(job))
            if not is_known or not decision.has_manifest(job):
                running.add(job)
            elif decision.is_complete(**decision.call_of(job), digests=digests):
                skipped[job] = UNCHANGED
            else:
                key, _, origin = self._key_of(job, digests)
                work = self._store.find(key, origin, versions=self._versions) if self._store and key else None
                if work is None:
                    running.add(job)
                else:
                    digests.note(job, work)
                    skipped[job] = STORED
        emit_plan(planned, skipped)
        if skipped:
            counts = sorted(Counter(skipped.values()).items(), reverse=True)
            log.warning(f"Of the jobs below, {' and '.join(FORESEEN[why].format(n) for why, n in counts)}.")
        return skipped

    def _key_of(self, job: Job, digests: Digests) -> tuple[str, dict[str, Path], dict[str, Path]]:
        """Return the key of a job's work, what it reads and what it makes; no key where an input is not there."""
        inputs, outputs = flat(files_of(job.input)), flat(files_of(job.output))
        outputs.pop(MANIFEST)
        try:
            digests_of = {name: digests.of(path) for name, path in inputs.items()}
        except (LeverPipeError, OSError):
            return "", inputs, outputs
        return key_of(job.rule.name, str(job.params.spec), digests_of), inputs, outputs

    def summary(self) -> str:
        """Return a sentence for each kind of skipped job; empty if every job ran."""
        return " ".join(SKIPPED[why].format(counted(n, "job")) for why, n in sorted(self.skipped.items(), reverse=True))

    def _skip_reason(self, job: Job) -> str:
        manifest = Path(job.output[MANIFEST])
        if decision.is_complete(**decision.call_of(job), digests=self._digests):
            _let_stand(job)
            return UNCHANGED
        if (
            self._store is None or ownership.owner_of(manifest) is not None
        ):  # a job of a killed run may write there still
            return ""
        key, inputs, outputs = self._key_of(job, self._digests)
        manifest.unlink(missing_ok=True)  # first: no manifest may stand beside the files of two jobs
        manifest_row = self._store.restore(key, outputs, versions=self._versions)
        if manifest_row is None:
            return ""
        for log_file in job.log:
            Path(log_file).unlink(missing_ok=True)  # of what lay there before
        paths = {name: str(path) for name, path in {**inputs, **outputs, MANIFEST: manifest}.items()}
        storage.write_row(manifest, manifest_row.model_copy(update={"paths": paths}))
        return STORED


def completed_by_another_job(job: Job, *, sleep: Callable[[float], None] = time.sleep) -> bool:
    """Return whether another job has made the artefact since the plan was saved; asked in a job's own Snakemake.

    A job that was left in the queue by a main process that was killed may start when the present one has the artefact
    made, and would take it away from those that read it. So it waits for the first one's process and SLURM job.
    """
    if job.is_group() or not decision.has_manifest(job):
        return False
    manifest = Path(job.output[MANIFEST])
    owner = ownership.owner_of(manifest)
    if owner is not None and not (owner.job and owner.job == os.environ.get("SLURM_JOB_ID")):
        log.warning(f"{manifest.parent} is being made by another job: {owner}; waiting")
        with ownership.owned(manifest):
            pass
        while owner.job and squeue.state_of(owner.job) in MAY_WRITE:
            sleep(SECONDS_BETWEEN_POLLS)
    is_complete = decision.is_from_this_plan(job)
    if is_complete:
        log.warning(f"{job.rule.name}: made already by another job; nothing to do")
    return is_complete


_requests: list[Callable[[Job], bool]] = []
"""What the executors of this process ask. Snakemake makes them from its own settings alone, before `onstart`; what is
skipped hangs on the configuration, which the rules read. In another workflow it stays empty."""


def skip_if(is_complete: Callable[[Job], bool]) -> None:
    """Let the executors of this process skip the jobs of which this is true."""
    _requests[:] = [is_complete]


def report_completed(executor: Executor, jobs: list[Job]) -> list[Job]:
    """Report the jobs as done that need not run, and return the others."""
    left = []
    for job in jobs:
        if any(is_complete(job) for is_complete in _requests):
            executor.report_job_success(SubmittedJobInfo(job))
        else:
            left.append(job)
    return left


class _Foreseen(Digests):
    """Contents as they will be when a plan's jobs begin, as far as that is known.

    Args:
        now: contents as they are.
    """

    def __init__(self, now: Digests) -> None:
        self._now = now
        self._later: dict[str, tuple[Path, str] | None] = {}

    def of(self, path: Path) -> str:
        """Return the digest of what will lie there; of what is not known, as of what is not there.

        Raises:
            FileNotFoundError: there is nothing, or nobody knows.
        """
        name = absolute(path)
        for location in (name, *map(str, Path(name).parents)):
            if location in self._later:
                later = self._later[location]
                if later is None:
                    raise FileNotFoundError(path)
                selected, whole = later
                return whole if name == location else self._now.of(selected / os.path.relpath(name, location))
        return self._now.of(path)

    def note(self, job: Job, work: Work) -> None:
        """Note where the store keeps what a planned job will have made, and its digest; of its manifest nothing."""
        for name, path in flat(files_of(job.output)).items():
            self._later[absolute(path)] = (
                (work.outputs[name], work.manifest.outputs[name]) if name != MANIFEST else None
            )


def _let_stand(job: Job) -> None:
    """Give no input a time that Snakemake takes for one after the job's end, or it would remove the outputs."""
    now_ns = time.time_ns()
    for path in map(Path, job.input):
        if path.exists() and path.stat().st_mtime_ns > now_ns:  # of a clock that went ahead
            os.utime(path)
