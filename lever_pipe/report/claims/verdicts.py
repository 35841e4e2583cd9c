"""From what was measured to a verdict, by one stated rule.

| rule | supported | contradicted | else |
|---|---|---|---|
| identity | every deviation lies within the rounding of the numbers | one does not | |
| order | every comparison goes the claimed way | none does | not supported |
| noise | every comparison goes the claimed way by more than noise allows | every one goes the other way | as order |
| sameness | every difference and its noise lie within the margin | one lies beyond both | not supported |
| cause | as `noise`, but not testable where the runs differ in more than the named cause | | |

Under `noise` a comparison with a p value goes neither way unless it is separated.
Numbers that a comparison needs and that do not exist make it not testable, under every rule.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from lever_pipe.report.tables.evidence import ALPHA
from lever_pipe.report.tables.text import listing

Verdict = Literal["supported", "not supported", "contradicted", "not testable"]
RuleName = Literal["identity", "order", "noise", "sameness", "cause"]

VERDICTS: tuple[Verdict, ...] = ("supported", "not supported", "contradicted", "not testable")
NAMING_DIFFERENCES: tuple[RuleName, ...] = ("noise", "sameness", "cause")
"""Rules whose verdict a reader weighs by what else differs between the runs."""
FLOAT_ERROR = 1e-12
"""Slack of a rounding bound: sums of printed decimals are off by some last bits."""


class NotTestable(Exception):  # noqa: N818 - it is an outcome, not an error
    """A comparison lacks a number; the message is the sentence that says which."""


@dataclass(frozen=True, slots=True)
class Check:
    """One comparison.

    `value` is a deviation or difference under `identity` and `sameness`, and else what the sentence claims to be
    positive. `needed` is the rounding or the noise that it is held against; a `p` replaces the noise.
    """

    value: float
    needed: float = 0.0
    p: float | None = None
    margin: float = 0.0


@dataclass(frozen=True, slots=True)
class Measured:
    """Comparisons with the numbers that decide them; `differs` names what else differs between the runs."""

    numbers: str
    checks: tuple[Check, ...]
    differs: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.checks:
            raise ValueError("a rule needs at least one comparison")


@dataclass(frozen=True, slots=True)
class Finding:
    """A verdict with its numbers, or with the reason why there is none."""

    verdict: Verdict
    numbers: str


def judge(rule: RuleName, measure: Callable[[], Measured]) -> Finding:
    """Return the verdict of a rule on what `measure` returns; a missing number makes it not testable."""
    try:
        found = measure()
    except NotTestable as reason:
        return Finding("not testable", str(reason))
    also = found.differs and rule in NAMING_DIFFERENCES
    numbers = f"{found.numbers}. Also different: {listing(found.differs)}." if also else found.numbers
    return Finding(RULES[rule](found), numbers)


def identity(found: Measured) -> Verdict:
    """Return whether every deviation lies within its rounding."""
    within = all(abs(check.value) <= check.needed + FLOAT_ERROR for check in found.checks)
    return "supported" if within else "contradicted"


def order(found: Measured) -> Verdict:
    """Return whether the numbers as they stand go the claimed way; no inference."""
    return _together([1 if check.value > FLOAT_ERROR else -1 for check in found.checks])


def noise(found: Measured) -> Verdict:
    """Return whether the numbers go the claimed way by more than noise allows.

    With a p value neither direction counts unless it is separated; without, numbers that go the other way contradict
    the sentence that rests on them.
    """
    return _together([_side(check) for check in found.checks])


def sameness(found: Measured) -> Verdict:
    """Return whether differences are shown to lie within the margin, noise included."""
    if all(abs(check.value) + check.needed <= check.margin + FLOAT_ERROR for check in found.checks):
        return "supported"
    beyond = any(abs(check.value) - check.needed > check.margin for check in found.checks)
    return "contradicted" if beyond else "not supported"


def cause(found: Measured) -> Verdict:
    """Return the verdict of `noise` where only the named cause differs."""
    return "not testable" if found.differs else noise(found)


RULES: Mapping[RuleName, Callable[[Measured], Verdict]] = {
    "identity": identity,
    "order": order,
    "noise": noise,
    "sameness": sameness,
    "cause": cause,
}


def _together(sides: list[int]) -> Verdict:
    if all(side > 0 for side in sides):
        return "supported"
    return "contradicted" if all(side < 0 for side in sides) else "not supported"


def _side(check: Check) -> int:
    if check.p is not None:
        return 0 if check.p >= ALPHA or not check.value else 1 if check.value > 0 else -1
    return 1 if check.value > check.needed + FLOAT_ERROR else -1 if check.value < -FLOAT_ERROR else 0
