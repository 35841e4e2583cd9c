"""Expand sweeps to arms: the keys of an arm, and the cells of their values."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache
from itertools import product
from typing import Any

from pydantic_core import to_jsonable_python

from lever_pipe.base.parsing import keys_in, read_section
from lever_pipe.base.provenance import canonical_json
from lever_pipe.base.sections import Problem, Section, did_you_mean, displayed, one_of, repeated
from lever_pipe.experiment.sweeps import Sweep, SweptCell

LONGEST = 64  # characters of an arm's name
NEVER = ("name", "preset", "seeds", "on_policy")
"""Keys of an arm that select its runs and do not affect their training."""


@cache
def keys_of(model: type[Section]) -> tuple[str, ...]:
    """Return the dotted keys of a section and its subsections, without keys below lists and mappings."""
    return tuple(key for key in keys_in(model) if "[]" not in key and ".NAME" not in key)


def problems_of(sweeps: Sequence[Sweep], arms: Collection[str], *models: type[Section]) -> Iterator[Problem]:
    """Yield the problems of sweeps over arms that consist of `models`."""
    keys = [key for model in models for key in keys_of(model) if key not in NEVER]
    yield from repeated(("sweeps",), "name", [sweep.name for sweep in sweeps])
    for index, sweep in enumerate(sweeps):
        location = ("sweeps", index)
        for name in (sweep.arm, *(cell.arm for cell in sweep.cells)):
            yield from one_of((*location, "arm"), name, arms, "Name one of them or add the arm.")
        for key in (key for key in sweep.over if key not in keys):
            remedy = did_you_mean(key, keys, f"Keys: {', '.join(keys)}.")
            yield (*location, "over"), f"must name keys of an arm, got {displayed(key)}. {remedy}"


def expanded(
    location: str,
    sweeps: Sequence[Sweep],
    arms: Mapping[str, Sequence[Section]],
    filled: Callable[[Any], Section] = lambda section: section,
) -> tuple[tuple[Sweep, ...], dict[str, Sequence[Any]], list[str]]:
    """Return the sweeps with their cells, the sections of each new arm by name, and a line for each problem.

    Args:
        location: path of the sweeps in the configuration.
        sweeps: sweeps of known arms and keys; a sweep with cells is already expanded.
        arms: the sections of each arm by name; a key belongs to the first section that has it.
        filled: fills in omitted values of a section, as in the sections of `arms`.
    """
    filled_sweeps, new_arms, lines = list[Sweep](), dict[str, Sequence[Any]](), list[str]()
    for index, sweep in enumerate(sweeps):
        base, columns, cells = arms[sweep.arm], sweep.over.values(), dict[str, dict[str, Any]]()
        combined = product(*columns) if sweep.how == "grid" else zip(*columns, strict=True)
        for combination in () if sweep.cells else combined:
            settings = dict(zip(sweep.over, combination, strict=True))
            parsed = [read_section(type(part), _laid_over(part, base, settings)) for part in base]
            problems = [line for parsed_part in parsed if isinstance(parsed_part, list) for line in parsed_part]
            sections = [] if problems else [filled(section) for section in parsed]
            values = {} if problems else _values(sections, sweep.over)
            # A combination equal to the arm itself is that arm, so that it is not trained twice.
            name = sweep.arm if sections == list(base) else _name(sweep.name, values, cells)
            if name in cells:
                problems.append("must differ from earlier combinations, got the same values. Drop it.")
            text = ", ".join(f"{key} {displayed(value)}" for key, value in settings.items())
            lines += [f"{location}[{index}].over: ({text}) {problem}" for problem in problems]
            if not problems:
                cells[name] = values
                new_arms |= {name: sections} if name != sweep.arm else {}
        if not sweep.cells:
            cells = ({} if sweep.arm in cells else {sweep.arm: _values(base, sweep.over)}) | cells
            swept = tuple(SweptCell(arm=name, values=values) for name, values in cells.items())
            sweep = sweep.model_copy(update={"cells": swept})
        filled_sweeps.append(sweep)
    return tuple(filled_sweeps), new_arms, lines


def _owner(sections: Sequence[Section], key: str) -> Section:
    return next(section for section in sections if key in keys_of(type(section)))


def _laid_over(section: Section, base: Sequence[Section], settings: Mapping[str, Any]) -> dict[str, Any]:
    values = section.model_dump()
    for key, value in settings.items():
        if _owner(base, key) is section:
            *path, last = key.split(".")
            branch = values
            for name in path:
                branch[name] = branch[name] if isinstance(branch.get(name), dict) else {}
                branch = branch[name]
            branch[last] = value
    return values


def _values(sections: Sequence[Section], keys: Collection[str]) -> dict[str, Any]:
    values = {}
    for key in keys:
        value: Any = _owner(sections, key)
        for name in key.split("."):
            value = getattr(value, name, None)  # a section that is absent has no keys
        values[key] = to_jsonable_python(value)  # each value by itself: a dump of the section omits some defaults
    return values


def _name(sweep: str, values: Mapping[str, Any], taken: Mapping[str, Mapping[str, Any]]) -> str:
    """Return an arm's name, made from its values only, so that adding values to a sweep renames no arm.

    A digest of the values replaces a name that is too long or belongs to a cell with other values.
    """
    words = [f"{key.split('.')[-1]}_{_word(value)}" for key, value in values.items()]
    name = re.sub("[^a-z0-9]", "_", "__".join([sweep, *words]).lower())
    is_own = len(name) <= LONGEST and taken.get(name, values) == values
    return name if is_own else f"{sweep}__{_word(dict(values))}"


def _word(value: Any) -> str:
    text = value if isinstance(value, str) else canonical_json(value)
    return hashlib.sha256(text.encode()).hexdigest()[:12] if isinstance(value, dict) else text.removesuffix(".0")
