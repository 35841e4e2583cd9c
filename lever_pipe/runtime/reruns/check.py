"""Check an artifact against a job: the reasons to make it again.

An artifact is the set of files that one job makes. Its manifest, written last, records the stage, config and code, the
digests of the inputs (`lever_pipe.base.contents`: never times), and the digests of the outputs. One question decides
everywhere: **is the artifact complete, and would this job make the same from the current inputs?** `reasons` yields
each difference. It is asked

* for each job that may be planned (`why_again`). Snakemake would compare times, trust an output without a record, and
  keep its records in one place that a user may delete. Here the manifest next to each artifact decides. A touched or
  copied file reruns nothing; a replaced file reruns only the jobs that read it. Outputs of jobs that finished in a
  killed run stay valid, and deleting `.snakemake` loses nothing. Missing files are made if they are needed;
* before a job starts (`skip.Skipping`), when its inputs are final: upstream jobs may have made the same bytes;
* in the job's own Snakemake process on a cluster, before it deletes old outputs (`skip.completed_by_another_job`), and
  in a stage that waited for another process with the same artifact: the other process may have made it;
* when SLURM dropped the record of a job whose end was not observed (`slurm.watchdog`);
* by `lever-pipe why` and `plan`, which print the reasons (`why`).

Forced jobs always run (`is_wanted`). An output that a user replaced is kept, and the jobs that read it run again. A
changed output with the job's modification time is damaged, and is made again. In doubt a job runs again, because
that costs only time.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from lever_pipe.base import contents, provenance, storage
from lever_pipe.base.artefacts import Artefact, Call, absolute, flat, read_artefact
from lever_pipe.base.contents import UNREADABLE, Digests
from lever_pipe.base.errors import RecordError, first
from lever_pipe.base.records import Manifest
from lever_pipe.experiment import identities
from lever_pipe.experiment.manifests import flat as by_name
from lever_pipe.runtime import snapshot
from lever_pipe.runtime.reruns import own_images
from lever_pipe.runtime.reruns.manifest import Differences, code_differences, state_of
from lever_pipe.runtime.snakemake_adapter import Job, call_of, has_manifest

LONGEST_VALUE = 60
IDENTITY, ABSENT, CONTENT = "identity", "absent", "content"
"""Kinds of reasons: another configuration, code or library; a missing file; all others."""


class Reason(NamedTuple):
    """A reason to make an artifact again: the end of a sentence with `because`, and a few words."""

    text: str
    short: str
    kind: str = CONTENT


def reasons(
    call: Call,
    digests: Digests,
    *,
    results: Path = Path(),
    remade: Collection[str] = (),
    by_versions: bool = True,
) -> Iterator[Reason]:
    """Yield the differences between an artifact and what a call would make; files are read last.

    Args:
        call: the job.
        digests: contents of files.
        results: the folder with the records of code.
        remade: absolute paths of inputs that other jobs will make: their contents are unknown.
        by_versions: whether another version of a library counts, if the configuration permits.
    """
    artefact, outputs = read_artefact(call.manifest), by_name(call.outputs)
    if not call.manifest.exists():
        existing = [str(path) for path in outputs.values() if os.path.lexists(path)]  # a broken link is an output, too
        incomplete = Reason(f"it has no manifest, so it may be incomplete ({first(existing)})", "incomplete output")
        yield incomplete if existing else Reason("there is none here yet", "missing output", ABSENT)
    elif artefact.origin is None:
        yield Reason(f"the manifest {call.manifest} cannot be read", "unreadable manifest")
    else:
        yield from _other_identity(artefact.origin, call, results, by_versions=by_versions)
        inputs = by_name(call.inputs)
        known = {name: path for name, path in inputs.items() if absolute(path) not in remade}
        state = state_of(artefact._replace(paths=known | outputs), digests)
        yield from _other_inputs(artefact, artefact.origin, inputs, state)
        yield from _other_outputs(artefact.origin, outputs, state)


def _other_identity(origin: Manifest, call: Call, results: Path, *, by_versions: bool) -> Iterator[Reason]:
    """Yield the keys, modules and libraries in which a call differs from the one that made an artifact."""
    if origin.stage != call.stage:
        yield Reason(f"the stage {origin.stage} made it", "changed: stage", IDENTITY)
    was, now = flat(origin.config), flat(call.config)
    for key in dict.fromkeys([*now, *was]):
        if (key in now) != (key in was) or now.get(key) != was.get(key):
            then, is_now = ("not set" if key not in settings else _value(settings[key]) for settings in (was, now))
            text = f"the configuration differs: {key} is {is_now}, was {then}"
            yield Reason(text, f"changed: {key}", IDENTITY)
    if origin.code != call.code:
        differences = code_differences(results, origin.code, call.stage, plugins_of(call.stage, call.config))
        text = first(differences or ["in nothing that is recorded"])
        if differences is None:
            text = f"{origin.code} then, {call.code} now; no record says in which modules"
        yield Reason(f"the code differs: {text}", "changed: code", IDENTITY)
    here = versions_for(call.stage, call.config) if by_versions else {}
    if versions := other_versions(origin.versions, here):
        text = ", ".join(f"{name} {then} then, {now} now" for name, (then, now) in versions.items())
        yield Reason(f"the library versions differ: {text}", "library versions", IDENTITY)


def _value(value: Any) -> str:
    text = value if isinstance(value, str) and value else json.dumps(value)
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}..."


def _other_inputs(
    artefact: Artefact, origin: Manifest, now: Mapping[str, Path], state: Differences
) -> Iterator[Reason]:
    """Yield the inputs with another content, or for lists, whose entries may shift, the files that came or went."""
    then = {name: artefact.paths[name] for name in origin.inputs if name in artefact.paths}
    shifted = {n for n in state.changed if "[" in n and n in then and absolute(now[n]) != absolute(then[n])}
    shifted |= now.keys() ^ origin.inputs.keys()
    for name in [name for name in (*state.changed, *state.missing) if name in now and name not in shifted]:
        kind = CONTENT if name in state.changed else ABSENT
        if images := _other_images(name, now[name], artefact):
            yield Reason(f"the images differ: {first(images)}", "other images", kind)
        else:
            text = _other_content(name, now[name], origin, state.changed.get(name))
            yield Reason(f"the input {now[name]} {text}", f"input: {now[name].name}", kind)
    if shifted:
        given, recorded = ({absolute(path): str(path) for path in paths.values()} for paths in (now, then))
        added = [str(now[n]) for n in now if n in shifted and absolute(now[n]) not in recorded]
        removed = [str(then[n]) for n in then if n in shifted and absolute(then[n]) not in given]
        odd = [f"{len(of)} {change} ({first(of)})" for change, of in (("added", added), ("removed", removed)) if of]
        yield Reason(f"the set of inputs changed: {', '.join(odd) or 'their order'}", "other input files")


def _other_images(name: str, listing: Path, artefact: Artefact) -> list[str]:
    """Return the images of a listing that differ from those in an artifact's examples, each with its state."""
    if artefact.origin is None or artefact.origin.stage != own_images.STAGE or name != own_images.LISTING:
        return []
    with suppress(RecordError):
        found = own_images.differences(storage.read_listing(listing), artefact.paths[own_images.EXAMPLES])
        return [f"{image} {state}" for image, state in found.items()]
    return []


