"""How it is decided what runs again.

An artefact is the files that one job makes. Its manifest, written last, says by which stage, config and code it was
made, from which contents (`lever_pipe.base.contents`: never times), and what its outputs held. One question decides
everywhere: **is the artefact whole, and what this very job would make of the inputs as they are now?** `check_call`
says what is not so, `is_complete` whether nothing is. They are asked

* of each job that may be planned (`why_again`). Snakemake itself would compare times, trust an output that it has no
  record of, and keep its records in one place that a user may delete. Here the manifest beside each artefact decides:
  a touched or copied file reruns nothing, an exchanged one exactly what read it, what jobs of a killed run finished
  counts for what it is, and a deleted `.snakemake` loses nothing. What is missing is made where somebody needs it;
* when a job's turn comes (`skipping.Skipping`), its inputs being final: what ran above may have come out the same;
* in the own Snakemake of a job on a cluster, before that removes anything (`skipping.completed_by_another_job`), and
  in a stage that waited for another process with the same artefact (`lever_pipe.__main__`): that one may have made it;
* when SLURM forgot a job before anybody saw it end (`slurm.watchdog`).

What a user forces runs (`is_wanted`). What somebody put in an output's place stays, and what reads it is made again.
Another content with the time of the job is damage, and made good. Where anything is uncertain the answer is no: making
a thing twice costs time only. `explain` tells the reasons by the same findings.
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
from lever_pipe.experiment.manifests import Files, files_of, flat
from lever_pipe.runtime import plan, snapshot
from lever_pipe.runtime.rerun.artefacts import (
    MANIFEST,
    Artefact,
    manifests_below,
    read_artefact,
    set_time,
    time_ns,
)
from lever_pipe.runtime.snakemake_adapter import Job

log = logging.getLogger(f"snakemake.logging.{__name__}")  # also in the run's own log file
SAME_TIME_NS = 1_000_000_000
"""Snakemake gives the outputs of a job their times one after the other, when the job has ended."""
DISPLAY_LIMIT = 5
UNREADABLE = ""
"""In the place of a digest: there is something, and it is not whole."""


def check(artefact: Artefact, digests: Digests) -> Artefact:
    """Return what an artefact is worth. A missing file is no error: Snakemake makes what is needed."""
    origin = artefact.origin
    if origin is None:
        return artefact
    recorded = origin.inputs | origin.outputs
    contents_now = {name: content_of(path, digests) for name, path in artefact.paths.items() if name in recorded}
    others = {name: digest for name, digest in contents_now.items() if digest not in (None, recorded[name])}

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
    """Return what an artefact is worth to a call: of another one, no file needs to be read.

    Args:
        manifest: the manifest.
        files: inputs and outputs of the call by name.
        stage: name of the stage.
        config: the stage's config as JSON.
        code: fingerprint of the stage's code.
        digests: contents of files.
        versions: of the libraries that the stage computes with here.
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
    """Return the libraries that have another version now; one built for another machine is the same."""
    both = {name: (then[name], now[name]) for name in now if name in then}
    return {name: (was, present) for name, (was, present) in both.items() if _public(was) != _public(present)}


def _public(version: str) -> str:
    return version.partition("+")[0]


def set_rerun_on_library_versions(is_on: bool) -> None:
    """Let another version of a library be a reason to compute again in this process, or none."""
    _rerun_on["versions"] = is_on


_rerun_on = {"versions": True}


def versions_for(stage: str, config: Mapping[str, Any]) -> dict[str, str]:
    """Return the versions here of what a stage computes with; none where they are no reason to compute again."""
    here = _installed() if _rerun_on["versions"] else {}
    return {name: here[name] for name in snapshot.code_of(stage, plugins_of(stage, config)).libraries if name in here}


@cache
def _installed() -> dict[str, str]:
    return provenance.installed_versions()


