"""A job whose artefact is there already, or in the store, is not run: asked anew when its inputs are final.

Snakemake plans before the first job: where one job runs, all that depends on it is planned, too. But a job that runs
again may yield the very same bytes. So each planned job is asked again at the moment at which it would start, in the
main process and before anything is removed or submitted: if its run card says that it was made by the same stage,
config and code from inputs of the same content, or if the store has what this job would make, then it counts as done.
On a cluster nothing is queued for it. A job that the user forces runs.

What can be told before the first job is not even planned: where a batch is answered again because it has policies more,
or other ones, the files of those whose selections stay will be the same, and so what was made from these (`standing`).
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache, partial
from pathlib import Path
from typing import Any

from lever_pipe.base import contents, numerics, provenance, storage
from lever_pipe.base.contents import Digests
from lever_pipe.base.errors import LeverPipeError
from lever_pipe.base.records import RunCard
from lever_pipe.experiment.run_card import files_of, flat
from lever_pipe.runtime import ownership
from lever_pipe.runtime.rerun.artefacts import judge, read_artefact
from lever_pipe.runtime.store import Store, key_of

log = logging.getLogger(f"snakemake.logging.{__name__}")  # also in the run's own log file
UNCHANGED, STORED = "unchanged", "from the store"
PARTS = {"answer_prompts": "selections"}
"""Stage -> the input of which each member alone decides what one file of the stage's output folder holds."""
CARD = "card"
LOOKS_BETWEEN_TRIMS = 200

Executor = Any  # a plugin's executor
Job = Any  # snakemake.jobs.Job
RunJobs = Callable[[Executor, list[Job]], None]


class Sparing:
    """Which jobs of an invocation need not run.

    Args:
        store: what earlier runs made; None: only what lies in its place counts.
        by_rule: is told how many jobs of each rule were spared.
        digests: contents of files; None: those of this working directory.

    Attributes:
        spared: how many jobs were spared, by why.
    """

    def __init__(self, store: Store | None, *, by_rule: Counter[str], digests: Digests | None = None) -> None:
        self.spared: Counter[str] = Counter()
        self._looks = 0
        self._store = store
        self._by_rule = by_rule
        self._digests = digests or contents.remembered()
        self._versions = provenance.installed_versions() | {"numerics": numerics.path()}

    def spare(self, job: Job) -> bool:
        """Return whether a job's artefact is there, or put there from the store."""
        self._keep_bound()
        if job.is_group() or CARD not in set(job.output.keys()):
            return False
        try:
            why = "" if _is_wanted(job) else self._found(job)
        except Exception as fault:  # noqa: BLE001 - a look that fails must not end all other jobs
            log.warning(f"{job.rule.name}: cannot tell whether it is made already, so it runs: {fault!r}")
            return False
        if why:
            self.spared[why] += 1
            self._by_rule[job.rule.name] += 1
        return bool(why)

    def standing(self, dag: Any) -> list[Job]:
        """Return the planned jobs that would make what lies there, since only other parts of what they read are new."""
        kept = cache(partial(self._kept_members, dag))  # one look at a maker, however many jobs read its folder
        return [job for job in dag.needrun_jobs() if self._stands(dag, job, kept)]

    def _stands(self, dag: Any, job: Job, kept: Callable[[Job], frozenset[str]]) -> bool:
        makers = {maker: files for maker, files in dag.dependencies[job].items() if dag.needrun(maker)}
        if not makers or any(maker.rule.name not in PARTS for maker in makers) or _is_wanted(job):
            return False
        return self._is_unchanged(job) and not any(kept(maker).isdisjoint(map(str, job.input)) for maker in makers)

    def _kept_members(self, dag: Any, maker: Job) -> frozenset[str]:
        """Return the members whose files of its folder a planned maker will leave as they are."""
        listed = PARTS[maker.rule.name]
        members = set(map(str, maker.input[listed]))
        again = {path for above, paths in dag.dependencies[maker].items() if dag.needrun(above) for path in paths}
        verdict = judge(read_artefact(Path(maker.output[CARD])), self._digests)
        made, paths, spec = verdict.artefact.made, verdict.artefact.paths, json.loads(str(maker.params.spec))
        if made is None or verdict.damaged or verdict.replaced or _is_wanted(maker) or not again <= members:
            return frozenset()
        if (made.config, made.code) != (spec["config"], spec["code"]):
            return frozenset()
        if any(not name.startswith(f"{listed}[") for name in verdict.changed):
            return frozenset()
        return frozenset(members & {str(paths[name]) for name in made.inputs if name not in verdict.changed})

    def _is_unchanged(self, job: Job) -> bool:
        """Return whether a job's artefact is whole, and what the job would make of its inputs as they are now."""
        identity, files = json.loads(str(job.params.spec)), files_of(job.input) | files_of(job.output)
        of = {"stage": job.rule.name, "config": identity["config"], "code": identity["code"]}
        return ownership.is_complete(Path(job.output[CARD]), files, **of, digest=self._digests.of)

    def _keep_bound(self) -> None:
        """Trim the store now and then: the jobs of one run may make more than it is to hold."""
        self._looks += 1
        if self._store is not None and self._looks % LOOKS_BETWEEN_TRIMS == 0:
            try:
                self._store.trim()
            except (LeverPipeError, OSError) as fault:
                log.warning(f"{self._store.folder}: not trimmed: {fault}")

    def summary(self) -> str:
        """Return a line on what was spared; nothing if nothing was."""
        told = [f"{n} {why}" for why, n in sorted(self.spared.items())]
        return f"Not run, because made already: {', '.join(told)}." if told else ""

    def _found(self, job: Job) -> str:
        stage, spec, inputs, outputs = job.rule.name, str(job.params.spec), files_of(job.input), files_of(job.output)
        card, of = Path(job.output[CARD]), self._digests.of
        if self._is_unchanged(job):
            _let_stand(job, card)
            return UNCHANGED
        if self._store is None or ownership.owner_of(card) is not None:  # a job of a killed run may write there still
            return ""
        read = flat(inputs)
        made = {name: path for name, path in flat(outputs).items() if name != CARD}
        key = key_of(stage, spec, {name: of(path) for name, path in read.items()})
        drop = partial(card.unlink, missing_ok=True)  # first: no card may stand beside the files of two jobs
        found = self._store.restore(key, made, versions=self._versions, placing=drop)
        if found is None:
            return ""
        _fill_in(job, found)
        paths = {name: str(path) for name, path in {**read, **made, CARD: card}.items()}
        storage.write_row(card, found.model_copy(update={"paths": paths}))
        return STORED


