"""What a published pattern is judged by, and how its numbers are written."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lever_pipe.experiment.config import Emulate
from lever_pipe.report.tables.explanations.emulated import Emulated, Row, Run
from lever_pipe.report.tables.explanations.published_patterns import SAMPLES, SHOTS, Quoted
from lever_pipe.report.tables.text import ABSENT, number

NONE, DROPOUT = "none", "dropout"
REPRODUCED, UNSPECIFIC, MISSED, UNDEFINED = "reproduced", "also without the fault", "not reproduced", "not defined here"


@dataclass(frozen=True, slots=True)
class Pattern:
    """A published pattern and what the emulation makes of it; the criterion is judged, never the eye.

    `statement` is what was published: rows of one statement differ in their arm or criterion and count once.
    """

    id: str
    statement: str
    published: str
    arm: str
    with_fault: str
    without: str
    criterion: str
    holds: bool  # with the fault
    holds_without: bool
    remark: str = ""
    is_defined: bool = True  # else `remark` says why nothing can be judged

    @property
    def verdict(self) -> str:
        """Return the verdict in words: a pattern that also holds without the fault does not point to it."""
        if not self.is_defined:
            return UNDEFINED
        if not self.holds:
            return MISSED
        return UNSPECIFIC if self.holds_without else REPRODUCED


@dataclass(frozen=True)
class EmulatedStudy:
    """Our emulation, its settings, and the published numbers that the patterns quote."""

    emulated: Emulated
    quoted: Quoted
    emulate: Emulate
    samples: tuple[int, ...]
    shots: tuple[int, ...]

    @property
    def others(self) -> list[float]:
        """Return the betas that share one base in the published runs."""
        return [beta for beta in self.emulate.kl_betas if beta != self.emulate.other_kl_beta]

    @property
    def epochs(self) -> list[int]:
        """Return the trained epochs."""
        return list(range(1, self.emulate.grpo_epochs + 1))

    @property
    def row_samples(self) -> int:
        """Return our sample count that is nearest to that of the published rows of all betas."""
        return min(self.samples, key=lambda n: (abs(n - SAMPLES), n))

    @property
    def row_shots(self) -> tuple[int, ...]:
        """Return the shot counts that ours and the published rows share; ours where they share none."""
        return tuple(k for k in self.shots if k in SHOTS) or self.shots

    def published_rows(self, betas: Sequence[float]) -> dict[Run, Row]:
        """Return the published rows of our betas and epochs, at the shot counts of ours."""
        return self.quoted.rows(betas, self.epochs, [k for k in self.row_shots if k in SHOTS])

    def rows(self, arm: str, runs: Iterable[Run]) -> dict[Run, Row]:
        """Return the accuracies of these policies in the cells that the published rows have."""
        return {run: self.emulated.cells(arm, run, (self.row_samples,), self.row_shots) for run in runs}

    def metrics(self, arm: str, name: str, epoch: int, betas: Sequence[float] = ()) -> list[float]:
        """Return a training metric of these betas or every one, all from the same base."""
        base = self.emulate.base_rce_epoch
        return [self.emulated.metric(arm, base, (beta, epoch), name) for beta in betas or self.emulate.kl_betas]

    def untouched(self, arm: str, name: str, epoch: int) -> float:
        """Return a metric of an epoch without updates."""
        return self.emulated.untouched(arm, self.emulate.base_rce_epoch, epoch, name)


def percent(share: float) -> str:
    """Return a share as `99.6 %`; only 1 prints as 100.0 % and only 0 as 0.0 %."""
    inside = min(max(100 * share, 0.1), 99.9) if 0 < share < 1 else 100 * share
    return f"{number(inside, 1)} %"


def distinct(rows: Sequence[Row]) -> str:
    """Return how many of the rows differ: `2 distinct rows among 5`."""
    count = len(set(rows))
    return f"{count} distinct row{'s' * (count > 1)} among {len(rows)}" if rows else ABSENT


def extent(values: Sequence[float], digits: int) -> str:
    """Return the smallest and largest value, `0.82119 to 0.83802`, or an absent cell."""
    return f"{number(min(values), digits)} to {number(max(values), digits)}" if values else ABSENT
