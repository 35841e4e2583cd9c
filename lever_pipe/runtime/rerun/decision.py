"""Decide which jobs run again.

An artifact is the set of files that one job makes. Its manifest, written last, records the stage, config and code, the
digests of the inputs (`lever_pipe.base.contents`: never times), and the digests of the outputs. One condition decides
everywhere: **the artifact is complete, and this job would make the same from the current inputs.** `check_call` returns
the differences, `is_complete` whether there are none and no file is missing. They are called

* for each job that may be planned (`why_again`). Snakemake would compare times, trust an output without a record, and
  keep its records in one place that a user may delete. Here the manifest next to each artifact decides. A touched or
  copied file reruns nothing; a replaced file reruns only the jobs that read it. Outputs of jobs that finished in a
  killed run stay valid, and deleting `.snakemake` loses nothing. Missing files are made if they are needed;
* before a job starts (`skipping.Skipping`), when its inputs are final: upstream jobs may have made the same bytes;
* in the job's own Snakemake process on a cluster, before it deletes old outputs
  (`skipping.completed_by_another_job`), and in a stage that waited for another process with the same artifact
  (`runtime.stage_call`): the other process may have made the artifact;
* when SLURM dropped the record of a job whose end was not observed (`slurm.watchdog`).

Forced jobs always run (`is_wanted`). An output that a user replaced is kept, and the jobs that read it run again. A
changed output with the job's modification time is damaged, and is made again. In doubt a job runs again, because
that costs only time. `explain` derives its reasons from the same checks.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from lever_pipe.base import contents, provenance, storage
from lever_pipe.base.contents import Digests
from lever_pipe.base.errors import CheckpointError, LeverPipeError
from lever_pipe.experiment.identities import IDENTITIES
from lever_pipe.experiment.manifests import MANIFEST, Files, files_of, flat
from lever_pipe.runtime import plan, snapshot
from lever_pipe.runtime.rerun.artefacts import (
    Artefact,
    manifests_below,
    read_artefact,
    set_time,
    time_ns,
)
from lever_pipe.runtime.snakemake_adapter import Job

log = logging.getLogger(f"snakemake.logging.{__name__}")  # also in the run's own log file
SAME_TIME_NS = 1_000_000_000
"""Snakemake sets the times of a job's outputs one after the other at the job's end, so they differ slightly."""
DISPLAY_LIMIT = 5
UNREADABLE = ""
"""Used instead of a digest: the file exists but is incomplete or unreadable."""


def check(artefact: Artefact, digests: Digests) -> Artefact:
    """Compare an artifact's files with its manifest. A missing file is not an error; Snakemake makes it on demand."""
    origin = artefact.origin
    if origin is None:
        return artefact
    recorded = origin.inputs | origin.outputs
    contents_now = {name: content_of(path, digests) for name, path in artefact.paths.items() if name in recorded}
    others = {name: digest for name, digest in contents_now.items() if digest not in (None, recorded[name])}

    # A user's edit gets a new time; other content with the job's own time can only be corruption.
    strange = [name for name in others if name in origin.outputs and others[name] != origin.replaced.get(name)]
    of_the_job = [n for n in strange if abs(time_ns(artefact.paths[n]) - time_ns(artefact.manifest)) <= SAME_TIME_NS]
    damaged = tuple(name for name in strange if name in of_the_job or others[name] == UNREADABLE)
    return artefact._replace(
        missing=tuple(name for name, digest in contents_now.items() if digest is None),
        changed=tuple(name for name in others if name in origin.inputs),
        damaged=damaged,
        replaced={n: str(digest) for n, digest in others.items() if n in origin.outputs and n not in damaged},
    )


def check_call(
    manifest: Path,
    files: Files,
    *,
    stage: str,
    config: Mapping[str, Any],
    code: str,
    digests: Digests,
    versions: Mapping[str, str] = {},
) -> Artefact:
    """Check an artifact against a call; skip reading files if its manifest is from another call.

    Args:
        manifest: the manifest.
        files: inputs and outputs of the call by name.
        stage: name of the stage.
        config: the stage's config as JSON.
        code: fingerprint of the stage's code.
        digests: contents of files.
        versions: installed versions of the libraries that the stage computes with.
    """
    artefact, given = read_artefact(manifest), flat({n: file for n, file in files.items() if n != MANIFEST})
    origin = artefact.origin
    if origin is None:
        return artefact
    agreement = {"stage": origin.stage == stage, "configuration": origin.config == config, "code": origin.code == code}
    agreement["library versions"] = not other_versions(origin.versions, versions)
    agreement["set of files"] = given.keys() == origin.inputs.keys() | origin.outputs.keys()
    if not all(agreement.values()):
        return artefact._replace(other=tuple(name for name, is_same in agreement.items() if not is_same))
    return check(artefact._replace(paths=given), digests)


