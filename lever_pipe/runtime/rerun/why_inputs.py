"""Which inputs of a planned job differ from those that its artefact was made from, in what, and who changed them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from lever_pipe.base import contents
from lever_pipe.base.contents import Digests
from lever_pipe.base.errors import CheckpointError
from lever_pipe.base.records import RunCard
from lever_pipe.experiment.run_card import TENSOR_DIGITS
from lever_pipe.runtime.rerun.artefacts import Artefact, Verdict
from lever_pipe.runtime.rerun.why_names import first, label


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


class Maker(NamedTuple):
    """Which artefact a file is an output of, and under which name."""

    verdict: Verdict
    output: str


Makers = Mapping[str, Maker]
"""Absolute path of a file -> its maker."""


def makers_of(verdicts: Iterable[Verdict]) -> dict[str, Maker]:
    """Return the makers of all files that run cards state as their outputs, the cards themselves among them."""
    found: dict[str, Maker] = {}
    for verdict in verdicts:
        made = verdict.artefact.made
        if made is None:
            continue
        for name, path in verdict.artefact.paths.items():
            if name in made.outputs or name == "card":
                found[absolute(path)] = Maker(verdict, name)
    return found


def absolute(path: str | Path) -> str:
    """Return a path by which files are compared; links are not resolved."""
    return os.path.abspath(path)  # noqa: PTH100 - `resolve` follows links


def input_causes(
    planned: Mapping[str, list[str]], artefact: Artefact, *, remade: Iterable[str], makers: Makers, digests: Digests
) -> Iterator[Cause]:
    """Yield what differs between the inputs of a planned job and those of its artefact.

    Args:
        planned: name of an input -> its paths, in order.
        artefact: what the job's run card says; it must be readable.
        remade: absolute paths that other planned jobs make again: what they will hold is not known yet.
        makers: who made the files that there are.
        digests: contents of files.
    """
    made = artefact.made
    assert made is not None
    known = {absolute(path): name for name, path in artefact.paths.items() if name in made.inputs}
    again, single, unmatched = set(remade), {name for name in made.inputs if "[" not in name}, dict(known)
    added: list[str] = []
    for base, paths in planned.items():
        for path in paths:
            own = absolute(path)
            name = known.get(own) or (base if base in single else None)
            unmatched = {key: value for key, value in unmatched.items() if value != name}
            if name is None:
                added.append(path)
            elif own not in again:
                yield from _content_cause(name, path, made, is_moved=own not in known, makers=makers, digests=digests)
    removed = [_shown(path, artefact) for path in unmatched]
    if added or removed:
        parts = [f"{len(added)} added ({first(added)})"] if added else []
        parts += [f"{len(removed)} removed ({first(removed)})"] if removed else []
        text = f"the set of inputs changed: {', '.join(parts)}"
        yield Cause("inputs_changed", text, {"added": added, "removed": removed})


def _content_cause(
    name: str, path: str, made: RunCard, *, is_moved: bool, makers: Makers, digests: Digests
) -> Iterator[Cause]:
    try:
        found = digests.of(Path(path))
    except FileNotFoundError:
        yield Cause("input_missing", f"the input {name} ({path}) does not exist", {"input": name, "path": path})
        return
    except (CheckpointError, OSError) as fault:
        yield Cause("input_damaged", f"the input {name} is damaged: {fault}", {"input": name, "path": path})
        return
    if found == made.inputs[name]:
        return
    maker = makers.get(absolute(path)) or _folder_maker(path, makers)
    kind, who = _who(maker)
    what = f"{_called(path, maker)} {_what(name, path, made)}"
    other = f"; it is another file than then: {path}" if is_moved else ""
    details = {"input": name, "path": path, "was": made.inputs[name], "is": found, "changed_by": who}
    yield Cause(kind, f"{what}{other} ({who})", details | _tensor_details(name, path, made))


def _called(path: str, maker: Maker | None) -> str:
    if maker is None or maker.verdict.artefact.made is None:
        return path
    name = label(maker.verdict.artefact.made.stage, str(maker.verdict.artefact.card))
    return f"{Path(path).name} of {name}"


def _who(maker: Maker | None) -> tuple[str, str]:
    """Return the kind of a cause and who changed the file, as far as run cards and times can tell."""
    if maker is None:
        return "input_content", "no rule makes it: it was changed outside the workflow"
    made = maker.verdict.artefact.made
    assert made is not None  # of a maker
    if maker.output in maker.verdict.replaced:
        return "input_replaced", f"replaced by hand: it is not what {made.stage} made"
    if maker.output in maker.verdict.damaged:
        return "input_damaged", f"damaged: it is not what {made.stage} made"
    when = _time_of(maker.verdict.artefact.card)
    return "input_content", f"{made.stage} made it anew{when}"


def _time_of(card: Path) -> str:
    with suppress(OSError):
        return time.strftime(" on %Y-%m-%d at %H:%M:%S", time.localtime(card.stat().st_mtime))
    return ""


def _what(name: str, path: str, made: RunCard) -> str:
    changed = tensor_changes(name, path, made)
    if changed is None:
        return "has other content than when it was read"
    total = len(made.tensors[name])
    return f"has other tensors than when it was read: {len(changed)} of {total} differ ({first(changed)})"


def _tensor_details(name: str, path: str, made: RunCard) -> dict[str, Any]:
    changed = tensor_changes(name, path, made)
    return {} if changed is None else {"tensors": {"differ": changed, "of": len(made.tensors[name])}}


def tensor_changes(name: str, path: str, made: RunCard) -> list[str] | None:
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


def _folder_maker(path: str, makers: Makers) -> Maker | None:
    """Return the maker of the output folder that a file lies in."""
    return next((makers[absolute(p)] for p in Path(path).parents if absolute(p) in makers), None)


def _shown(path: str, artefact: Artefact) -> str:
    """Return a path as the run card's own paths are written."""
    return next((str(known) for known in artefact.paths.values() if absolute(known) == path), path)
