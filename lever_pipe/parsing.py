"""From untrusted values to a validated configuration, with all faults at once."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast, get_args, get_origin

from pydantic import TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from lever_pipe.errors import ConfigError, UnknownMemberError
from lever_pipe.sections import RULE_FAULT, Section, dotted

S = TypeVar("S", bound=Section)

FAULTY = object()

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


def available(kind: str) -> list[str]:
    """Return the members of an extension point: the modules of its folder, without importing them."""
    folder = Path(__file__).parent / kind
    names = [p.stem for p in folder.glob("*.py") if not p.stem.startswith("_") and p.stem != "protocol"]
    return sorted(names)


def require_member(kind: str, name: str) -> None:
    """Raise UnknownMemberError unless `lever_pipe/<kind>/<name>.py` exists."""
    if name not in available(kind):
        raise UnknownMemberError(f"a module of lever_pipe/{kind}", found=unknown_member(kind, name), do=MEMBER_REMEDY)


def nearest(name: str, names: Iterable[str]) -> str | None:
    """Return the most similar of `names`, or None when nothing is close."""
    matches = difflib.get_close_matches(name, list(names), n=1, cutoff=0.5)
    return matches[0] if matches else None


def unknown_member(kind: str, name: str) -> str:
    """Return what was found where a module was expected, with the nearest one there is."""
    members = available(kind)
    near = nearest(name, members)
    return f"'{name}'" + (f" (did you mean '{near}'?)" if near else "") + f", which is none of {', '.join(members)}"


def require_none(lines: list[str], source: str) -> None:
    """Raise one ConfigError that holds all `lines`, if there are any."""
    if lines:
        count = f"{len(lines)} fault" + ("s" if len(lines) > 1 else "")
        raise ConfigError(
            f"{source}: expected a valid configuration",
            found=count,
            do="Mend these keys (workflow/schemas/config.schema.json lists all):\n  " + "\n  ".join(lines),
        )


def read_section(model: type[S], values: Any) -> tuple[S, list[str]]:
    """Return the section and a line for each fault; with faults, the section lacks what is faulty."""
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
        inner, container = _section_in(field.annotation), get_origin(field.annotation)
    if inner and container is dict and isinstance(value, Mapping):
        return {str(key): _sound_part(inner, item) for key, item in value.items()}
    if inner and container is tuple and isinstance(value, list | tuple):
        return tuple(_sound_part(inner, item) for item in value)
    if inner and container not in (dict, tuple):
        return _sound_part(inner, value)
    return FAULTY


def _section_in(annotation: Any) -> type[Section] | None:
    """Return the section that an annotation is, holds elements of, or may be absent of."""
    for candidate in (annotation, *get_args(annotation)):
        if isinstance(candidate, type) and issubclass(candidate, Section):
            return candidate
    return None


def _line(model: type[Section], error: ErrorDetails) -> str:
    path = dotted(error["loc"])
    if error["type"] == "extra_forbidden":
        siblings = _fields_at(model, error["loc"][:-1])
        near = nearest(str(error["loc"][-1]), siblings)
        remedy = f"did you mean '{near}'?" if near else f"known keys: {', '.join(sorted(siblings))}."
        return f"{path}: unknown key; {remedy}"
    seen = "" if error["type"] == "missing" else f", got {error['input']!r}"
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
        near = nearest(str(value), re.findall("'([^']*)'", context["expected"]))
        return f"Did you mean '{near}'?" if near else "Write one of these."
    return REMEDIES.get(kind, "Write what is expected, or drop the key to take its default.")


def _fields_at(model: type[Section], location: tuple[int | str, ...]) -> list[str]:
    """Return the keys known at a place; an index or a preset's name stays within the section it leads to."""
    annotation: Any = model
    for part in location:
        container, section = get_origin(annotation), _section_in(annotation)
        if section is None:
            return []
        field = None if container in (dict, tuple) else section.model_fields.get(str(part))
        annotation = field.annotation if field else section
    section = _section_in(annotation)
    return list(section.model_fields) if section else []
