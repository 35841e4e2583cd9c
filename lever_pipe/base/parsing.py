"""Parse untrusted values into a validated configuration: pydantic's errors, each with its key, value and remedy."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar, get_args, get_origin

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from lever_pipe.base.errors import ConfigError, shortened
from lever_pipe.base.sections import RULES_BROKEN, Problem, Section, did_you_mean, displayed, dotted

S = TypeVar("S", bound=Section)
KINDS = {
    **dict.fromkeys(("tuple_type", "list_type", "set_type", "frozen_set_type", "iterable_type"), "a list"),
    **dict.fromkeys(("dict_type", "mapping_type", "model_type", "model_attributes_type"), "a mapping, KEY: VALUE"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "true or false"),
    **dict.fromkeys(("int_type", "int_parsing", "int_parsing_size", "int_from_float"), "a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "a number"),
    "string_type": "a text",
    "none_required": "null",
    "invalid_key": "a text as key",
}
"""Type of a pydantic error -> required kind of value."""
YAML_WORDS = {"None": "null", "True": "true", "False": "false"}
DISPLAY_LIMIT = 3
"""Maximum number of locations listed for a key that occurs in several sections."""
RENAMED: Mapping[str, Sequence[str]] = {
    "member": ("engine", "plugin"),
    "marks": ("extra_objectives",),
    "same_everywhere": ("portable",),
}
"""Former names of keys and values -> their current names."""


def parse_model(model: type[S], values: Any, *, source: str) -> S:
    """Return `values` as `model`, or raise one ConfigError that lists all problems."""
    section = read_section(model, values)
    if isinstance(section, list):
        raise refusal(section, source)
    return section


def refusal(lines: list[str], source: str) -> ConfigError:
    """Return one error with a line for each problem."""
    count = f"{len(lines)} problem" + ("s" if len(lines) > 1 else "")
    do = "Change these keys (workflow/schemas/config.schema.json lists all):\n  " + "\n  ".join(lines)
    return ConfigError(f"{source}: expected a valid configuration", found=count, do=do)


def read_section(model: type[S], values: Any) -> S | list[str]:
    """Return the section, or a line for each problem; rules are checked only if all values are valid."""
    try:
        section = model.model_validate(values)
    except ValidationError as exception:
        return [line for error in exception.errors(include_url=False) for line in _lines(model, error)]
    return [f"{dotted(location)}: {text}" for location, text in _misread(values, section, ())] or section


def _misread(values: Any, parsed: Any, path: tuple[int | str, ...]) -> Iterator[Problem]:
    """Yield the booleans that pydantic accepted as numbers, and the reverse."""
    if isinstance(values, Mapping) and isinstance(parsed, Section | dict):
        fields = parsed if isinstance(parsed, dict) else vars(parsed)
        for key in values.keys() & fields.keys():
            yield from _misread(values[key], fields[key], (*path, key))
    elif isinstance(values, list | tuple) and isinstance(parsed, tuple):
        for index, (value, item) in enumerate(zip(values, parsed, strict=True)):
            yield from _misread(value, item, (*path, index))
    elif isinstance(values, bool) is not isinstance(parsed, bool):
        kind = "true or false" if isinstance(parsed, bool) else "a number or a text"
        yield path, f"must be {kind}, got {displayed(values)}. YAML reads a bare yes, no, on or off as truth."


def keys_in(section: type[Section], within: str = "") -> Iterator[str]:
    """Yield the paths of all keys, as `data.n_eval`, `arms[].seeds` and `presets.NAME.grpo.learning_rate`."""
    for name, field in section.model_fields.items():
        yield f"{within}{name}"
        kind = {tuple: "[]", dict: ".NAME"}.get(get_origin(field.annotation) or Section, "")
        for below in (field.annotation, *get_args(field.annotation)):
            if isinstance(below, type) and issubclass(below, Section):
                yield from keys_in(below, f"{within}{name}{kind}.")


def _lines(model: type[Section], error: ErrorDetails) -> Iterator[str]:
    location, kind, context = error["loc"], error["type"], error.get("ctx", {})
    if kind == "default_factory_not_called" or (kind == "too_short" and len(error["input"]) >= context["min_length"]):
        return  # a consequence of another value's problem
    if kind == RULES_BROKEN:
        yield from (f"{dotted((*location, *below))}: {text}" for below, text in context["problems"])
    elif kind == "extra_forbidden":
        keys = _keys_at(model, location[:-1])
        remedy = _remedy(str(location[-1]), keys, f"Known keys: {', '.join(sorted(keys))}.")
        if len(location) == 1 and (deeper := [key for key in keys_in(model) if key.endswith(f".{location[0]}")]):
            sections = ", ".join(sorted(deeper, key=lambda key: key.count("."))[:DISPLAY_LIMIT])
            remedy = f"It belongs to a section: {sections}."
        yield f"{shortened(dotted(location))}: unknown key. {remedy}"
    elif kind == "value_error":  # from a validator of this package, with a complete message
        yield f"{dotted(location)}: {error['msg'].removeprefix('Value error, ')}"
    else:
        seen = "" if kind == "missing" else f", got {displayed(error['input'])}"
        names = re.findall("'([^']*)'", context["expected"]) if kind == "literal_error" else []
        near = _remedy(str(error["input"]), names, "")
        yield f"{shortened(dotted(location))}: {_demand(error)}{seen}. {near}".rstrip()


def _demand(error: ErrorDetails) -> str:
    """Return the requirement on a value, in the words of YAML instead of Python's."""
    kind, context = error["type"], error.get("ctx", {})
    if kind in KINDS:
        return f"must be {KINDS[kind]}"
    if kind in ("too_short", "too_long"):
        bound = "least" if kind == "too_short" else "most"
        number = context["min_length" if kind == "too_short" else "max_length"]
        return f"must have at {bound} {number} {'entry' if number == 1 else 'entries'}"
    if kind == "literal_error":
        return re.sub(r"\b(None|True|False)\b", lambda word: YAML_WORDS[word[0]], f"must be {context['expected']}")
    text = re.sub(r"^(Input should|Value should|String should)", "must", error["msg"])
    return text[0].lower() + text[1:]


def _keys_at(model: type[Section], location: tuple[int | str, ...]) -> list[str]:
    """Return the keys at a location, where an index or a preset's name matches any."""
    known = (key.replace("[]", ".[]").split(".") for key in keys_in(model))
    candidates = (key for key in known if len(key) == len(location) + 1)
    return [key[-1] for key in candidates if all(map(lambda name, at: name in (at, "[]", "NAME"), key, location))]


def _remedy(name: str, names: Sequence[str], otherwise: str) -> str:
    """Return the remedy for an unknown key or value: its new name, the nearest one, or `otherwise`."""
    new = next((new for new in RENAMED.get(name, ()) if new in names), "")
    return f"It is called '{new}' now." if new else did_you_mean(name, names, otherwise)
