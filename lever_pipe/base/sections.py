"""What every part of the configuration is: frozen, strict about keys, and able to say which of its rules are broken."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, model_validator
from pydantic_core import PydanticCustomError

Path = tuple[int | str, ...]
Fault = tuple[Path, str]
"""Where a value stands, and what it must be, what it is and what to do."""
Rule = Callable[[], Iterator[Fault]]

RULE_FAULT = "rule_fault"
"""Type of the pydantic error that stands for a section's broken rules."""


class Section(BaseModel):
    """A frozen section of the configuration that refuses unknown keys and broken rules."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, strict=False, allow_inf_nan=False
    )

    def rules(self) -> tuple[Rule, ...]:
        """Return the rules that tie several fields, or go beyond a field's type and bounds."""
        return ()

    def faults(self) -> list[Fault]:
        """Return what breaks the rules of this section and of the sections in it.

        A section read for its faults lacks the fields that are faulty themselves; a rule that needs one stays silent.
        """
        found: list[Fault] = []
        for path, section in _sections_in(vars(self)):
            found += [((*path, *place), text) for place, text in section.faults()]
        for rule in self.rules():
            try:
                found.extend(rule())
            except AttributeError:
                continue
        return found

    @model_validator(mode="after")
    def _keeps_its_rules(self) -> Self:
        lines = [f"{dotted(path)}: {text}" for path, text in self.faults()]
        if lines:
            raise PydanticCustomError(RULE_FAULT, "{lines}", {"lines": "\n".join(lines)})
        return self


def repeated(section: Section, *keys: str) -> Iterator[Fault]:
    """Yield the keys of lists in which a value stands twice."""
    for key in keys:
        values = list(getattr(section, key, ()))
        if len(set(values)) != len(values):
            yield (key,), f"must not repeat a value, got {values}. Drop the repeated ones."


def dotted(path: Path) -> str:
    """Return a path as it is spoken, as `arms[0].seeds`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text or "(whole file)"


def _sections_in(values: dict[str, Any]) -> Iterator[tuple[Path, Section]]:
    for name, value in values.items():
        if isinstance(value, Section):
            yield (name,), value
        elif isinstance(value, tuple | dict):
            items = value.items() if isinstance(value, dict) else enumerate(value)
            yield from (((name, key), item) for key, item in items if isinstance(item, Section))
