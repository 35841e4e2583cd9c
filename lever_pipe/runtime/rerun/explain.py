"""Why planned jobs would run: each job's own causes, and which other jobs it only follows.

`decision` finds what an artefact is worth; here it becomes causes, which `lever-pipe why` tells in sentences
and `plan` in a few words (`in_short`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from lever_pipe.base import contents, provenance, storage
from lever_pipe.base.contents import Digests, is_manifest
from lever_pipe.base.errors import RecordError
from lever_pipe.base.records import Manifest, Row
from lever_pipe.runtime.rerun import own_images
from lever_pipe.runtime.rerun.artefacts import Artefact, absolute, read_artefact
from lever_pipe.runtime.rerun.decision import check, content_of, other_versions, plugins_of, versions_for
from lever_pipe.runtime.rerun.why_names import first, flat, label
from lever_pipe.runtime.snakemake_adapter import PlannedCall, PlannedJob

RUNS, ONLY_IF, UNCHANGED = "runs", "only if", "as made"
LONGEST_VALUE = 60
CODE_FOLDER = "code"


class Cause(NamedTuple):
    """Why a job would run, without regard to other jobs: the end of a sentence with `because`, and a few words."""

    text: str
    short: str


class Explained(NamedTuple):
    """A planned job with why it would run.

    Attributes:
        manifest: its manifest's path; empty for a rule without one.
        causes: its own; where there are none, it runs at most as a consequence.
        follows: places of the planned jobs whose outputs it reads.
    """

    job: PlannedJob
    name: str
    manifest: str
    causes: tuple[Cause, ...]
    follows: tuple[int, ...]

    @property
    def status(self) -> str:
        """Return whether it runs, runs only if another job's output changes, or counts as made already."""
        return RUNS if self.causes else ONLY_IF if self.follows else UNCHANGED

    @property
    def in_short(self) -> str:
        """Return in a few words why it would run."""
        causes = list(dict.fromkeys(cause.short for cause in self.causes))
        return first(causes) or ("input rebuilt" if self.follows else UNCHANGED)


def explain(jobs: Sequence[PlannedJob], *, results: Path, digests: Digests) -> list[Explained]:
    """Return why each planned job would run, in the order of the plan; code records lie below the results."""
    remade = {absolute(path): i for i, job in enumerate(jobs) for path in job.outputs}
    explained = []
    for i, job in enumerate(jobs):
        manifest = next((path for path in job.outputs if is_manifest(Path(path))), "")
        artefact = check(read_artefact(Path(manifest)), digests) if manifest and Path(manifest).exists() else None
        causes = [Cause("this is forced" if word == "forced" else f"its {word} changed", word) for word in job.triggers]
        causes += _causes(job, artefact, results)
        if artefact is not None and job.call is not None:
            causes += _input_causes(job.call, artefact, remade, digests)
        paths = job.inputs if job.call is None else [path for paths in job.call.inputs.values() for path in paths]
        follows = dict.fromkeys(remade[name] for name in map(absolute, paths) if remade.get(name, i) != i)
        name = label(job.rule, manifest or next(iter(job.outputs), ""))
        explained.append(Explained(job, name, manifest, tuple(causes), tuple(follows)))
    return explained


def walk(explained: Sequence[Explained], targets: Sequence[int]) -> list[tuple[int, int]]:
    """Return the places of the targets and of all planned jobs above them with their distance, nearest first."""
    distance = dict.fromkeys(targets, 0)
    queue = list(targets)
    for location in queue:
        for other in explained[location].follows:
            if other not in distance:
                distance[other] = distance[location] + 1
                queue.append(other)
    return sorted(distance.items(), key=lambda item: (item[1], item[0]))


def _causes(job: PlannedJob, artefact: Artefact | None, results: Path) -> Iterator[Cause]:
    """Yield a job's causes but those of the user and of its inputs, nearest to the user first."""
    missing = [path for path in job.outputs if not Path(path).exists()]
    origin = [path for path in job.outputs if path not in missing]
    if artefact is None and not origin:
        yield Cause("there is none here yet", "missing output")
    elif artefact is None:
        yield Cause(
            f"it has no manifest, so nobody can tell whether it is whole ({first(origin)})", "incomplete output"
        )
    elif artefact.origin is None:
        yield Cause(f"the manifest {artefact.manifest} cannot be read", "unreadable manifest")
    else:
        damaged = [str(artefact.paths[name]) for name in artefact.damaged]
        for state, paths in (("missing", missing), ("damaged", damaged)):
            if paths:
                yield Cause(f"of its outputs these are {state}: {first(paths)}", f"{state} output")
        if job.call is not None:
            yield from _identity_causes(artefact.origin, job.call, results)


