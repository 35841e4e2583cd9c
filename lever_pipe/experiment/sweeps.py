"""Sweeps: values of an arm's keys, each combination of which becomes an arm when the configuration is read.

Everything behind the configuration sees ordinary arms; a sweep itself is shown as one table and one picture.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from pydantic import Field

from lever_pipe.base.sections import Fault, Section, rule

MOST = 256  # combinations of a sweep


class Cell(Section):
    """A combination of values."""

    arm: str
    values: dict[str, Any]
    """By key, as the arm has read them."""


class Sweep(Section):
    """Values of keys of an arm; each combination is an arm of its own, with the arm's seeds, and compared with it.

    Of study `lever` an arm is named by its preset, whose keys are the arm's too.
    """

    name: str = Field(pattern="^[a-z][a-z0-9]*(_[a-z0-9]+)*$", max_length=32)
    arm: str
    """The arm that says all other keys."""
    over: dict[str, tuple[Any, ...]] = Field(min_length=1)
    """Values by dotted key of the arm."""
    how: Literal["grid", "list"] = "grid"
    """Every combination, or the first value of every key, then the second of every key and so on."""
    cells: tuple[Cell, ...] = ()
    """Filled when the configuration is read, with the arm itself among them; nobody writes them."""

    @rule
    def _combinations_are_some(self) -> Iterator[Fault]:
        sizes = [len(values) for values in self.over.values()]
        number = math.prod(sizes) if self.how == "grid" else max(sizes)
        if not 0 < number <= MOST:
            yield ("over",), f"must make 1 to {MOST} combinations, got {number}. Name fewer values, or some."
        elif self.how == "list" and len(set(sizes)) > 1:
            yield ("over",), f"must have as many values of each key with how: list, got {sizes}. Add what is missing."
        if any(cell.values.keys() != self.over.keys() for cell in self.cells):
            yield ("cells",), "must have the keys of over, got others. Leave cells out; they are filled."


def swept(sweeps: Sequence[Sweep]) -> set[str]:
    """Return the names of the arms that sweeps have made."""
    return {cell.arm for sweep in sweeps for cell in sweep.cells if cell.arm != sweep.arm}
