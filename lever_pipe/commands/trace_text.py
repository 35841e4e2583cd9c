"""A way back from a number as a tree for readers; runs that differ in their seed or draw alone are one entry."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from lever_pipe.base.provenance import canonical_json
from lever_pipe.base.records import group_of
from lever_pipe.commands.trace import AS_MADE, AS_READ, MODEL, Step, Traced
from lever_pipe.commands.trace_sources import Source
from lever_pipe.runtime.rerun.why_names import flat, run_of, values_in

SHOWN_KEYS, SHOWN_SOURCES, SHOWN_DIGESTS, SHOWN_LIST = 6, 4, 3, 4
DIGITS = 12
IN_NAMES = frozenset(("preset", "seed", "epoch", "kl_beta", "base_rce_epoch", "objective", "arm", "shard"))
"""Config keys that an entry's name states already."""


class Entry(NamedTuple):
    """Steps of one stage that differ in their seed or draw alone; `inputs` maps names to entries or raw files."""

    steps: tuple[Step, ...]
    places: tuple[int, ...]


def text(traced: Traced) -> str:
    """Return the tree: the value, then each artefact once below what was made from it."""
    entries = _entries(traced.steps)
    entry_of = {place: i for i, entry in enumerate(entries) for place in entry.places}
    common = _common(traced.steps)
    lines = [*_head(traced), *([f"All of it: {common}"] if common else []), ""]
    printed: dict[int, int] = {}
    lines += _tree(0, "", entries, entry_of, printed, common)
    return "\n".join(lines) + "\n"


def _head(traced: Traced) -> Iterator[str]:
    asked = traced.asked
    if asked.column:
        where = f"{asked.table} ({asked.file})" if asked.table else str(asked.file)
        yield f"{asked.value or '(empty)'}: row {asked.row}, column {asked.column} of {where}"
        cells = [(name, cell) for name, cell in asked.cells.items() if cell]
        yield f"  row: {' | '.join(f'{name} {cell}' for name, cell in cells[:6])}"
    else:
        yield str(asked.file)
    if traced.groups:
        yield f"  about: {', '.join(traced.groups)}"
    for source in traced.sources[:SHOWN_SOURCES]:
        yield f"  found in {_source_text(source)}"
    if len(traced.sources) > SHOWN_SOURCES:
        more = len(traced.sources) - SHOWN_SOURCES
        yield f"  ... and in {more} more rows: which one it was printed from is not recorded"
    for note in traced.notes:
        yield f"  {note}"


def _source_text(source: Source) -> str:
    keys = ", ".join(f"{name} {value}" for name, value in list(source.keys.items())[:8])
    return f"{source.path}, row {source.row}: {source.column} {source.value} ({keys})"


def _entries(steps: Sequence[Step]) -> list[Entry]:
    alike: dict[str, list[int]] = {}
    for place, step in enumerate(steps):
        alike.setdefault(_kind(step), []).append(place)
    return [Entry(tuple(steps[place] for place in places), tuple(places)) for places in alike.values()]


def _kind(step: Step) -> str:
    made, card = step.made, str(step.verdict.artefact.card)
    config = {
        key: value for key, value in flat(made.config).items() if key not in ("seed", "policy.seed", "policy.name")
    }
    path = group_of(card.replace(f"{run_of(card)}/", f"{group_of(run_of(card))}/")) if run_of(card) else group_of(card)
    kept = [made.stage, path, config, made.code, made.commit, made.dirty, made.versions, made.device, step.outputs]
    return canonical_json(kept)


def _tree(
    index: int,
    indent: str,
    entries: Sequence[Entry],
    entry_of: Mapping[int, int],
    printed: dict[int, int],
    common: str,
) -> Iterator[str]:
    entry = entries[index]
    printed[index] = number = len(printed) + 1
    yield f"{indent}[{number}] {_name(entry)}"
    yield from (f"{indent}    {line}" for line in _facts(entry, common))
    for names, target in _below(entry, entry_of):
        if isinstance(target, str):
            yield f"{indent}    {names}: {target}"
        elif target in printed:
            yield f"{indent}    {names}: see [{printed[target]}]"
        else:
            yield f"{indent}    {names}:"
            yield from _tree(target, indent + "    ", entries, entry_of, printed, common)


