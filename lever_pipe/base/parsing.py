"""From untrusted values to a validated configuration, with all faults at once."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Annotated, Any, TypeVar, cast, get_args, get_origin

from pydantic import TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from lever_pipe.base.errors import ConfigError, UnknownMemberError
from lever_pipe.base.members import available, member
from lever_pipe.base.sections import (
    RULE_FAULT,
    SHOWN,
    VALUE_FAULT,
    Fault,
    Section,
    cut,
    did_you_mean,
    dotted,
    nearest,
    shown,
)

S = TypeVar("S", bound=Section)

FAULTY = object()

MOST_VALUES = 100_000  # of a configuration; a few lines of YAML with aliases may stand for any number
DEEPEST = 32
LARGEST = 2**63 - 1
LONGEST_TEXT = 10_000

_HALF = re.compile("[\ud800-\udfff]")
MEMBER_REMEDY = "Name one of them, or add the module."

REMEDIES = {
    "missing": "Add it.",
    "greater_than_equal": "Raise it.",
    "greater_than": "Raise it.",
    "less_than_equal": "Lower it.",
    "less_than": "Lower it.",
    "too_short": "Name more of them.",
}
"""What to do about a field, by the type of pydantic's error."""


def parse_model(model: type[S], values: Any, *, source: str) -> S:
    """Return `values` as `model`, or raise one ConfigError that lists every fault."""
    section, lines = read_section(model, values)
    require_none(lines, source)
    return section


def require_member(kind: str, name: str) -> None:
    """Raise UnknownMemberError unless `lever_pipe/<kind>/<name>.py` exists."""
    if name not in available(kind):
        raise UnknownMemberError(f"a module of lever_pipe/{kind}", found=unknown_member(kind, name), do=MEMBER_REMEDY)


def load_member(kind: str, name: str) -> ModuleType:
    """Return the module `lever_pipe/KIND/NAME.py`.

    Raises:
        UnknownMemberError: there is none; the message lists those that exist.
    """
    require_member(kind, name)
    return member(kind, name)


def unknown_member(kind: str, name: str) -> str:
    """Return what was found where a module was expected, with the nearest one there is."""
    members = available(kind)
    near = nearest(name, members)
    told = f" (did you mean '{near}'?)" if near else ""
    return f"'{cut(name)}'{told}, which is none of {', '.join(members)}"


def require_none(lines: list[str], source: str) -> None:
    """Raise one ConfigError that holds all `lines`, if there are any."""
    if lines:
        count = f"{len(lines)} fault" + ("s" if len(lines) > 1 else "")
        raise ConfigError(
            f"{source}: expected a valid configuration",
            found=count,
            do="Mend these keys (workflow/schemas/config.schema.json lists all):\n  " + "\n  ".join(lines),
        )


def require_plain(values: Any, *, source: str) -> None:
    """Refuse values that JSON could not hold, and more of them than anyone writes.

    YAML has dates, sets, bytes, NaN and aliases: a few lines may stand for more values than memory holds, or for a
    mapping that contains itself.

    Raises:
        ConfigError: all foreign values, or too many or too deeply nested ones.
    """
    lines: list[str] = []
    waiting: list[tuple[tuple[int | str, ...], Any]] = [((), values)]
    count = 0
    while waiting:
        path, value = waiting.pop()
        count += 1
        if count > MOST_VALUES or len(path) > DEEPEST:
            raise ConfigError(
                f"{source}: expected at most {MOST_VALUES} values, nested at most {DEEPEST} deep",
                found="more",
                do="Write lists and mappings out; an alias (*name) repeats all that it stands for.",
            )
        fault = _foreign(value)
        if fault:
            lines.append(f"{cut(dotted(path))}: {fault}, got {shown(value)}. Quote it, or write another value.")
        elif isinstance(value, Mapping):
            waiting += [((*path, str(key)), item) for key, item in value.items()]
        elif isinstance(value, list | tuple):
            waiting += [((*path, index), item) for index, item in enumerate(value)]
    require_none(sorted(lines)[:SHOWN], source)


def _foreign(value: Any) -> str:
    """Return what a value must be, or nothing if it is that."""
    if isinstance(value, Mapping):
        return "" if all(isinstance(key, str) for key in value) else "must have texts as keys"
    if isinstance(value, str):
        is_text = len(value) <= LONGEST_TEXT and "\0" not in value and not _HALF.search(value)
        return "" if is_text else f"must be text of at most {LONGEST_TEXT} whole characters without NUL"
    if isinstance(value, int | float):
        return "" if -LARGEST <= value <= LARGEST else "must be a finite number within 64 bits"
    return "" if value is None or isinstance(value, list | tuple) else "must be a text, number, list, mapping or null"


