"""From what was measured to a verdict, by one stated rule.

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

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from lever_pipe.report.cells import Cell, Look, Message, Series, say
from lever_pipe.report.cells import Verdict as Word

VerdictName = Literal["supported", "not supported", "contradicted", "not testable"]
RuleName = Literal["identity", "fact", "order", "noise", "sameness", "cause"]

LOOKS: Mapping[VerdictName, Look] = {
    "supported": "yes",
    "not supported": "open",
    "contradicted": "no",
    "not testable": "mute",
}
VERDICTS = tuple(LOOKS)
NAMING_DIFFERENCES: tuple[RuleName, ...] = ("noise", "sameness", "cause")
"""Rules whose verdict a reader weighs by what else differs between the runs."""
ALPHA = 0.05
FLOAT_ERROR = 1e-12
"""Slack of a rounding bound: sums of printed decimals are off by some last bits."""


class NotTestable(Exception):  # noqa: N818 - it is an outcome, not an error
    """A comparison lacks a number; `reason` is the message that says which."""

    def __init__(self, reason: Message) -> None:
        """Hold the reason."""
        super().__init__(reason.id)
        self.reason = reason


def lacking(why: str, /, **args: object) -> NotTestable:
    """Return that a claim cannot be judged, with the message `claims.why.WHY`."""
    return NotTestable(say(f"claims.why.{why}", **args))


def require_print(side: Any) -> None:
    """Raise `NotTestable` unless a side is the printed text itself."""
    if not side.is_print:
        raise lacking("printed_only")


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
    def of(cls, found: Iterable[Part]) -> Measured:
        """Return the comparisons among parts with all numbers."""
        parts = list(found)
        numbers = Series(tuple(part.numbers for part in parts if part.numbers is not None), "parts")
        checks = tuple(part.check for part in parts if part.check is not None)
        return cls(numbers, checks, tuple(cell for part in parts for cell in part.differs))


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
    """Return the verdict of a rule on what `measure` returns, with what else differs where that weighs.

    A missing number makes it not testable.
    """
    try:
        found = measure()
    except NotTestable as lack:
        return Finding("not testable", lack.reason)
    numbers = found.numbers
    if found.differs and rule in NAMING_DIFFERENCES:
        numbers = Series((numbers, say("claims.also", fields=found.differs)), "parts")
    return Finding(RULES[rule](found), numbers)


def identity(found: Measured) -> VerdictName:
    """Return whether every deviation lies within its rounding."""
    within = all(abs(check.value) <= check.needed + FLOAT_ERROR for check in found.checks)
    return "supported" if within else "contradicted"


def order(found: Measured) -> VerdictName:
    """Return whether the numbers go the claimed way: as they stand, or separated where they have a p value."""
    return _together([_by_p(check) if check.p is not None else _sign(check.value) or -1 for check in found.checks])


def noise(found: Measured) -> VerdictName:
    """Return whether the numbers go the claimed way, or the other, by more than noise allows."""
    return _together([_by_p(check) if check.p is not None else _beyond(check) for check in found.checks])


def sameness(found: Measured) -> VerdictName:
    """Return whether differences are shown to lie within the margin, noise included."""
    if all(abs(check.value) + check.needed <= check.margin + FLOAT_ERROR for check in found.checks):
        return "supported"
    beyond = any(abs(check.value) - check.needed > check.margin for check in found.checks)
    return "contradicted" if beyond else "not supported"


def cause(found: Measured) -> VerdictName:
    """Return the verdict of `noise` where only the named cause differs."""
    return "not testable" if found.differs else noise(found)


RULES: Mapping[RuleName, Callable[[Measured], VerdictName]] = {
    "identity": identity,
    "fact": order,
    "order": order,
    "noise": noise,
    "sameness": sameness,
    "cause": cause,
}


def _together(sides: list[int]) -> VerdictName:
    if all(side > 0 for side in sides):
        return "supported"
    return "contradicted" if all(side < 0 for side in sides) else "not supported"


def _sign(value: float) -> int:
    return int(value > FLOAT_ERROR) - int(value < -FLOAT_ERROR)


def _by_p(check: Check) -> int:
    value = abs(check.value) if check.either_way else check.value
    return _sign(value) if check.p is not None and check.p < ALPHA else 0


def _beyond(check: Check) -> int:
    return _sign(check.value) if abs(check.value) > check.needed + FLOAT_ERROR else 0
