"""From what was measured to a verdict, by one stated rule, and the words around the numbers that decide.

| rule | supported | contradicted | else |
|---|---|---|---|
| identity | every deviation lies within the rounding of the numbers | one does not | |
| fact | every number goes the claimed way, as it stands | none does | not supported |
| order | as `fact`, and of ours every difference is separated over the seeds | every one the other way | as `fact` |
| noise | every difference goes the claimed way by more than noise allows | every one the other way | as `fact` |
| sameness | every difference and its noise lie within the margin | one lies beyond both | not supported |
| cause | as `noise`, but not testable where the runs differ in more than the named cause | | |

A difference with a p value goes neither way unless it is separated. Of our agents `order`, `noise` and `cause` ask for
a paired test over the seeds, adjusted for all claims, `sameness` for an interval over the seeds; one seed is not
testable.
Numbers that a comparison needs and that do not exist make it not testable, under every rule.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal, NamedTuple

import numpy as np
import scipy

from lever_pipe.report.cells import Cell, Look, Number, PValue, Series, keys_behind, say
from lever_pipe.report.cells import Verdict as Word
from lever_pipe.report.evidence import EvidenceRow

VerdictName = Literal["supported", "not supported", "contradicted", "not testable"]
RuleName = Literal["identity", "fact", "order", "noise", "sameness", "cause"]

LOOKS: Mapping[VerdictName, Look] = {
    "supported": "yes",
    "not supported": "open",
    "contradicted": "no",
    "not testable": "mute",
}
VERDICTS = tuple(LOOKS)
ALPHA = 0.05
FLOAT_ERROR = 1e-12
"""Slack of a bound: sums of printed decimals are off by some last bits."""


class NotTestable(Exception):  # noqa: N818 - it is an outcome, not an error
    """A comparison lacks a number; `reason` is the message `claims.why.WHY`, which says which."""

    def __init__(self, why: str, /, **args: object) -> None:
        """Hold the reason."""
        super().__init__(why)
        self.reason = say(f"claims.why.{why}", **args)


@dataclass(frozen=True, slots=True)
class Check:
    """One comparison.

    `value` is a deviation or difference under `identity` and `sameness`, and else what the sentence claims to be
    positive. `needed` is the rounding or the noise that it is held against; a `p` replaces the noise. A sentence that
    two things differ holds `either_way`.
    """

    value: float
    needed: float = 0.0
    p: float | None = None
    margin: float = 0.0
    either_way: bool = False


class Part(NamedTuple):
    """One comparison, the numbers that decide it or stand beside it, and what else differs between the runs."""

    check: Check | None = None
    numbers: Cell = None
    differs: tuple[Cell, ...] = ()


Parts = Iterator[Part]


@dataclass(frozen=True, slots=True)
class Measured:
    """Comparisons with the numbers that decide them; `differs` names what else differs between the runs."""

    numbers: Cell
    checks: tuple[Check, ...]
    differs: tuple[Cell, ...] = ()

    def __post_init__(self) -> None:
        if not self.checks:
            raise ValueError("a rule needs at least one comparison")

    @classmethod
    def of(cls, parts: Iterable[Part]) -> Measured:
        """Return the comparisons among parts with all numbers."""
        parts = list(parts)
        checks = tuple(part.check for part in parts if part.check is not None)
        return cls(
            together(*(part.numbers for part in parts)), checks, tuple(c for part in parts for c in part.differs)
        )


@dataclass(frozen=True, slots=True)
class Finding:
    """A verdict with its numbers, or with the reason why there is none."""

    verdict: VerdictName
    numbers: Cell

    @property
    def word(self) -> Word:
        """Return the verdict as a coloured word."""
        return Word(f"claims.verdict.{self.verdict.replace(' ', '_')}", LOOKS[self.verdict])


def judge(rule: RuleName, measure: Callable[[], Measured]) -> Finding:
    """Return the verdict of a rule on what `measure` returns, with what else differs where that weighs."""
    try:
        measured = measure()
    except NotTestable as lack:
        return Finding("not testable", lack.reason)
    numbers = measured.numbers
    if measured.differs and rule in ("noise", "sameness", "cause"):
        numbers = Series((numbers, say("claims.also", fields=measured.differs)), "parts")
    return Finding(verdict(rule, measured), numbers)


def verdict(rule: RuleName, measured: Measured) -> VerdictName:
    """Return what a rule says of comparisons."""
    checks = measured.checks
    if rule == "identity":
        within = all(abs(check.value) <= check.needed + FLOAT_ERROR for check in checks)
        return "supported" if within else "contradicted"
    if rule == "sameness":
        if all(abs(check.value) + check.needed <= check.margin + FLOAT_ERROR for check in checks):
            return "supported"
        beyond = any(abs(check.value) - check.needed > check.margin for check in checks)
        return "contradicted" if beyond else "not supported"
    if rule == "cause" and measured.differs:
        return "not testable"
    sides = [_side(check, is_order=rule in ("fact", "order")) for check in checks]
    if all(side > 0 for side in sides):
        return "supported"
    return "contradicted" if all(side < 0 for side in sides) else "not supported"


def _side(check: Check, *, is_order: bool) -> int:
    """Return 1 where a difference goes the claimed way, -1 where it goes the other, 0 where it is not separated."""
    value = abs(check.value) if check.either_way else check.value
    sign = int(value > FLOAT_ERROR) - int(value < -FLOAT_ERROR)
    if check.p is not None:
        return sign if check.p < ALPHA else 0
    if is_order:
        return sign or -1  # equal numbers are in no order
    return sign if abs(value) > check.needed + FLOAT_ERROR else 0


def keys_of(*numbers: Number) -> tuple[str, ...]:
    """Return the rows behind numbers, each once."""
    return tuple(dict.fromkeys(key for number in numbers for key in keys_behind(number)))


def difference(left: Number, right: Number) -> Number:
    """Return left - right, signed."""
    digits = max(left.digits, right.digits)
    return Number(left.value - right.value, digits, sign=True, of=keys_of(left, right), how="-")


def average(numbers: Sequence[Number], digits: int = 3) -> Number:
    """Return a mean."""
    value = math.fsum(number.value for number in numbers) / len(numbers)
    return Number(value, digits, of=keys_of(*numbers), how="mean")


def printed(row: EvidenceRow, digits: int) -> Number:
    """Return a published number; `digits` are its metric's decimals, because its table dropped closing zeros."""
    return Number(float(row.printed), digits, row.key, sign=row.printed.startswith("+"))


