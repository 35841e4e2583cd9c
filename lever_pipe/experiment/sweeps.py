"""Sweeps over keys of an arm, in both studies."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from operator import not_
from typing import Annotated, Any, Literal

from pydantic import Field

from lever_pipe.base.sections import Problem, Section, rule

MOST_CELLS = 256  # of one sweep


class SweptCell(Section):
    """A combination of values."""

    arm: str
    values: dict[str, Any]
    """Validated values by key."""


def swept(sweeps: Sequence[Sweep]) -> set[str]:
    """Return the names of the arms that sweeps have added."""
    return {cell.arm for sweep in sweeps for cell in sweep.cells if cell.arm != sweep.arm}


class Sweep(Section):
    """Values for keys of an arm; each combination becomes a separate arm with the same seeds, compared with that arm.

    In study `lever` an arm is named by its preset, and the preset's keys count as the arm's.
    """

    name: str = Field(pattern="^[a-z][a-z0-9]*(_[a-z0-9]+)*$", max_length=32)
    arm: str
    """The arm with the values of all other keys."""
    over: dict[str, tuple[Any, ...]] = Field(min_length=1)
    """Values by dotted key of the arm."""
    how: Literal["grid", "list"] = "grid"
    """Every combination, or the first value of every key, then the second of every key and so on."""
    cells: tuple[SweptCell, ...] = ()
    """Filled when the configuration is read, including the arm itself; users do not set it."""

    @rule
    def _combinations_are_some(self) -> Iterator[Problem]:
        sizes = [len(values) for values in self.over.values()]
        number = math.prod(sizes) if self.how == "grid" else max(sizes)
        if not 0 < number <= MOST_CELLS:
            yield ("over",), f"must make 1 to {MOST_CELLS} combinations, got {number}. Name fewer values, or some."
        elif self.how == "list" and len(set(sizes)) > 1:
            yield ("over",), f"must have as many values of each key with how: list, got {sizes}. Add what is missing."
        swept = {cell.arm for cell in self.cells if cell.values.keys() == self.over.keys()}
        if self.cells and (len(swept) < len(self.cells) or self.arm not in swept):
            yield ("cells",), "must be left out, as they are filled, got others. Drop them."


Sweeps = Annotated[tuple[Sweep, ...], Field(exclude_if=not_)]