def plugins_of(stage: str, config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the modules that a stage's config selects by name; none for a stage of another version."""
    identity = IDENTITIES.get(stage)
    with suppress(ValueError):
        return plan.plugins_of(identity.config.model_validate(config)) if identity else ()
    return ()


def is_complete(manifest: Path, files: Files, **call: Any) -> bool:
    """Return whether an artefact is whole and what this very call would make; the arguments are those of `check_call`.

    The manifest must name the same stage, config and code, and all files of the call with the contents they have now.
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
    """Return what a planned job calls its stage with."""
    spec, files = json.loads(str(job.params.spec)), files_of(job.input) | files_of(job.output)
    identity = {"stage": job.rule.name, "config": spec["config"], "code": spec["code"]}
    identity["versions"] = versions_for(job.rule.name, spec["config"])
    return {"manifest": Path(job.output[MANIFEST]), "files": files, **identity}


def has_manifest(job: Job) -> bool:
    """Return whether a job writes a manifest; a rule of a user's own need not."""
    return MANIFEST in set(job.output.keys()) and hasattr(job.params, "spec")


def why_again(job: Job, by_identity: bool) -> str:
    """Return why a job's artefact has to be made again; nothing for one that is as made, and for one that never was.

    What is missing is not asked for here: Snakemake makes what somebody needs.

    Args:
        job: a job that may be planned, with a manifest.
        by_identity: whether another configuration or code is a reason.
    """
    if not any(map(os.path.lexists, job.output)):
        return ""
    call, digests = call_of(job), contents.remembered()
    artefact = check_call(**call, digests=digests)
    if artefact.origin is not None and artefact.other and not by_identity:
        as_then = {"config": artefact.origin.config, "code": artefact.origin.code, "versions": {}}
        artefact = check_call(**call | as_then, digests=digests)
    return artefact.reason


def is_from_this_plan(job: Job) -> bool:
    """Return whether a job that nobody saw end has made its artefact; of a group of jobs nothing is known.

    A manifest older than the plan of this invocation is about to be made again: its input changed, or a user wants it.
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
    """Note and tell what is not as the manifests below the results say."""
    digests = contents.remembered()
    artefacts = [check(read_artefact(manifest), digests) for manifest in manifests_below(results)]
    for artefact in artefacts:
        try:
            accept(artefact)
        except (LeverPipeError, OSError) as error:  # another user's results
            log.warning(f"{artefact.manifest}: what somebody replaced is not noted: {error}")
    digests.save()
    for line in complaints(artefacts):
        log.warning(line)


def accept(artefact: Artefact) -> None:
    """Note in the manifest what somebody put in the place of an output, so that it counts for that from now on.

    A file that comes without being noted, and with the time of its job, counts as damaged.
    """
    origin, manifest = artefact.origin, artefact.manifest
    if origin is None or artefact.replaced == origin.replaced:
        return
    if read_artefact(manifest).origin == origin:  # else a job has made it again meanwhile
        written = time_ns(manifest)
        storage.write_row(manifest, origin.model_copy(update={"replaced": dict(artefact.replaced)}))
        set_time(manifest, written)


def complaints(artefacts: Sequence[Artefact]) -> Iterator[str]:
    """Yield a line for each damaged or replaced file and each manifest that cannot be read, up to a number."""
    lines = []
    for artefact in artefacts:
        if artefact.origin is None:
            lines.append(f"{artefact.manifest}: expected a manifest; what it stands for is made again if needed")
        damaged, replaced = ([artefact.paths[n] for n in names] for names in (artefact.damaged, artefact.replaced))
        lines += [
            f"{path}: expected what its manifest says; found damage. It is made again if needed" for path in damaged
        ]
        lines += [
            f"{path}: not what its rule made: somebody replaced it. What reads it is made again; to have the "
            "rule's own back, delete it"
            for path in replaced
        ]
    yield from lines[:DISPLAY_LIMIT]
    if len(lines) > DISPLAY_LIMIT:
        n_damaged = sum(len(artefact.damaged) for artefact in artefacts)
        yield f"... and {len(lines) - DISPLAY_LIMIT} more files like these ({n_damaged} damaged in all)"


def content_of(path: Path, digests: Digests) -> str | None:
    """Return the digest of what lies there: None for nothing, `UNREADABLE` for what is not whole."""
    try:
        return digests.of(path)
    except FileNotFoundError:
        return None
    except (CheckpointError, OSError):
        return UNREADABLE