def read_section(model: type[S], values: Any) -> tuple[S, list[str]]:
    """Return the section and a line for each fault; with faults, the section lacks what is faulty."""
    section, lines = _read_section(model, values)
    return section, [*lines, *(f"{dotted(path)}: {text}" for path, text in _misread(values, section, ()))]


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
        yield path, f"must be {kind}, got {shown(values)}. Write it so; YAML reads a bare yes, no, on or off as truth."


def _read_section(model: type[S], values: Any) -> tuple[S, list[str]]:
    try:
        return model.model_validate(values), []
    except ValidationError as fault:
        errors = fault.errors(include_url=False)
        section = _sound_part(model, values)
        own = [e for e in errors if e["type"] != RULE_FAULT and not _follows_from_another(e, errors)]
        lines = [_line(model, error) for error in own]
        return section, lines + [f"{dotted(path)}: {text}" for path, text in section.faults()]


def _sound_part(model: type[S], values: Any) -> S:
    """Return the section with the fields that are valid by themselves and without the others."""
    section = cast("S", model.model_construct())
    fields = vars(section)
    if not isinstance(values, Mapping):
        fields.clear()
        return section
    for name, field in model.model_fields.items():
        if name in values:
            fields.pop(name, None)
            value = _sound_value(field, values[name])
            if value is not FAULTY:
                fields[name] = value
    return section


def _sound_value(field: FieldInfo, value: Any) -> Any:
    """Return the value as the model reads it, the sound part of a faulty section, or FAULTY."""
    annotated: Any = Annotated[field.annotation, field]
    try:
        return TypeAdapter(annotated).validate_python(value)
    except ValidationError:
        inner, container = section_in(field.annotation), get_origin(field.annotation)
    if inner and container is dict and isinstance(value, Mapping):
        return {str(key): _sound_part(inner, item) for key, item in value.items()}
    if inner and container is tuple and isinstance(value, list | tuple):
        return tuple(_sound_part(inner, item) for item in value)
    if inner and container not in (dict, tuple):
        return _sound_part(inner, value)
    return FAULTY


def section_in(annotation: Any) -> type[Section] | None:
    """Return the section that an annotation is, holds elements of, or may be absent of."""
    for candidate in (annotation, *get_args(annotation)):
        if isinstance(candidate, type) and issubclass(candidate, Section):
            return candidate
    return None


def _line(model: type[Section], error: ErrorDetails) -> str:
    path = cut(dotted(error["loc"]))
    if error["type"] == VALUE_FAULT:
        return f"{path}: {error['msg']}"
    if error["type"] == "extra_forbidden":
        siblings = _fields_at(model, error["loc"][:-1])
        near = nearest(str(error["loc"][-1]), siblings)
        remedy = f"did you mean '{near}'?" if near else f"known keys: {', '.join(sorted(siblings))}."
        return f"{path}: unknown key; {remedy}"
    seen = "" if error["type"] == "missing" else f", got {shown(error['input'])}"
    message = error["msg"].removeprefix("Value error, ")
    return f"{path}: {message[0].lower()}{message[1:]}{seen}. {_remedy(error)}"


def _follows_from_another(error: ErrorDetails, errors: list[ErrorDetails]) -> bool:
    """Tell a tuple that only looks too short because its elements were refused."""
    place = error["loc"]
    inside = [other for other in errors if len(other["loc"]) > len(place) and other["loc"][: len(place)] == place]
    return error["type"] == "too_short" and bool(inside)


def _remedy(error: ErrorDetails) -> str:
    value, kind, context = error["input"], error["type"], error.get("ctx", {})
    if isinstance(value, str) and kind in {"float_parsing", "int_parsing"}:
        return "Write a number; YAML reads 1e5 as text, so write 100000, or 1.0e-5 for a small one."
    if isinstance(value, int | float) and value < 0 <= context.get("ge", context.get("gt", -1)):
        return "Drop the sign."
    if kind == "literal_error":
        return did_you_mean(str(value), re.findall("'([^']*)'", context["expected"]), "Write one of these.")
    return REMEDIES.get(kind, "Write what is expected, or drop the key to take its default.")


def _fields_at(model: type[Section], location: tuple[int | str, ...]) -> list[str]:
    """Return the keys known at a place; an index or a preset's name stays within the section it leads to."""
    annotation: Any = model
    for part in location:
        container, section = get_origin(annotation), section_in(annotation)
        if section is None:
            return []
        field = None if container in (dict, tuple) else section.model_fields.get(str(part))
        annotation = field.annotation if field else section
    section = section_in(annotation)
    return list(section.model_fields) if section else []
