"""The claims of the documents (`resources/claims.yaml`), their measures, and the rules for their verdicts.

A claim states that a measure of one run's curve, or its accuracy, exceeds the same measure of another run.

| kind | holds | does not hold |
|---|---|---|
| order | every difference is above 0 (ours: and separated) | every difference is at most 0 (ours: below, separated) |
| difference | every difference exceeds the noise | every difference exceeds it in the other direction |
| equal | every difference plus its noise is within `margin`; without one, none is separated | one exceeds it |

Otherwise the runs are not separated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, TypeAdapter, ValidationError, field_validator

from lever_pipe.base.errors import RecordError
from lever_pipe.base.sections import Section
from lever_pipe.base.storage import read_yaml
from lever_pipe.report.cells import (
    Cell,
    Estimate,
)
from lever_pipe.report.evidence import ALPHA
from lever_pipe.statistics.curves import drawdowns, first_reaching

Values = NDArray[np.float64]
Run: TypeAlias = "float | str"
"""A KL_BETA of documents 000 to 002, or `nokl` or `kl` of documents 003 and 004."""
VerdictName = Literal["holds", "does not hold", "not separated", "not tested"]
VERDICTS: Sequence[VerdictName] = ("holds", "does not hold", "not separated", "not tested")
FEWEST = 5
"""Minimum number of epochs or evaluations of a curve."""
ROUNDING = 1e-12
"""Tolerance for sums of printed decimals, which have binary rounding errors."""


def _steps_to(steps: Values, values: Values, thresholds: Sequence[float]) -> float:
    """Return the mean first step that reaches each threshold; an unreached one counts as the next evaluation."""
    reached = [first_reaching(steps, values, threshold) for threshold in thresholds]
    return fmean(2 * steps[-1] - steps[-2] if step is None else step for step in reached)


def _slowing(steps: Values, values: Values, _: Sequence[float]) -> float:
    """Return the growth per step up to the middle value minus the growth per step after it."""
    i = len(steps) // 2
    return float((values[i] - values[0]) / (steps[i] - steps[0]) - (values[-1] - values[i]) / (steps[-1] - steps[i]))


def _sharp_fall(steps: Values, values: Values, where: Sequence[float]) -> float:
    """Return the fall from the previous evaluation to the first step of `where`; without steps, the largest fall."""
    falls = dict(zip(steps[1:], -np.diff(values), strict=True))
    return float(falls.get(where[0], math.nan) if where else max(falls.values()))


class Measure(NamedTuple):
    """A measure of a curve: one or several numbers from its steps, its values, and the claim's `where`."""

    text: str
    compute: Callable[[Values, Values, Sequence[float]], Any]
    least: int = FEWEST
    """Minimum number of steps."""


MEASURES: Mapping[str, Measure] = {
    "each": Measure("", lambda _, values, __: values, 1),
    "mean": Measure("mean", lambda _, values, __: values.mean()),
    "first": Measure("first", lambda _, values, __: values[0], 2),
    "last": Measure("last", lambda _, values, __: values[-1], 2),
    "minimum": Measure("minimum", lambda _, values, __: values.min()),
    "fall": Measure("first minus last", lambda _, values, __: values[0] - values[-1], 2),
    "rises": Measure("change", lambda _, values, __: np.diff(values), 2),
    "slowing": Measure("growth a step, early minus late", _slowing, 3),
    "best": Measure("best", lambda _, values, __: values.max()),
    "best_step": Measure("step of the best", lambda steps, values, _: steps[values.argmax()]),
    "sd": Measure("sd over steps", lambda _, values, __: values.std(ddof=1)),
    "sd_of_changes": Measure("sd of changes", lambda _, values, __: np.diff(values).std(ddof=1)),
    "range": Measure("range", lambda _, values, __: np.ptp(values)),
    "drawdown": Measure("largest fall", lambda _, values, __: drawdowns(values[None])[0]),
    "steps_to": Measure("mean first step that reaches the rewards", _steps_to),
    "sharp_fall": Measure("fall", _sharp_fall),
}
AT_STEPS = ("each", "mean", "range")
"""Measures of the steps that a claim names; other measures use all steps."""


