"""From sweeps to arms: which keys an arm has, and the cells that their values make."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple, get_origin

from lever_pipe.base.parsing import read_section, section_in
from lever_pipe.base.provenance import canonical_json
from lever_pipe.base.sections import Fault, Section, did_you_mean, one_of, shown
from lever_pipe.experiment.sweeps import Cell, Sweep

LONGEST = 64  # characters of an arm's name
NEVER = ("name", "preset", "seeds")
"""Keys of an arm that say which runs it is, not how they train."""


class Made(NamedTuple):
    """A cell and the sections that its arm consists of."""

    cell: Cell
    sections: Sequence[Any]
    """Of the kinds of the base."""


@cache
def keys_of(model: type[Section]) -> tuple[str, ...]:
    """Return the dotted keys of a section and of the sections in it."""
    found = []
    for name, field in model.model_fields.items():
        inner = None if get_origin(field.annotation) in (dict, tuple) else section_in(field.annotation)
        found += [name, *(f"{name}.{key}" for key in (keys_of(inner) if inner else ()))]
    return tuple(found)


def faults_of(sweeps: Sequence[Sweep], arms: Collection[str], *models: type[Section]) -> Iterator[Fault]:
    """Yield what is wrong with sweeps of arms that consist of `models`."""
    known = [key for model in models for key in keys_of(model) if key.split(".")[0] not in NEVER]
    for index, sweep in enumerate(sweeps):
        place, names = ("sweeps", index), [of.name for of in sweeps[:index]]
        if sweep.name in names:
            yield (*place, "name"), f"must differ from the names of earlier sweeps, got {sweep.name!r}. Rename it."
        yield from one_of((*place, "arm"), sweep.arm, arms, "Name one of them or add the arm.")
        for key in sweep.over:
            if key not in known:
                remedy = did_you_mean(key, known, f"Keys: {', '.join(known)}.")
                yield (*place, "over"), f"must name keys of an arm, got {shown(key)}. {remedy}"
        for cell in sweep.cells:
            yield from one_of((*place, "cells"), cell.arm, arms, "Leave cells out; they are filled.")


def cells_of(sweep: Sweep, base: Sequence[Section]) -> tuple[list[Made], list[str]]:
    """Return the arm itself and each combination that differs from it, and a line for each fault of a value.

    Args:
        sweep: whose keys are known.
        base: the sections that the arm consists of; a key is of the first one that has it.
    """
    found, lines = [Made(Cell(arm=sweep.arm, values=_values(base, sweep.over)), base)], list[str]()
    for settings in sweep.settings:
        read = [read_section(type(of), _laid_over(of, base, settings)) for of in base]
        sections = [section for section, _ in read]
        said = ", ".join(f"{key} {shown(value)}" for key, value in settings.items())
        faults = [f"({said}) {line}" for _, of in read for line in of]
        values = {} if faults else _values(sections, sweep.over)
        if values in [made.cell.values for made in found[1:]]:
            faults.append(f"({said}) must differ from earlier combinations, got the same values. Drop it.")
        lines += faults
        if not faults and sections != list(base):
            found.append(Made(Cell(arm=_name(sweep.name, values), values=values), sections))
    return found, lines


def _owner(sections: Sequence[Section], key: str) -> Section:
    return next(of for of in sections if key in keys_of(type(of)))


def _laid_over(section: Section, base: Sequence[Section], settings: dict[str, Any]) -> dict[str, Any]:
    values = section.model_dump()
    for key, value in settings.items():
        if _owner(base, key) is section:
            *path, last = key.split(".")
            at = values
            for name in path:
                at[name] = at[name] if isinstance(at.get(name), dict) else {}
                at = at[name]
            at[last] = value
    return values


def _values(sections: Sequence[Section], keys: Collection[str]) -> dict[str, Any]:
    found = {}
    for key in keys:
        value: Any = _owner(sections, key).model_dump(mode="json")
        for name in key.split("."):
            value = value.get(name) if isinstance(value, dict) else None
        found[key] = value
    return found


def _name(sweep: str, values: dict[str, Any]) -> str:
    """Return the name of an arm: of its own values alone, so that further values of a sweep rename nothing."""
    ends = [key.split(".")[-1] for key in values]
    short = {key: end if ends.count(end) == 1 else key.replace(".", "_") for key, end in zip(values, ends, strict=True)}
    words = [f"{short[key]}_{_word(value)}" for key, value in values.items()]
    name = "__".join([sweep, *words])
    return name if len(name) <= LONGEST else f"{sweep}__{_digest(values)}"


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(float(value)).removesuffix(".0").replace("-", "m").replace("+", "").replace(".", "p")
    return value if isinstance(value, str) and re.fullmatch("[a-z][a-z0-9_]{0,23}", value) else _digest(value)


def _digest(value: Any) -> str:
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()[:12]
