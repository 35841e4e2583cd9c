"""Why planned jobs would run: each job's own causes, and which other jobs it only follows.

`decision` finds what an artefact is worth; here it becomes causes, which `python -m lever_pipe why` tells in sentences
and `plan` in a few words (`in_short`).
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from lever_pipe.base import contents, provenance, storage
from lever_pipe.base.contents import Digests, is_card
from lever_pipe.base.errors import CheckpointError, RecordError
from lever_pipe.base.records import Row, RunCard
from lever_pipe.experiment.run_card import TENSOR_DIGITS
from lever_pipe.runtime.rerun.artefacts import Artefact, Maker, Makers, absolute, makers_of, read_artefact
from lever_pipe.runtime.rerun.decision import judge, members_of, other_versions, versions_for
from lever_pipe.runtime.rerun.why_names import first, flat, label
from lever_pipe.runtime.snakemake_adapter import PlannedCall, PlannedJob

RUNS, ONLY_IF, AS_MADE = "runs", "only if", "as made"
MISSING, CONSEQUENCE = "missing output", "input rebuilt"
SHORT = {
    "forced": "forced",
    "command": "the rule's command",
    "environment": "software environment",
    "never_made": MISSING,
    "missing_output": MISSING,
    "no_card": "incomplete output",
    "unreadable_card": "unreadable run card",
    "damaged_output": "damaged output",
    "inputs_changed": "other input files",
    "versions": "library versions",
    "unknown": "configuration or code",
}
"""Kind of a cause -> what it is called in a few words; of an input its name, of a setting its key."""
MODEL = "model_identity"
"""Last part of the config keys that hold a model folder's digest."""
LONGEST_VALUE = 60


class Cause(NamedTuple):
    """Why a job would run, without regard to other jobs.

    Attributes:
        kind: one word for programs.
        text: ends a sentence that begins with the job and `because`.
        details: the same as data.
    """

    kind: str
    text: str
    details: dict[str, Any]


class Explained(NamedTuple):
    """A planned job with why it would run.

    Attributes:
        name: what it is called.
        card: its run card's path; empty for a rule without one.
        causes: its own; where there are none, it runs at most as a consequence.
        follows: places of the planned jobs whose outputs it reads, with the names of these inputs.
    """

    job: PlannedJob
    name: str
    card: str
    causes: tuple[Cause, ...]
    follows: dict[int, tuple[str, ...]]

    @property
    def status(self) -> str:
        """Return whether it runs, runs only if another job's output changes, or counts as made already."""
        return RUNS if self.causes else ONLY_IF if self.follows else AS_MADE

    @property
    def in_short(self) -> str:
        """Return in a few words why it would run; of a changed configuration the keys."""
        if not self.causes:
            return CONSEQUENCE if self.follows else AS_MADE
        changed = [cause for cause in self.causes if cause.kind in ("config", "model", "code")]
        keys = [cause.details.get("key", cause.kind) for cause in changed]
        words = [SHORT[cause.kind] for cause in self.causes if cause.kind in SHORT]
        inputs = [cause.details["path"] for cause in self.causes if cause.kind.startswith("input_")]
        words += sorted(f"input: {Path(path).name}" for path in inputs)
        return ", ".join([*dict.fromkeys(words), *([f"changed: {first(keys)}"] if keys else [])])


class _Known(NamedTuple):
    """What causes are found by."""

    results: Path
    digests: Digests
    remade: Mapping[str, int]
    """Absolute path -> place of the planned job that makes it again: what it will hold is not known yet."""
    makers: Makers


