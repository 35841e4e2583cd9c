"""From untrusted values to a validated configuration: pydantic's errors, each with its key, value and remedy."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar, get_args, get_origin

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from lever_pipe.base.errors import ConfigError
from lever_pipe.base.sections import RULES_BROKEN, Fault, Section, cut, did_you_mean, dotted, shown

S = TypeVar("S", bound=Section)

MOST_VALUES = 100_000  # of a configuration; a few lines of YAML with aliases may stand for any number
DEEPEST = 32
LARGEST = 2**63 - 1
LONGEST_TEXT = 10_000


def parse_model(model: type[S], values: Any, *, source: str) -> S:
    """Return `values` as `model`, or raise one ConfigError that lists the faults."""
    section = read_section(model, values)
    if isinstance(section, list):
        raise refusal(section, source)
    return section


def refusal(lines: list[str], source: str) -> ConfigError:
    """Return the one error that holds a line for each fault."""
    count = f"{len(lines)} fault" + ("s" if len(lines) > 1 else "")
    do = "Change these keys (workflow/schemas/config.schema.json lists all):\n  " + "\n  ".join(lines)
    return ConfigError(f"{source}: expected a valid configuration", found=count, do=do)


def read_section(model: type[S], values: Any) -> S | list[str]:
    """Return the section, or a line for each fault; rules are looked at where all values are sound."""
    try:
        section = model.model_validate(values)
    except ValidationError as fault:
        return [line for error in fault.errors(include_url=False) for line in _lines(model, error)]
    return [f"{dotted(place)}: {text}" for place, text in _misread(values, section, ())] or section


def require_plain(values: Any, *, source: str) -> None:
    """Refuse values that JSON could not hold, and more of them than anyone writes.

    YAML has dates, sets, bytes, NaN and aliases: a few lines may stand for more values than memory holds, or for a
    mapping that contains itself.

    Raises:
        ConfigError: names the first foreign value, or says that there are too many or too deeply nested ones.
    """
    waiting: list[tuple[tuple[int | str, ...], Any]] = [((), values)]
    count = 0
    while waiting:
        place, value = waiting.pop()
        count += 1
        if count > MOST_VALUES or len(place) > DEEPEST:
            raise ConfigError(
                f"{source}: expected at most {MOST_VALUES} values, nested at most {DEEPEST} deep",
                found="more",
                do="Write lists and mappings out; an alias (*name) repeats all that it stands for.",
            )
        if fault := _foreign(value):
            do = "Quote it, or write another value."
            raise ConfigError(f"{source}: {cut(dotted(place))}: {fault}", found=shown(value), do=do)
        if isinstance(value, Mapping):
            waiting += [((*place, key), item) for key, item in value.items()]
        elif isinstance(value, list | tuple):
            waiting += [((*place, index), item) for index, item in enumerate(value)]


def _foreign(value: Any) -> str:
    """Return what a value must be, or nothing if it is that."""
    if isinstance(value, Mapping):
        return "" if all(isinstance(key, str) for key in value) else "must have texts as keys"
    if isinstance(value, str):
        is_text = len(value) <= LONGEST_TEXT and not re.search("[\0\ud800-\udfff]", value)
        return "" if is_text else f"must be text of at most {LONGEST_TEXT} whole characters without NUL"
    if isinstance(value, int | float):
        return "" if -LARGEST <= value <= LARGEST else "must be a finite number within 64 bits"
    return "" if value is None or isinstance(value, list | tuple) else "must be a text, number, list, mapping or null"


def _misread(values: Any, parsed: Any, path: tuple[int | str, ...]) -> Iterator[Fault]:
    """Yield truth values that pydantic took for numbers, and the reverse."""
    if isinstance(values, Mapping) and isinstance(parsed, Section | dict):
        fields = parsed if isinstance(parsed, dict) else vars(parsed)
        for key in values.keys() & fields.keys():
            yield from _misread(values[key], fields[key], (*path, key))
    elif isinstance(values, list | tuple) and isinstance(parsed, tuple):
        for index, (value, item) in enumerate(zip(values, parsed, strict=True)):
            yield from _misread(value, item, (*path, index))
    elif isinstance(values, bool) is not isinstance(parsed, bool):
        kind = "true or false" if isinstance(parsed, bool) else "a number or a text"
        yield path, f"must be {kind}, got {shown(values)}. YAML reads a bare yes, no, on or off as truth."


def section_in(annotation: Any) -> type[Section] | None:
    """Return the section that an annotation is, holds elements of, or may be absent of."""
    for candidate in (annotation, *get_args(annotation)):
        if isinstance(candidate, type) and issubclass(candidate, Section):
            return candidate
    return None


def _lines(model: type[Section], error: ErrorDetails) -> Iterator[str]:
    place, kind, context = error["loc"], error["type"], error.get("ctx", {})
    if kind == "default_factory_not_called" or (kind == "too_short" and len(error["input"]) >= context["min_length"]):
        return  # it follows from the fault of another value
    if kind == RULES_BROKEN:
        yield from (f"{dotted((*place, *below))}: {text}" for below, text in context["faults"])
    elif kind == "extra_forbidden":
        known = _keys_at(model, place[:-1])
        remedy = did_you_mean(str(place[-1]), known, f"Known keys: {', '.join(sorted(known))}.")
        yield f"{cut(dotted(place))}: unknown key. {remedy}"
    elif kind == "value_error":  # of a validator of ours, which says all
        yield f"{dotted(place)}: {error['msg'].removeprefix('Value error, ')}"
    else:
        seen = "" if kind == "missing" else f", got {shown(error['input'])}"
        names = re.findall("'([^']*)'", context["expected"]) if kind == "literal_error" else []
        near = did_you_mean(str(error["input"]), names, "")
        yield f"{cut(dotted(place))}: {error['msg'][0].lower()}{error['msg'][1:]}{seen}. {near}".rstrip()


def _keys_at(model: type[Section], place: tuple[int | str, ...]) -> list[str]:
    """Return the keys known at a place; an index or a preset's name stays within the section it leads to."""
    annotation: Any = model
    for part in place:
        container, section = get_origin(annotation), section_in(annotation)
        if section is None:
            return []
        field = None if container in (dict, tuple) else section.model_fields.get(str(part))
        annotation = field.annotation if field else section
    section = section_in(annotation)
    return list(section.model_fields) if section else []