def decimals(rows: Iterable[EvidenceRow], key: Callable[[EvidenceRow], Any]) -> dict[Any, int]:
    """Return the most decimals of the printed numbers that share a key."""
    most: dict[Any, int] = {}
    for row in rows:
        exponent = Decimal(row.printed).as_tuple().exponent
        most[key(row)] = max(most.get(key(row), 0), -exponent if isinstance(exponent, int) else 0)
    return most


def less(
    name: str, values: Mapping[Any, Number], *, test: str = "", p: float | None = None, needed: float = 0.0
) -> Parts:
    """Yield by how much the first of two values is less, with their name, `claims.name.NAME`, and the test of it."""
    first, second = values.values()
    yield Part(Check(second.value - first.value, needed, p), labelled(say(f"claims.name.{name}"), listed(values)))
    if p is not None:
        yield Part(None, p_value(test, p))


def together(*cells: Cell) -> Cell:
    """Return the cells that are there, one after another."""
    return Series(tuple(cell for cell in cells if cell is not None), "parts")


def labelled(what: Cell, numbers: Cell) -> Cell:
    """Return `what: numbers`."""
    return say("claims.labelled", what=what, numbers=numbers)


def listed(values: Mapping[Any, Cell]) -> Cell:
    """Return `0.0355 (0.12) and 0.0351 (0.15)`: values with what names them, a KL_BETA or a cell."""
    return Series(tuple(say("claims.of", name=name, value=value) for name, value in values.items()))


def p_value(test: str, p: float, how: str = "") -> Cell:
    """Return a p value behind the name of its test, `claims.test.TEST`; with `how` other tables print it, too."""
    return say(f"claims.test.{test}", p=PValue(p, how=how))


def t_p(differences: Sequence[float]) -> float:
    """Return the two-sided p value of paired differences over seeds; 1 of equal pairs or of a single one.

    Source: Student 1908
    """
    if len(differences) < 2 or not any(differences):
        return 1.0
    if np.ptp(differences) == 0:
        return 0.0
    return float(scipy.stats.ttest_1samp(differences, 0.0).pvalue)