def _is_wanted(job: Job) -> bool:
    """Return whether a user wants the job to run, by force or by another command in its rule.

    Snakemake itself forces what a killed run left unfinished, but here a run card says whether it is whole; and of a
    job that follows from another one it does not look whether it is forced.
    """
    dag = job.dag
    settings = dag.workflow.dag_settings
    by_name = job.rule.name in settings.forcerun or not settings.forcerun.isdisjoint(job.output)
    is_target = settings.forcetargets and job in dag.targetjobs
    return bool(settings.forceall or by_name or is_target or _has_another_command(job))


def _has_another_command(job: Job) -> bool:
    """Return whether a rule's command was edited since; Snakemake asks this of no job that follows from another one."""
    from snakemake.settings.types import RerunTrigger

    workflow = job.dag.workflow
    return RerunTrigger.CODE in workflow.rerun_triggers and any(workflow.persistence.code_changed(job))


def _let_stand(job: Job, card: Path) -> None:
    """Give an unchanged artefact what Snakemake expects of a job that has ended, or it would remove the outputs."""
    now_ns = time.time_ns()
    for path in map(Path, job.input):
        if path.exists() and path.stat().st_mtime_ns > now_ns:  # of a clock that went ahead
            os.utime(path)
    if job.benchmark is not None and not Path(str(job.benchmark)).exists():
        _fill_in(job, storage.read_row(card, RunCard))


def _fill_in(job: Job, made: RunCard) -> None:
    """Write what Snakemake expects of a job beside its outputs: the log and the record of its time."""
    took = f"{made.seconds} s on {made.device}, commit {made.commit}"
    for log_file in job.log:
        storage.write_text(Path(log_file), f"From the store; the job that made it took {took}.\n")
    if job.benchmark is not None:
        storage.write_text(Path(str(job.benchmark)), json.dumps({"s": made.seconds}) + "\n")


def attach(executor_classes: Iterable[type], sparing: Sparing) -> None:
    """Let executors count a spared job as done; a later call replaces an earlier one's `sparing`."""
    for executor_class in executor_classes:
        present: Any = executor_class.run_jobs  # type: ignore[attr-defined]
        executor_class.run_jobs = _sparing_run_jobs(getattr(present, "unspared", present), sparing)  # type: ignore[attr-defined]


def _sparing_run_jobs(run_jobs: RunJobs, sparing: Sparing) -> RunJobs:
    from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo

    def spared_run_jobs(executor: Executor, jobs: list[Job]) -> None:
        rest = []
        for job in jobs:
            if sparing.spare(job):
                executor.report_job_success(SubmittedJobInfo(job))
            else:
                rest.append(job)
        if rest:
            run_jobs(executor, rest)

    spared_run_jobs.unspared = run_jobs  # type: ignore[attr-defined]
    return spared_run_jobs