def other_versions(then: Mapping[str, str], now: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Return name -> (old, new) of the libraries with a new version; local build suffixes (`+cpu`) are ignored."""
    both = {name: (then[name], now[name]) for name in now if name in then}
    return {name: (was, present) for name, (was, present) in both.items() if _public(was) != _public(present)}


def _public(version: str) -> str:
    return version.partition("+")[0]


def set_rerun_on_library_versions(is_on: bool) -> None:
    """Set whether a changed library version is a reason to compute again in this process."""
    _rerun_on["versions"] = is_on


_rerun_on = {"versions": True}


def versions_for(stage: str, config: Mapping[str, Any]) -> dict[str, str]:
    """Return the installed versions of a stage's libraries; none if versions are no reason to compute again."""
    here = _installed() if _rerun_on["versions"] else {}
    return {name: here[name] for name in snapshot.code_of(stage, plugins_of(stage, config)).libraries if name in here}


@cache
def _installed() -> dict[str, str]:
    return provenance.installed_versions()


def plugins_of(stage: str, config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the modules that a stage's config selects by name; none for a stage of another package version."""
    identity = IDENTITIES.get(stage)
    with suppress(ValueError):  # pydantic: the config was written by another version of this package
        return plan.plugins_of(identity.config.model_validate(config)) if identity else ()
    return ()


def is_complete(manifest: Path, files: Files, **call: Any) -> bool:
    """Return whether an artifact is complete and equals the result of this call; for arguments see `check_call`.

    The manifest must name the same stage, config, code and files, and all files must have their recorded contents.
    A recorded replacement of an output by a user counts as its content.
    """
    try:
        checked = check_call(manifest, files, **{"digests": Digests()} | call)
    except OSError:
        return False
    return (
        checked.origin is not None
        and not (checked.reason or checked.missing)
        and checked.replaced == checked.origin.replaced
    )


def call_of(job: Job) -> dict[str, Any]:
    """Return the arguments of `check_call` for a planned job."""
    spec, files = json.loads(str(job.params.spec)), files_of(job.input) | files_of(job.output)
    identity = {"stage": job.rule.name, "config": spec["config"], "code": spec["code"]}
    identity["versions"] = versions_for(job.rule.name, spec["config"])
    return {"manifest": Path(job.output[MANIFEST]), "files": files, **identity}


def has_manifest(job: Job) -> bool:
    """Return whether a job writes a manifest; a user's own rules may not."""
    return MANIFEST in set(job.output.keys()) and hasattr(job.params, "spec")


def why_again(job: Job, by_identity: bool) -> str:
    """Return the reason to make a job's artifact again; empty if it is valid or does not exist.

    Missing files are no reason here: Snakemake makes them if they are needed.

    Args:
        job: a job that may be planned, with a manifest.
        by_identity: whether a changed configuration or code is a reason.
    """
    if not any(map(os.path.lexists, job.output)):  # lexists: a broken link is an output, too
        return ""
    call, digests = call_of(job), contents.remembered()
    artefact = check_call(**call, digests=digests)
    if artefact.origin is not None and artefact.other and not by_identity:
        as_then = {"config": artefact.origin.config, "code": artefact.origin.code, "versions": {}}
        artefact = check_call(**call | as_then, digests=digests)
    return artefact.reason


def is_from_this_plan(job: Job) -> bool:
    """Return whether a job whose end was not observed has made its artifact; always False for a group of jobs.

    A manifest older than this invocation's plan does not count: it is to be made again, because its input changed or
    the user forces the job.
    """
    if job.is_group() or not has_manifest(job):
        return False
    try:
        planned = Path(os.environ[snapshot.VARIABLE]).stat().st_mtime
        is_of_this_plan = Path(job.output[MANIFEST]).stat().st_mtime > planned
    except (KeyError, OSError):
        return False
    return is_of_this_plan and is_complete(**call_of(job))


def before_plan(results: Path) -> None:
    """Record replaced outputs in the manifests below the results, and warn of replaced or damaged files."""
    digests = contents.remembered()
    artefacts = [check(read_artefact(manifest), digests) for manifest in manifests_below(results)]
    for artefact in artefacts:
        try:
            accept(artefact)
        except (LeverPipeError, OSError) as error:  # another user's results
            log.warning(f"{artefact.manifest}: a replaced output is not recorded: {error}")
    digests.save()
    for line in complaints(artefacts):
        log.warning(line)


def accept(artefact: Artefact) -> None:
    """Record a user's replacement of outputs in the manifest, so that it is valid from now on.

    An unrecorded change of a file that has its job's modification time counts as damage.
    """
    origin, manifest = artefact.origin, artefact.manifest
    if origin is None or artefact.replaced == origin.replaced:
        return
    if read_artefact(manifest).origin == origin:  # otherwise a job has made it again
        written = time_ns(manifest)  # kept, because `check` compares the outputs' times with it
        storage.write_row(manifest, origin.model_copy(update={"replaced": dict(artefact.replaced)}))
        set_time(manifest, written)


def complaints(artefacts: Sequence[Artefact]) -> Iterator[str]:
    """Yield a line for each damaged or replaced file and each unreadable manifest, up to `DISPLAY_LIMIT`."""
    lines = []
    for artefact in artefacts:
        if artefact.origin is None:
            lines.append(f"{artefact.manifest}: expected a readable manifest; its outputs are made again if needed")
        damaged, replaced = ([artefact.paths[n] for n in names] for names in (artefact.damaged, artefact.replaced))
        lines += [
            f"{path}: expected the content in its manifest; found damage. It is made again if needed"
            for path in damaged
        ]
        lines += [
            f"{path}: replaced by a user after its rule made it. Jobs that read it run again; to get the rule's own "
            "output back, delete the file"
            for path in replaced
        ]
    yield from lines[:DISPLAY_LIMIT]
    if len(lines) > DISPLAY_LIMIT:
        n_damaged = sum(len(artefact.damaged) for artefact in artefacts)
        yield f"... and {len(lines) - DISPLAY_LIMIT} more files like these ({n_damaged} damaged in all)"


def content_of(path: Path, digests: Digests) -> str | None:
    """Return the digest of a file or folder: None if it is missing, `UNREADABLE` if it is incomplete."""
    try:
        return digests.of(path)
    except FileNotFoundError:
        return None
    except (CheckpointError, OSError):
        return UNREADABLE
