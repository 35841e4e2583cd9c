"""Base class of all parts of the configuration: frozen, strict about keys, with rules that cover several fields."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from string import Formatter
from typing import Annotated, Any, ClassVar, Self, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from lever_pipe.base.errors import shortened

Path = tuple[int | str, ...]
Problem = tuple[Path, str]
"""Path of a value, and a text: the requirement, the value found and the remedy."""
Rule = Callable[[Any], Iterable[Problem]]
R = TypeVar("R", bound=Rule)
T = TypeVar("T")
RULES_BROKEN = "rules_broken"
"""Type of the pydantic error that contains the problems of a section's rules."""


def rule(method: R) -> R:
    """Mark a validator that checks several fields; it yields problems that types and bounds cannot express."""
    method.is_rule = True  # type: ignore[attr-defined]
    return method


def at_most(location: Path, value: float, bound: str, most: float, do: str = "") -> list[Problem]:
    """Return the problem of a value above the value `most` of the key `bound`."""
    problem = f"must be at most {bound}={most}, got {value}. {do or f'Lower it or raise {bound}.'}"
    return [(location, problem)] if value > most else []


def dividing(location: Path, value: int, whole: str, number: int) -> list[Problem]:
    """Return the problem of a value that does not divide the value `number` of the key `whole`."""
    return [(location, f"must divide {whole}={number}, got {value}. Change one of them.")] if number % value else []


def one_of(location: Path, value: object, choices: Collection[object], do: str, name: str = "") -> list[Problem]:
    """Return the problem of a value that is none of the choices; these are the values of the key `name`, if given."""
    names = [choice for choice in choices if isinstance(choice, str)] if isinstance(value, str) else []
    remedy = did_you_mean(str(value), names, do)
    problem = f"must be one of {f'{name}=' if name else ''}{list(choices)}, got {value!r}. {remedy}"
    return [] if value in choices else [(location, problem)]


def some_of(location: Path, values: Iterable[object], choices: Collection[object], do: str, name: str) -> list[Problem]:
    """Return the problems of the values that are none of the choices, as `one_of`."""
    return [problem for i, value in enumerate(values) for problem in one_of((*location, i), value, choices, do, name)]


def repeated(location: Path, key: str, names: Sequence[str]) -> list[Problem]:
    """Return the problems of list entries that repeat an earlier entry's value of a key."""
    do = f"Give each its own {key}."
    problem = f"must differ from that of earlier {location[-1]}"
    return [
        ((*location, i, key), f"{problem}, got {name!r}. {do}") for i, name in enumerate(names) if name in names[:i]
    ]


def did_you_mean(name: str, names: Iterable[str], otherwise: str) -> str:
    """Return the remedy for a name that is none of `names`: the nearest of them, or `otherwise` if none is similar."""
    near = get_close_matches(name, list(names), n=1, cutoff=0.5)
    return f"Did you mean '{near[0]}'?" if near else otherwise


def has_fields(template: str, **values: object) -> bool:
    """Return whether a template has exactly these fields, and can be filled with their values."""
    try:
        template.format(**values)
    except (LookupError, ValueError, AttributeError, TypeError):
        return False
    return {field for _, field, _, _ in Formatter().parse(template) if field is not None} == values.keys()


@cache
def _rules_of(section: type[BaseModel]) -> list[Rule]:
    # Classes before their subclasses, so that general problems precede special ones.
    of_classes = [vars(parent).values() for parent in reversed(section.__mro__)]
    return [value for values in of_classes for value in values if getattr(value, "is_rule", False)]


def _distinct(values: tuple[T, ...]) -> tuple[T, ...]:
    if len(set(values)) != len(values):
        raise ValueError(f"must not repeat a value, got {list(values)}. Drop the repeated ones.")
    return values


def _rising(values: tuple[T, ...]) -> tuple[T, ...]:
    if list(values) != (sound := sorted(set(values))):  # type: ignore[type-var]
        raise ValueError(f"must rise without repeats, got {list(values)}. Write {sound}.")
    return values


def _path(text: str) -> str:
    """Refuse a path that Snakemake reads as a wildcard, a command as an option, or a log as several lines."""
    if re.search(r"^-|[{}\0-\x1f]", text):
        kind = "must be a path without braces, control characters or a dash before it"
        raise ValueError(f"{kind}, got {displayed(text)}. Rename it, or link to it.")
    return text


Distinct = Annotated[tuple[T, ...], AfterValidator(_distinct)]
"""Values without repeats."""
Rising = Annotated[tuple[T, ...], AfterValidator(_rising)]
"""Values in rising order without repeats."""
FilePath = Annotated[str, AfterValidator(_path)]
"""Path of a file or folder."""
Seed = Annotated[int, Field(ge=0, le=2**31 - 1)]
Share = Annotated[float, Field(ge=0, le=1)]
KlBeta = Annotated[float, Field(ge=0, le=1000, description="Betas are penalties; drop the sign.")]
Epoch = Annotated[int, Field(ge=1, le=400, description="Epochs count from 1.")]
ArmName = Annotated[str, Field(pattern="^[a-z][a-z0-9_]*$", max_length=64)]
Names = tuple[str, ...]
Counts = tuple[int, ...]


class Section(BaseModel):
    """A frozen section of the configuration that refuses unknown keys and broken rules."""

    PLUGINS: ClassVar[tuple[str, ...]] = ()
    """Modules that a stage's configuration selects by name, as `lever.samplers.{pools.sampler}`; part of its code."""

    # Attribute docstrings become descriptions in the JSON schema.
    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, strict=False, allow_inf_nan=False
    )

    @classmethod
    def of(cls, section: Section, **values: Any) -> Self:
        """Return this section with its fields from another section, except those in `values`."""
        shared = {name: getattr(section, name) for name in cls.model_fields if hasattr(section, name)}
        return cls(**shared | values)

    def at_defaults(self, *unread: str) -> Self:
        """Set settings that a stage does not read to their defaults, so that editing them does not rerun the stage."""
        plain = type(self)()
        return self.model_copy(update={name: getattr(plain, name) for name in unread})

    def problems(self) -> list[Problem]:
        """Return the problems of this section by its own rules; nested sections check theirs."""
        return [problem for check in _rules_of(type(self)) for problem in check(self)]

    @model_validator(mode="after")
    def _keeps_its_rules(self) -> Self:
        if problems := self.problems():
            text = "; ".join(f"{dotted(location)}: {problem}" for location, problem in problems)
            raise PydanticCustomError(RULES_BROKEN, "{text}", {"text": text, "problems": problems})
        return self


def displayed(value: Any) -> str:
    """Return a value for display in a message."""
    return shortened(_spelt(value))


def _spelt(value: Any) -> str:
    """Return a value in YAML's spelling, not Python's."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key}: {_spelt(item)}' for key, item in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_spelt, value))}]"
    return str(value).lower() if isinstance(value, bool) else "null" if value is None else repr(value)


def dotted(path: Path) -> str:
    """Return a path in the form of messages, as `arms[0].seeds`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text or "(whole file)"
