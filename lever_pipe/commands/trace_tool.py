"""`python -m lever_pipe trace WHAT`: from a number of the report back to the checkpoint, data, config and code.

WHAT is a figure's path, a table's file, `TABLE:ROW:COLUMN` with a table's id in the report, `FILE.csv:ROW:COLUMN`, a
key of the evidence, or `e12`, line 12 of `results/report/evidence.csv`, which the pages name at each number. A row is
its number, counted from 1, a cell of it, or several cells as `KL_BETA=0.15|Source=ours`. A cell leads to the rows of
the evidence that it prints, to those that they are worked out from, to the lines of the files that these were measured
in, and to the runs behind these lines alone. Each artefact is shown once: its settings, code fingerprint, commit,
versions, device, seconds, and whether its files still are what was made. The way ends at raw data and model folders,
with their digests, and at the row of `resources/reference` of a published number.

`--json` prints the same: `steps`, each with `inputs.NAME.made_by` as a place in that list.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lever_pipe.base import contents
from lever_pipe.base.policy_names import group_of, values_in
from lever_pipe.base.provenance import canonical_json
from lever_pipe.commands import trace
from lever_pipe.commands.telling import as_json
from lever_pipe.commands.trace import AS_READ, MODEL, FoundRow, Traced, TracedJob
from lever_pipe.commands.trace_values import Reference, asked_for
from lever_pipe.runtime.rerun.artefacts import cards_below, read_artefact
from lever_pipe.runtime.rerun.decision import judge
from lever_pipe.runtime.rerun.why_names import flat

FORMAT = 2
SHOWN_KEYS, SHOWN_SOURCES, SHOWN_DIGESTS, SHOWN_LIST = 6, 4, 3, 4
DIGITS = 12
IN_NAMES = frozenset(("preset", "seed", "epoch", "kl_beta", "base_rce_epoch", "objective", "arm", "shard"))
"""Config keys that a branch's name states already."""


Branch = tuple[TracedJob, ...]
"""Steps of one stage that differ in their seed or draw alone."""


def main(words: Sequence[str]) -> int:
    """Print the way back and return 0.

    Raises:
        UnknownMemberError: no such file, table, row or column, or nobody knows who made it.
        ConfigError: a row that is not one.
    """
    options = _parser().parse_args(words[1:])
    traced = traced_back(options.what, Path(options.results))
    sys.stdout.write(as_json(as_object(traced)) if options.json else text(traced))
    return 0


def traced_back(what: str, results: Path) -> trace.Traced:
    """Return the way back from a word of the command line.

    Raises:
        UnknownMemberError, ConfigError: as `main`.
    """
    asked, digests = asked_for(what, results), contents.remembered()
    artefacts = [judge(read_artefact(card), digests) for card in cards_below(asked.results)]
    return trace.trace(asked, artefacts, digests)


def as_object(traced: Traced) -> dict[str, Any]:
    """Return a way back for JSON.

    `steps` refer to each other by their place in the list: `inputs.NAME.made_by`. A file's `state` says whether it has
    the content of its digest still.
    """
    asked = {name: value for name, value in traced.asked._asdict().items() if name not in ("results", "references")}
    return {
        "format": FORMAT,
        **asked,
        "evidence": [_reference_object(reference) for reference in traced.asked.references],
        "policies": traced.names,
        "sources": traced.sources,
        "notes": traced.notes,
        "steps": [_step_object(step) for step in traced.steps],
    }


def _reference_object(reference: Reference) -> dict[str, Any]:
    return {"key": reference.row.key, **reference._asdict(), "of": [_reference_object(each) for each in reference.of]}


def _step_object(step: TracedJob) -> dict[str, Any]:
    made, kept = step.made, ("stage", "config", "code", "commit", "dirty", "versions", "device", "threads", "seconds")
    digests = made.inputs | made.outputs
    files = {
        name: {"path": step.artefact.paths[name], "digest": digests[name], "state": state}
        for name, state in step.states.items()
    }
    return {
        "name": step.name,
        "card": step.artefact.card,
        **{key: getattr(made, key) for key in kept},
        "models": step.models,
        "outputs": {name: files[name] for name in step.outputs},
        "inputs": {name: files[name] | {"made_by": step.makers.get(name)} for name in step.inputs},
    }


