"""Explain why planned jobs would run: each job's own causes, and the planned jobs that it depends on.

`decision` checks artifacts; this module converts its findings to causes. `lever-pipe why` prints them as sentences,
`lever-pipe plan` in a few words (`in_short`).
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
MODULE_DIGITS = 8
"""Hexadecimal digits of a module's digest, enough for readers to see a change; the fingerprint covers all."""


class Cause(NamedTuple):
    """A job's own reason to run, other jobs aside: the end of a sentence with `because`, and a few words."""

    text: str
    short: str


class Explained(NamedTuple):
    """A planned job with its reasons to run.

    Attributes:
        manifest: its manifest's path; empty for a rule without one.
        causes: its own causes; without any, it runs only if an upstream job changes its inputs.
        follows: indices of the planned jobs whose outputs it reads.
    """

    job: PlannedJob
    name: str
    manifest: str
    causes: tuple[Cause, ...]
    follows: tuple[int, ...]

    @property
    def status(self) -> str:
        """Return `RUNS`, `ONLY_IF` another job's output changes, or `UNCHANGED`."""
        return RUNS if self.causes else ONLY_IF if self.follows else UNCHANGED

    @property
    def in_short(self) -> str:
        """Return the reasons in a few words."""
        causes = list(dict.fromkeys(cause.short for cause in self.causes))
        return first(causes) or ("input rebuilt" if self.follows else UNCHANGED)


def explain(jobs: Sequence[PlannedJob], *, results: Path, digests: Digests) -> list[Explained]:
    """Explain each planned job, in the order of the plan; `results` is the folder with the code records."""
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
        # Inputs without a planned maker get the job's own index, and are dropped with it.
        follows = dict.fromkeys(remade[name] for name in map(absolute, paths) if remade.get(name, i) != i)
        name = label(job.rule, manifest or next(iter(job.outputs), ""))
        explained.append(Explained(job, name, manifest, tuple(causes), tuple(follows)))
    return explained


def walk(explained: Sequence[Explained], targets: Sequence[int]) -> list[tuple[int, int]]:
    """Return (index, distance) of the targets and of all planned jobs upstream of them, nearest first."""
    distance = dict.fromkeys(targets, 0)
    queue = list(targets)  # grows during the loop: a breadth-first search, so the first distance is the shortest
    for index in queue:
        for other in explained[index].follows:
            if other not in distance:
                distance[other] = distance[index] + 1
                queue.append(other)
    return sorted(distance.items(), key=lambda item: (item[1], item[0]))


def _causes(job: PlannedJob, artefact: Artefact | None, results: Path) -> Iterator[Cause]:
    """Yield a job's causes in its outputs, configuration, code and libraries, but not in triggers or inputs."""
    missing = [path for path in job.outputs if not Path(path).exists()]
    existing = [path for path in job.outputs if path not in missing]
    if artefact is None and not existing:
        yield Cause("there is none here yet", "missing output")
    elif artefact is None:
        yield Cause(f"it has no manifest, so it may be incomplete ({first(existing)})", "incomplete output")
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
    """Yield the keys, modules and libraries in which a call differs from the one that made an artifact."""
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
    """Yield the differences between the inputs of a planned job and those of its artifact.

    Skip inputs that a planned job makes again (`remade`), because their new content is unknown.
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
    """Return the images of a listing that differ from those in an artifact's examples, each with its state."""
    if artefact.origin is None or artefact.origin.stage != own_images.STAGE or name != own_images.LISTING:
        return []
    with suppress(RecordError):
        found = own_images.differences(storage.read_listing(listing), artefact.paths[own_images.EXAMPLES])
        return [f"{image} {state}" for image, state in found.items()]
    return []


def _other_content(name: str, path: str, origin: Manifest) -> str:
    """Return the text for a changed input, with the names of changed tensors if these were recorded."""
    if (then := origin.tensors.get(name)) is None:
        return "has other content"
    now = contents.in_short(contents.tensors_of(Path(path)))
    other = sorted(key for key in then.keys() | now.keys() if then.get(key) != now.get(key))
    return f"has other content ({len(other)} of {len(then)} tensors differ: {first(other)})"


class CodeRecord(Row):
    """The modules of a code fingerprint; all artifacts share the file `<results>/code/<fingerprint>.json`."""

    python: str  # `3.11`
    modules: dict[str, str]  # module, `__init__` for the package -> digest of its syntax tree


def record_code(
    results: Path, stage: str, plugins: tuple[str, ...], code: str, *, root: Path = provenance.PACKAGE
) -> None:
    """Write the modules of a planned stage's fingerprint, unless recorded already or edited since."""
    path = results / CODE_FOLDER / f"{code}.json"
    if not path.exists() and provenance.code_of(stage, plugins, root=root) == code:
        record = CodeRecord(python=provenance.python_version(), modules=_digests_of(stage, plugins, root))
        storage.write_row(path, record)


def code_differences(
    results: Path, code: str, stage: str, plugins: tuple[str, ...], *, root: Path = provenance.PACKAGE
) -> list[str] | None:
    """Return the differences between an artifact's code and a stage's current code; None without a record."""
    try:
        then = storage.read_row(results / CODE_FOLDER / f"{code}.json", CodeRecord)
    except (RecordError, OSError):
        return None
    was, now, python = then.modules, _digests_of(stage, plugins, root), provenance.python_version()
    changed = [f"{name} changed" for name in sorted(now.keys() & was.keys()) if now[name] != was[name]]
    changed += [f"{name} is imported now" for name in sorted(now.keys() - was.keys())]
    changed += [f"{name} is not imported any more" for name in sorted(was.keys() - now.keys())]
    return changed + [f"Python {then.python} then, {python} now"] * (then.python != python)


def _digests_of(stage: str, plugins: tuple[str, ...], root: Path) -> dict[str, str]:
    modules = provenance.modules_of(stage, plugins, root=root)
    return {name.partition(".")[2] or "__init__": module.digest[:MODULE_DIGITS] for name, module in modules.items()}