def _identity_causes(origin: Manifest, call: PlannedCall, results: Path) -> Iterator[Cause]:
    """Yield in which keys, modules and libraries a call differs from the one that made an artefact."""
    was, now = flat(origin.config), flat(call.config)
    for key in dict.fromkeys([*now, *was]):
        if (key in now) != (key in was) or now.get(key) != was.get(key):
            then, is_now = ("not set" if key not in settings else _value(settings[key]) for settings in (was, now))
            yield Cause(f"the configuration differs: {key} is {is_now}, was {then}", f"changed: {key}")
    if origin.code != call.code:
        differences = code_differences(results, origin.code, origin.stage, plugins_of(origin.stage, call.config))
        text = first(differences or ["in nothing that is recorded"])
        if differences is None:
            text = f"{origin.code} then, {call.code} now; no record says in which modules"
        yield Cause(f"the code differs: {text}", "changed: code")
    if versions := other_versions(origin.versions, versions_for(origin.stage, call.config)):
        text = ", ".join(f"{name} {then} then, {here} now" for name, (then, here) in versions.items())
        yield Cause(f"the library versions differ: {text}", "library versions")


def _value(value: Any) -> str:
    text = value if isinstance(value, str) and value else json.dumps(value)
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}..."


def _input_causes(
    call: PlannedCall, artefact: Artefact, remade: Mapping[str, int], digests: Digests
) -> Iterator[Cause]:
    """Yield what differs between the inputs of a planned job and those of its artefact.

    What a planned job makes again (`remade`) is not known yet.
    """
    if (origin := artefact.origin) is None:
        return
    listed = {absolute(path): name for name, path in artefact.paths.items() if name in origin.inputs}
    matched, added = set[str](), list[str]()
    for base, paths in call.inputs.items():
        for path in paths:
            name = listed.get(absolute(path)) or (base if base in origin.inputs else None)
            if name is None:
                added.append(path)
                continue
            matched.add(name)
            if absolute(path) in remade:
                continue
            if (digest := content_of(Path(path), digests)) != origin.inputs[name]:
                if images := _other_images(name, Path(path), artefact):
                    yield Cause(f"the images differ: {first(images)}", "other images")
                    continue
                lacks = "does not exist" if digest is None else "is damaged"
                text = _other_content(name, path, origin) if digest else lacks
                yield Cause(f"the input {path} {text}", f"input: {Path(path).name}")
    removed = [str(artefact.paths[name]) for name in listed.values() if name not in matched]
    parts = [f"{len(odd)} {change} ({first(odd)})" for change, odd in (("added", added), ("removed", removed)) if odd]
    if parts:
        yield Cause(f"the set of inputs changed: {', '.join(parts)}", "other input files")


def _other_images(name: str, listing: Path, artefact: Artefact) -> list[str]:
    """Return the images of a listing that differ from those in the examples of an artefact, each with its state."""
    if artefact.origin is None or artefact.origin.stage != own_images.STAGE or name != own_images.LISTING:
        return []
    with suppress(RecordError):
        found = own_images.differences(storage.read_listing(listing), artefact.paths[own_images.EXAMPLES])
        return [f"{image} {state}" for image, state in found.items()]
    return []


def _other_content(name: str, path: str, origin: Manifest) -> str:
    """Return that an input is not what was read, with the tensors that differ, as far as these are recorded."""
    if (then := origin.tensors.get(name)) is None:
        return "has other content"
    now = contents.in_short(contents.tensors_of(Path(path)))
    other = sorted(key for key in then.keys() | now.keys() if then.get(key) != now.get(key))
    return f"has other content ({len(other)} of {len(then)} tensors differ: {first(other)})"


class CodeRecord(Row):
    """The modules behind a fingerprint, of which `<results>/code/<fingerprint>.json` serves every artefact."""

    python: str  # `3.11`
    modules: dict[str, str]  # module without the package's name -> digest of its syntax tree


def record_code(
    results: Path, stage: str, plugins: tuple[str, ...], code: str, *, root: Path = provenance.PACKAGE
) -> None:
    """Write what a planned stage's fingerprint consists of, unless it is known or the modules are other ones now."""
    path = results / CODE_FOLDER / f"{code}.json"
    if not path.exists() and provenance.code_of(stage, plugins, root=root) == code:
        modules = provenance.modules_of(stage, plugins, root=root)
        storage.write_row(path, CodeRecord(python=provenance.python_version(), modules=modules))


def code_differences(
    results: Path, code: str, stage: str, plugins: tuple[str, ...], *, root: Path = provenance.PACKAGE
) -> list[str] | None:
    """Return in what the code of an artefact differs from a stage's present one; None without a record of it."""
    try:
        then = storage.read_row(results / CODE_FOLDER / f"{code}.json", CodeRecord)
    except (RecordError, OSError):
        return None
    was, now, python = then.modules, provenance.modules_of(stage, plugins, root=root), provenance.python_version()
    changed = [f"{name} changed" for name in sorted(now.keys() & was.keys()) if now[name] != was[name]]
    changed += [f"{name} is imported now" for name in sorted(now.keys() - was.keys())]
    changed += [f"{name} is not imported any more" for name in sorted(was.keys() - now.keys())]
    return changed + [f"Python {then.python} then, {python} now"] * (then.python != python)