def explain(
    jobs: Sequence[PlannedJob], artefacts: Sequence[Artefact] = (), *, results: Path, digests: Digests
) -> list[Explained]:
    """Return why each planned job would run, in the order of the plan.

    Args:
        jobs: as Snakemake plans them.
        artefacts: all below the results, judged; without, nobody is named who changed an input.
        results: the results folder, where code records lie.
        digests: contents of files.
    """
    judged = {absolute(artefact.card): artefact for artefact in artefacts}
    remade = {absolute(path): i for i, job in enumerate(jobs) for path in job.outputs}
    known, found = _Known(results, digests, remade, makers_of(artefacts)), []
    for i, job in enumerate(jobs):
        card = next((path for path in job.outputs if is_card(Path(path))), "")
        artefact = judged.get(absolute(card)) if card else None
        if artefact is None and card and Path(card).exists():
            artefact = judge(read_artefact(Path(card)), digests)
        call = job.call
        causes = tuple(_causes(job, call, artefact, known))
        name = label(job.rule, card or next(iter(job.outputs), ""))
        follows: dict[int, list[str]] = {}
        for input_name, paths in (call.inputs if call else {"": list(job.inputs)}).items():
            for other in dict.fromkeys(remade.get(absolute(path), i) for path in paths):
                if other != i:
                    follows.setdefault(other, []).append(input_name)
        found.append(Explained(job, name, card, causes, {other: tuple(names) for other, names in follows.items()}))
    return found


def walk(explained: Sequence[Explained], targets: Sequence[int]) -> list[tuple[int, int]]:
    """Return the places of the targets and of all planned jobs above them with their distance, nearest first."""
    distance = dict.fromkeys(targets, 0)
    queue = list(targets)
    for place in queue:
        for other in explained[place].follows:
            if other not in distance:
                distance[other] = distance[place] + 1
                queue.append(other)
    return sorted(distance.items(), key=lambda item: (item[1], item[0]))


def _causes(job: PlannedJob, call: PlannedCall | None, artefact: Artefact | None, known: _Known) -> Iterator[Cause]:
    """Yield a job's own causes, nearest to the user first."""
    texts = {
        "forced": "this is forced",
        "command": f"the command of rule {job.rule} changed",
        "environment": f"the software environment of rule {job.rule} changed",
    }
    yield from (Cause(kind, texts[kind], {} if kind == "forced" else {"rule": job.rule}) for kind in job.asked)
    missing = [path for path in job.outputs if not Path(path).exists()]
    if artefact is None:
        there = [path for path in job.outputs if path not in missing]
        lost = f"the run card is missing, so nobody can tell whether what lies there is whole ({first(there)})"
        yield Cause("no_card", lost, {"there": there}) if there else Cause("never_made", "there is none here yet", {})
        return
    if artefact.made is None:
        yield Cause("unreadable_card", f"the run card {artefact.card} cannot be read", {"path": str(artefact.card)})
        return
    damaged = [str(artefact.paths[name]) for name in artefact.damaged]
    for state, paths in (("missing", missing), ("damaged", damaged)):
        if paths:
            outputs = "outputs are" if len(paths) > 1 else "an output is"
            yield Cause(f"{state}_output", f"{outputs} {state}: {first(paths)}", {state: paths})
    if call is None:
        yield Cause("unknown", f"Snakemake says so ({job.reason}); its rule tells no more", {"reason": job.reason})
        return
    yield from _config_causes(artefact.made.config, call.config)
    if artefact.made.code != call.code:
        yield _code_cause(artefact.made, call, known.results)
    if versions := other_versions(artefact.made.versions, versions_for(job.rule, call.config)):
        told = ", ".join(f"{name} {was} then, {now} now" for name, (was, now) in versions.items())
        yield Cause("versions", f"the library versions differ: {told}", versions)
    yield from _input_causes(call.inputs, artefact, artefact.made, known)