def text(traced: Traced) -> str:
    """Return the tree: the value, then each artefact once below what was made from it."""
    tree = _Tree(traced.steps)
    common = [f"All of it: {tree.common}"] if tree.common else []
    return "\n".join([*_head(traced), *common, "", *tree.lines(0, "")]) + "\n"


def _head(traced: Traced) -> Iterator[str]:
    asked = traced.asked
    if asked.column:
        yield f"{asked.value or '(empty)'}: row {asked.row}, column {asked.column} of {asked.table or asked.file}"
        cells = [f"{name} {cell}" for name, cell in asked.cells.items() if cell]
        yield f"  row: {' | '.join(cells[:SHOWN_KEYS])}"
    else:
        yield str(asked.file)
    yield from (line for reference in asked.references for line in _quantity(reference, "  "))
    yield from map(_source_text, traced.sources[:SHOWN_SOURCES])
    if len(traced.sources) > SHOWN_SOURCES:
        yield f"  ... and {len(traced.sources) - SHOWN_SOURCES} more"
    yield from (f"  {note}" for note in traced.notes)


def _quantity(reference: Reference, indent: str) -> Iterator[str]:
    """Yield a row of the evidence with its value and interval, then those that it is made of."""
    row, part = reference.row, reference.part
    value = getattr(row, part)
    told = f"{value:.6g}" if isinstance(value, float) else str(value)
    ends = f" [{row.low:.6g}, {row.high:.6g}]" if part == "value" and row.has_interval else ""
    how = f" ({row.how})" if row.how else ""
    what = "" if part == "value" else f"{part} "
    yield f"{indent}e{reference.line} {row.key}: {what}{row.printed or told}{ends}{how}"
    for each in reference.of[:SHOWN_KEYS]:
        yield from _quantity(each, f"{indent}  ")
    if len(reference.of) > SHOWN_KEYS:
        yield f"{indent}  ... and {len(reference.of) - SHOWN_KEYS} more"


def _source_text(source: FoundRow) -> str:
    lines = ", ".join(map(str, source.lines[:SHOWN_LIST])) + (", ..." if len(source.lines) > SHOWN_LIST else "")
    cells = ", ".join(f"{name} {value}" for name, value in source.cells.items() if value)
    return f"  in {source.path}" + (f", line {lines}: {cells}" if lines else "")


class _Tree:
    """Steps as text, those of one stage that differ in their seed or draw alone as one branch."""

    def __init__(self, steps: Sequence[TracedJob]) -> None:
        alike: dict[str, list[int]] = {}
        for place, step in enumerate(steps):
            alike.setdefault(_kind(step), []).append(place)
        self._branches = [tuple(steps[place] for place in places) for places in alike.values()]
        self._branch_of = {place: i for i, places in enumerate(alike.values()) for place in places}
        told = [_made_by(step) for step in steps]
        self.common = max(dict.fromkeys(told), key=told.count, default="")
        self._printed: dict[int, int] = {}

    def lines(self, index: int, indent: str) -> Iterator[str]:
        """Yield a branch and all below it; what was printed before by its number."""
        branch = self._branches[index]
        self._printed[index] = number = len(self._printed) + 1
        yield f"{indent}[{number}] {_name(branch)}"
        yield from (f"{indent}    {line}" for line in _facts(branch, self.common))
        for names, target in self._below(branch):
            if isinstance(target, str):
                yield f"{indent}    {names}: {target}"
            elif target in self._printed:
                yield f"{indent}    {names}: see [{self._printed[target]}]"
            else:
                yield f"{indent}    {names}:"
                yield from self.lines(target, indent + "    ")

    def _below(self, branch: Branch) -> list[tuple[str, int | str]]:
        """Return what a branch was made from: names of inputs with the branch that made them, or with the raw file."""
        targets: dict[int | str, dict[str, None]] = {}
        for step in branch:
            for name, path in sorted(step.inputs.items()):
                maker, state = step.makers.get(name), step.states[name]
                raw = f"{path} {step.made.inputs[name][:DIGITS]} ({state})"
                base = name.partition("[")[0] + (f" ({state})" if maker is not None and state != AS_READ else "")
                targets.setdefault(raw if maker is None else self._branch_of[maker], {})[base] = None
        return [(", ".join(names), target) for target, names in targets.items()]


