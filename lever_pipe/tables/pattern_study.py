"""What a published pattern is judged by, and how its numbers are written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lever_pipe.config import Emulate
from lever_pipe.tables.emulated import Emulated, Row, Run
from lever_pipe.tables.published_patterns import Quoted
from lever_pipe.tables.text import number

NONE, DROPOUT = "none", "dropout"


@dataclass(frozen=True, slots=True)
class Pattern:
    """A published pattern and what the emulation makes of it; the criterion is judged, never the eye."""

    id: str
    statement: str
    published: str
    arm: str
    with_fault: str
    without: str
    criterion: str
    reproduced: bool
    remark: str = ""

    @property
    def verdict(self) -> str:
        """Return the verdict in words."""
        return "reproduced" if self.reproduced else "not reproduced"


@dataclass(frozen=True)
class Study:
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

    def rows(self, arm: str, betas: Sequence[float], epochs: Sequence[int]) -> dict[Run, Row]:
        """Return the accuracies of these policies of an arm."""
        runs = [(beta, epoch) for beta in betas for epoch in epochs]
        return {run: self.emulated.cells(arm, run, self.samples, self.shots) for run in runs}

    def metrics(self, arm: str, name: str, epoch: int) -> list[float]:
        """Return a training metric of every beta, all from the same base."""
        base = self.emulate.base_rce_epoch
        return [self.emulated.metric(arm, base, (beta, epoch), name) for beta in self.emulate.kl_betas]

    def untouched(self, arm: str, name: str, epoch: int) -> float:
        """Return a metric of an epoch without updates."""
        return self.emulated.untouched(arm, self.emulate.base_rce_epoch, epoch, name)


def percent(share: float) -> str:
    """Return a share as `99.6 %`; only 1 prints as 100.0 % and only 0 as 0.0 %."""
    inside = min(max(100 * share, 0.1), 99.9) if 0 < share < 1 else 100 * share
    return f"{number(inside, 1)} %"


def distinct(rows: Sequence[Row]) -> str:
    """Return how many of the rows differ: `2 of 5 rows`."""
    return f"{len(set(rows))} of {len(rows)} rows" if rows else ""