def _other_content(name: str, path: Path, origin: Manifest, digest: str | None) -> str:
    """Return the text for a changed input, with the names of changed tensors if these were recorded."""
    if not digest:
        return "is damaged" if digest == UNREADABLE else "does not exist"
    then = origin.tensors.get(name)
    if then is None:
        return "has other content"
    now = contents.in_short(contents.tensors_of(path))
    other = sorted(key for key in then.keys() | now.keys() if then.get(key) != now.get(key))
    return f"has other content ({len(other)} of {len(then)} tensors differ: {first(other)})"


def _other_outputs(origin: Manifest, outputs: Mapping[str, Path], state: Differences) -> Iterator[Reason]:
    if outputs.keys() != origin.outputs.keys():
        yield Reason("the set of outputs changed", "other output files")
    missing = [name for name in outputs if name in state.missing]
    for word, names, kind in (("missing", missing, ABSENT), ("damaged", state.damaged, CONTENT)):
        if names:
            paths = first([str(outputs[name]) for name in names])
            yield Reason(f"of its outputs these are {word}: {paths}", f"{word} output", kind)
    if not state.damaged and not missing and state.replaced != origin.replaced:
        yield Reason("outputs were replaced after the plan", "replaced output", ABSENT)


def other_versions(then: Mapping[str, str], now: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Return name -> (old, new) of the libraries with a new version; local build suffixes (`+cpu`) are ignored."""
    both = {name: (then[name], now[name]) for name in now if name in then}
    return {name: pair for name, pair in both.items() if len({version.partition("+")[0] for version in pair}) > 1}


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
    with suppress(KeyError, ValueError):  # ValueError: pydantic's, as the config is of another version of this package
        return identities.plugins_of(identities.model_of(stage).model_validate(config))
    return ()


def is_complete(call: Call, digests: Digests | None = None, *, by_versions: bool = True) -> bool:
    """Return whether an artifact is complete and equals the result of this call.

    A recorded replacement of an output by a user counts as its content.
    """
    try:
        return not any(reasons(call, digests or Digests(), by_versions=by_versions))
    except OSError:
        return False


def why_again(job: Job, by_identity: bool) -> str:
    """Return the first reason to make a job's artifact again; empty if it is valid or does not exist.

    Missing files are no reason here: Snakemake makes them if they are needed.

    Args:
        job: a job that may be planned, with a manifest.
        by_identity: whether a changed configuration or code is a reason.
    """
    kinds = (IDENTITY, CONTENT) if by_identity else (CONTENT,)
    found = reasons(call_of(job), contents.remembered())
    return next((reason.short for reason in found if reason.kind in kinds), "")


def is_from_this_plan(job: Job) -> bool:
    """Return whether a job whose end was not observed has made its artifact; always False for a group of jobs.

    A manifest older than this invocation's plan does not count: it is to be made again, because its input changed or
    the user forces the job.
    """
    if job.is_group() or not has_manifest(job):
        return False
    call = call_of(job)
    try:
        planned = Path(os.environ[snapshot.VARIABLE]).stat().st_mtime
        is_of_this_plan = call.manifest.stat().st_mtime > planned
    except (KeyError, OSError):
        return False
    return is_of_this_plan and is_complete(call)