def _kind(step: TracedJob) -> str:
    made = step.made
    named = ("seed", "policy.seed", "policy.name")
    config = {key: value for key, value in flat(made.config).items() if key not in named}
    told = [getattr(made, name) for name in ("stage", "code", "commit", "dirty", "versions", "device")]
    return canonical_json([*told, group_of(str(step.artefact.card)), config, step.outputs])


def _name(branch: Branch) -> str:
    head = branch[0]
    if len(branch) == 1:
        return head.name if head.made.stage in head.name else f"{head.name} ({head.made.stage})"
    seeds = [values_in(str(step.artefact.card)).get("seed", "") for step in branch]
    what = f"seeds {', '.join(sorted(seeds))}" if all(seeds) else f"{len(seeds)} draws"
    seed = f" of seed {values_in(str(head.artefact.card)).get('seed')}"
    name = head.name.replace(seed, "").replace(seed.replace(" of ", ", "), "")
    return f"{name}, {what}" + ("" if head.made.stage in name else f" ({head.made.stage})")


def _facts(branch: Branch, common: str) -> Iterator[str]:
    head = branch[0]
    settings = _settings(head.made.config)
    if settings:
        yield settings
    own = f", {_made_by(head)}" if _made_by(head) != common else ""
    seconds = " + ".join(f"{step.made.seconds:g}" for step in branch[:SHOWN_DIGESTS])
    more = " + ..." if len(branch) > SHOWN_DIGESTS else ""
    yield f"code {head.made.code}, {seconds}{more} s{own}"
    for name in head.outputs:
        digests = [step.made.outputs[name][:DIGITS] for step in branch]
        states = sorted({step.states[name] for step in branch})
        shown = f"{', '.join(digests[:SHOWN_DIGESTS])}{', ...' if len(digests) > SHOWN_DIGESTS else ''}"
        yield f"{head.artefact.paths[name].name} {shown} ({' or '.join(states)})"
    yield from (
        f"model folder {key.removesuffix(MODEL).strip('.') or 'model'} {value}" for key, value in head.models.items()
    )


def _settings(config: Mapping[str, Any]) -> str:
    """Return the settings that matter: the outer ones first, no long lists, and none that the name states."""
    leaves = [(key, value) for key, value in flat(config).items() if _is_telling(key, value)]
    leaves.sort(key=lambda leaf: leaf[0].count("."))
    shown = [f"{key} {value if isinstance(value, str) else json.dumps(value)}" for key, value in leaves[:SHOWN_KEYS]]
    more = [f"and {len(leaves) - SHOWN_KEYS} more settings"] if len(leaves) > SHOWN_KEYS else []
    return ", ".join([*shown, *more])


def _is_telling(key: str, value: Any) -> bool:
    if key in IN_NAMES or key.startswith("policy.") or key.endswith(MODEL) or value is None or value == {}:
        return False
    return not isinstance(value, list) or (
        len(value) <= SHOWN_LIST and not any(isinstance(v, dict | list) for v in value)
    )


def _made_by(step: TracedJob) -> str:
    made = step.made
    dirty = " with uncommitted changes" if made.dirty else ""
    versions = ", ".join(f"{name} {version}" for name, version in made.versions.items())
    return f"commit {made.commit[:DIGITS]}{dirty}, {versions}, on {made.device}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m lever_pipe trace", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "what", help="figure, table file, TABLE:ROW:COLUMN, FILE.csv:ROW:COLUMN, key of the evidence or e12"
    )
    parser.add_argument("--results", default="results", help="the results folder, for a table's id")
    parser.add_argument("--json", action="store_true", help="print the same as data")
    return parser