def _name(entry: Entry) -> str:
    head = entry.steps[0]
    if len(entry.steps) == 1:
        return head.name if head.made.stage in head.name else f"{head.name} ({head.made.stage})"
    seeds = [values_in(str(step.verdict.artefact.card)).get("seed", "") for step in entry.steps]
    what = f"seeds {', '.join(sorted(seeds))}" if all(seeds) else f"{len(seeds)} draws"
    seed = f" of seed {values_in(str(head.verdict.artefact.card)).get('seed')}"
    name = head.name.replace(seed, "").replace(seed.replace(" of ", ", "), "")
    return f"{name}, {what}" + ("" if head.made.stage in name else f" ({head.made.stage})")


def _facts(entry: Entry, common: str) -> Iterator[str]:
    head = entry.steps[0]
    settings = _settings(head.made.config)
    if settings:
        yield settings
    own = f", {_made_by(head)}" if _made_by(head) != common else ""
    seconds = " + ".join(f"{step.made.seconds:g}" for step in entry.steps[:SHOWN_DIGESTS])
    more = " + ..." if len(entry.steps) > SHOWN_DIGESTS else ""
    yield f"code {head.made.code}, {seconds}{more} s{own}"
    for name in head.outputs:
        digests = [step.made.outputs[name][:DIGITS] for step in entry.steps]
        states = sorted({step.states[name] for step in entry.steps})
        shown = f"{', '.join(digests[:SHOWN_DIGESTS])}{', ...' if len(digests) > SHOWN_DIGESTS else ''}"
        yield f"{_file(head.verdict.artefact.paths[name])} {shown} ({_state(states)})"
    yield from (
        f"model folder {key.removesuffix(MODEL).strip('.') or 'model'} {value}" for key, value in head.models.items()
    )


def _below(entry: Entry, entry_of: Mapping[int, int]) -> list[tuple[str, int | str]]:
    """Return what an entry was made from: names of inputs with the entry that made them, or with the raw file."""
    targets: dict[int | str, dict[str, None]] = {}
    for step in entry.steps:
        for name, path in sorted(step.inputs.items()):
            maker = step.makers.get(name)
            state = "" if step.states[name] == AS_READ else f" ({step.states[name]})"
            raw = f"{path} {step.made.inputs[name][:DIGITS]}{state or ' (as read)'}"
            target: int | str = raw if maker is None else entry_of[maker]
            base = name.partition("[")[0]
            targets.setdefault(target, {})[base if maker is None else base + state] = None
    return [(", ".join(names), target) for target, names in targets.items()]


def _settings(config: Mapping[str, Any]) -> str:
    """Return the settings that matter: the outer ones first, no long lists, and none that the name states."""
    leaves = {key: value for key, value in flat(config).items() if _is_telling(key, value)}
    keys = sorted(leaves, key=lambda key: (key.count("."), list(leaves).index(key)))
    shown = [
        f"{key} {value if isinstance(value, str) else json.dumps(value)}"
        for key, value in ((key, leaves[key]) for key in keys[:SHOWN_KEYS])
    ]
    more = [f"and {len(keys) - SHOWN_KEYS} more settings"] if len(keys) > SHOWN_KEYS else []
    return ", ".join([*shown, *more])


def _is_telling(key: str, value: Any) -> bool:
    if key in IN_NAMES or key.startswith("policy.") or key.endswith(MODEL) or value is None or value == {}:
        return False
    return not isinstance(value, list) or (
        len(value) <= SHOWN_LIST and not any(isinstance(v, dict | list) for v in value)
    )


def _common(steps: Sequence[Step]) -> str:
    """Return what made most of the steps: commit, versions and device."""
    told = [_made_by(step) for step in steps]
    return max(dict.fromkeys(told), key=told.count) if told else ""


def _made_by(step: Step) -> str:
    made = step.made
    dirty = " with uncommitted changes" if made.dirty else ""
    versions = ", ".join(f"{name} {version}" for name, version in made.versions.items())
    return f"commit {made.commit[:DIGITS]}{dirty}, {versions}, on {made.device}"


def _state(states: Sequence[str]) -> str:
    return "as made" if list(states) == [AS_MADE] else " or ".join(states)


def _file(path: Path) -> str:
    return path.name