class Claim(Section):
    """One testable sentence of a document."""

    id: str = Field(pattern=r"^00[0-4]-[a-z0-9]+(-[a-z0-9]+)*$")
    """Starts with the document's number."""
    section: str
    """Section of the document."""
    quote: str
    """The claim in our own words."""
    kind: Literal["order", "difference", "equal"]
    left: tuple[Run, ...]
    """Runs that are claimed to exceed `right`."""
    right: tuple[Run, ...] = ()
    """Empty if the measure is about single runs."""
    metric: str
    measure: tuple[Annotated[str, Field(pattern=f"^({'|'.join(MEASURES)})$")], ...] = ("each",)
    where: tuple[float, ...] = ()
    """Steps; for accuracies, shot counts; for `steps_to`, values to reach. Empty: all."""
    margin: float | None = None
    about: tuple[str, ...] | None = None
    """Of two agents: the settings that the claim is about. If set, verdicts name the other settings that differ."""
    cause: bool = False
    """Whether the claim names the cause of the difference."""
    decisive: bool = False
    """Whether the main page shows it."""

    @field_validator("left", "right", "measure", mode="before")
    @classmethod
    def _several(cls, value: Any) -> Any:
        # In YAML, a single value needs no list.
        return value if isinstance(value, list | tuple) else (value,)

    @property
    def document(self) -> str:
        """Return the number of its document."""
        return self.id[:3]

    @property
    def study(self) -> str:
        """Return the claim's study."""
        return "intention" if self.document in ("003", "004") else "lever"

    @property
    def runs(self) -> tuple[Run, ...]:
        """Return all runs of the claim, left before right."""
        return (*self.left, *self.right)


@dataclass(frozen=True, slots=True)
class Finding:
    """A verdict with its numbers, or the reason why there is none, and the deciding p value."""

    verdict: VerdictName
    numbers: Cell
    p: Estimate | None = None


@dataclass(frozen=True, slots=True)
class EvaluatedClaim:
    """A claim with the verdicts on the published numbers and on ours."""

    claim: Claim
    published: Finding
    ours: Finding


@dataclass(frozen=True, slots=True)
class Check:
    """A difference, positive in the claim's favour, with its noise, or with a p value instead."""

    value: float
    noise: float = 0.0
    p: float | None = None


def read_claims(path: Path) -> tuple[Claim, ...]:
    """Return the claims of a YAML file.

    Raises:
        RecordError: a missing file, invalid YAML, or an invalid entry.
    """
    try:
        return TypeAdapter(tuple[Claim, ...]).validate_python(read_yaml(path, "a file of claims"))
    except ValidationError as error:
        raise RecordError(f"{path}: expected claims", found=str(error), do="Correct these entries.") from None


def verdict(claim: Claim, checks: Sequence[Check]) -> VerdictName:
    """Return the verdict of a claim on its differences."""
    sides = [_side(check, claim.kind) for check in checks]
    if claim.kind != "equal":
        return "holds" if min(sides) > 0 else "does not hold" if max(sides) < 0 else "not separated"
    if claim.margin is None:
        return "does not hold" if any(sides) else "holds"
    if all(abs(check.value) + check.noise <= claim.margin + ROUNDING for check in checks):
        return "holds"
    beyond = any(abs(check.value) - check.noise > claim.margin for check in checks)
    return "does not hold" if beyond else "not separated"


def _side(check: Check, kind: str) -> int:
    """Return 1 for a difference in the claimed direction, -1 for the opposite direction, 0 if it is not separated."""
    sign = int(check.value > ROUNDING) - int(check.value < -ROUNDING)
    if check.p is not None:
        return sign if check.p < ALPHA else 0
    if kind == "order":
        return sign or -1  # equal numbers contradict an order
    return sign if abs(check.value) > check.noise + ROUNDING else 0