def _config_causes(was: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[Cause]:
    """Yield each key in which two configs differ, the model folders apart."""
    before, after = flat(was), flat(now)
    for key in dict.fromkeys([*after, *before]):
        if key in before and key in after and before[key] == after[key]:
            continue
        details = {"key": key} | ({"was": before[key]} if key in before else {})
        details |= {"is": after[key]} if key in after else {}
        if key.endswith(MODEL):
            text = f"the model folder holds another model: {key} is {after.get(key)}, was {before.get(key)}"
            yield Cause("model", text, details)
        else:
            yield Cause("config", f"the configuration differs: {_key_text(key, before, after)}", details)


def _key_text(key: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    if key not in before:
        return f"{key} is {_value(after[key])}, was not set"
    if key not in after:
        return f"{key} was {_value(before[key])}, is not set any more"
    was, now = before[key], after[key]
    if isinstance(was, list) and isinstance(now, list) and len(_value(was)) > LONGEST_VALUE / 2:
        differ = {"+": [v for v in now if v not in was], "-": [v for v in was if v not in now]}
        parts = [
            f"{sign}{len(values)} ({_value(values[0])}{', ...' * (len(values) > 1)})"
            for sign, values in differ.items()
            if values
        ]
        if parts:
            return f"{key} lists others: {', '.join(parts)}"
    return f"{key} is {_value(now)}, was {_value(was)}"


def _value(value: Any) -> str:
    text = value if isinstance(value, str) and value else json.dumps(value)
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}..."


def _code_cause(made: RunCard, call: PlannedCall, results: Path) -> Cause:
    """Return which modules of a stage differ, as far as it is recorded."""
    found = code_differences(results, made.code, made.stage, members_of(made.stage, call.config))
    details: dict[str, Any] = {"was": made.code, "is": call.code}
    if found is None:
        text = f"the code differs ({made.code} then, {call.code} now; no record says in which modules)"
        return Cause("code", text, details)
    how = {"changed": "changed", "added": "is imported now", "removed": "is not imported any more"}
    parts = [f"{name} {verb}" for kind, verb in how.items() for name in found[kind]]
    parts += [f"Python {found['python'][0]} then, {found['python'][1]} now"] if found["python"] else []
    text = f"the code differs: {first(parts) or 'in nothing that is recorded'}"
    return Cause("code", text, details | found)


def _input_causes(
    planned: Mapping[str, list[str]], artefact: Artefact, made: RunCard, known: _Known
) -> Iterator[Cause]:
    """Yield what differs between the inputs of a planned job, name -> paths, and those of its artefact."""
    listed = {absolute(path): name for name, path in artefact.paths.items() if name in made.inputs}
    single, matched, added = {name for name in made.inputs if "[" not in name}, set[str](), list[str]()
    for base, paths in planned.items():
        for path in paths:
            own = absolute(path)
            name = listed.get(own) or (base if base in single else None)
            if name is None:
                added.append(path)
                continue
            matched.add(name)
            if own not in known.remade:
                yield from _content_cause(name, path, made, is_moved=own not in listed, known=known)
    removed = [str(artefact.paths[name]) for name in listed.values() if name not in matched]
    if added or removed:
        sets = {"added": added, "removed": removed}
        parts = [f"{len(paths)} {how} ({first(paths)})" for how, paths in sets.items() if paths]
        yield Cause("inputs_changed", f"the set of inputs changed: {', '.join(parts)}", sets)


def _content_cause(name: str, path: str, made: RunCard, *, is_moved: bool, known: _Known) -> Iterator[Cause]:
    try:
        found = known.digests.of(Path(path))
    except FileNotFoundError:
        yield Cause("input_missing", f"the input {name} ({path}) does not exist", {"input": name, "path": path})
        return
    except (CheckpointError, OSError) as fault:
        yield Cause("input_damaged", f"the input {name} is damaged: {fault}", {"input": name, "path": path})
        return
    if found == made.inputs[name]:
        return
    inside = (known.makers.get(absolute(place)) for place in (Path(path), *Path(path).parents))  # its folder, maybe
    maker = next((maker for maker in inside if maker is not None), None)
    kind, who = _who(maker)
    what = "has other content than when it was read"
    details: dict[str, Any] = {"input": name, "path": path, "was": made.inputs[name], "is": found, "changed_by": who}
    tensors = _tensor_changes(name, path, made)
    if tensors is not None:
        total = len(made.tensors[name])
        what = f"has other tensors than when it was read: {len(tensors)} of {total} differ ({first(tensors)})"
        details |= {"tensors": {"differ": tensors, "of": total}}
    of = "" if maker is None else label(maker.made.stage, str(maker.artefact.card))
    called = f"{Path(path).name} of {of}" if of else path
    other = f"; it is another file than then: {path}" if is_moved else ""
    yield Cause(kind, f"{called} {what}{other} ({who})", details)


def _who(maker: Maker | None) -> tuple[str, str]:
    """Return the kind of a cause and who changed the file, as far as run cards and times can tell."""
    if maker is None:
        return "input_content", "no rule makes it: it was changed outside the workflow"
    stage, artefact = maker.made.stage, maker.artefact
    if maker.output in artefact.replaced:
        return "input_replaced", f"replaced by hand: it is not what {stage} made"
    if maker.output in artefact.damaged:
        return "input_damaged", f"damaged: it is not what {stage} made"
    when = ""
    with suppress(OSError):
        when = time.strftime(" on %Y-%m-%d at %H:%M:%S", time.localtime(artefact.card.stat().st_mtime))
    return "input_content", f"{stage} made it anew{when}"


def _tensor_changes(name: str, path: str, made: RunCard) -> list[str] | None:
    """Return the tensors of an input that are not those that the artefact was made from; None where nothing tells."""
    then = made.tensors.get(name)
    if then is None:
        return None
    try:
        now = contents.tensors_of(Path(path))
    except (CheckpointError, OSError):
        return None
    digits = {key: text[: text.index(" ") + 1 + TENSOR_DIGITS] for key, text in now.items()}
    changed = [f"{key}, which is gone" for key in sorted(then.keys() - digits.keys())]
    changed += [f"{key}, which was not there" for key in sorted(digits.keys() - then.keys())]
    return [key for key in sorted(then.keys() & digits.keys()) if then[key] != digits[key]] + changed


# What a code fingerprint consists of: `<results>/code/<fingerprint>.json`. It stands for one set of modules, so a file
# is written once and serves every artefact that was made by this code.

CODE_FOLDER = "code"
FINGERPRINT = re.compile(r"[0-9a-f]{16}")


class CodeRecord(Row):
    """The modules behind a fingerprint."""

    python: str  # `3.11`
    modules: dict[str, str]  # module without the package's name -> digest of its syntax tree


def record_code(
    results: Path, stage: str, members: tuple[str, ...], code: str, *, root: Path = provenance.PACKAGE
) -> Path | None:
    """Write what a planned stage's fingerprint consists of, unless it is known; return the file.

    Returns None, and writes nothing, where the modules are not those of `code`: a record that is wrong helps nobody.
    """
    path = _code_path(results, code)
    if path is None or provenance.code_of(stage, members, root=root) != code:
        return None
    if not path.exists():
        modules = provenance.modules_of(stage, members, root=root)
        storage.write_row(path, CodeRecord(python=provenance.python_version(), modules=modules))
    return path


def code_differences(
    results: Path, code: str, stage: str, members: tuple[str, ...], *, root: Path = provenance.PACKAGE
) -> dict[str, tuple[str, ...]] | None:
    """Return in what the code of an artefact differs from a stage's present one; None without a record of it.

    By `changed`, modules with another syntax tree, comments and docstrings aside; `added` and `removed`, modules that
    only the one or the other imports; `python`, the artefact's version and the present one, if they differ.
    """
    path = _code_path(results, code)
    if path is None:
        return None
    try:
        then = storage.read_row(path, CodeRecord)
    except RecordError:
        return None
    was, now, python = then.modules, provenance.modules_of(stage, members, root=root), provenance.python_version()
    return {
        "changed": tuple(sorted(name for name in now.keys() & was.keys() if now[name] != was[name])),
        "added": tuple(sorted(now.keys() - was.keys())),
        "removed": tuple(sorted(was.keys() - now.keys())),
        "python": () if then.python == python else (then.python, python),
    }


def _code_path(results: Path, code: str) -> Path | None:
    """Return where a fingerprint's record lies; None for what is none, so that no card leads elsewhere."""
    return results / CODE_FOLDER / f"{code}.json" if FINGERPRINT.fullmatch(code) else None
