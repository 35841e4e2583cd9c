"""The published numbers that show a pattern, and their lineage."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from lever_pipe.report.tables.explanations.emulated import Row, Run
from lever_pipe.report.tables.published import ACCURACY_015, BETAS, CURVES, Key, Lineage, Published
from lever_pipe.report.tables.text import ABSENT, number

FINAL = "KL_BETA_012_vs_015_最终对比报告.md"
SAMPLES = 200
"""Sample count of the published rows of all betas."""
SHOTS = (1, 2, 3, 4)
CURVE_BETAS = (0.12, 0.15)


class Quoted:
    """Looks published numbers up by pattern and remembers where they come from."""

    def __init__(self, published: Published) -> None:
        self._published = published
        self._lineage = Lineage()

    def afresh(self) -> Quoted:
        """Return the same numbers without a memory: the lineage of another table."""
        return Quoted(self._published)

    def notes(self) -> tuple[str, ...]:
        """Return the lineage of every number that was asked for."""
        return self._lineage.notes()

    def rows(self, betas: Sequence[float], epochs: Sequence[int], shots: Sequence[int]) -> dict[Run, Row]:
        """Return the published rows of these betas and epochs, where there are any."""
        runs = [(beta, epoch) for beta in betas for epoch in epochs]
        rows = {run: self._row(*run, (SAMPLES,), shots, BETAS) for run in runs}
        return {run: row for run, row in rows.items() if row}

    def differing_cells(self, beta: float, samples: Sequence[int], shots: Sequence[Sequence[int]]) -> str:
        """Return in how many of these cells epochs 1 and 2 differ, for each group of shot counts."""
        counts = []
        for some in shots:
            one, other = (self._row(beta, epoch, samples, some, ACCURACY_015) for epoch in (1, 2))
            if not (one and other):
                return ABSENT
            counts.append(f"{sum(a != b for a, b in zip(one, other, strict=True))} of {len(one)}")
        return " and ".join(counts)

    def identical_choices(self) -> float | None:
        """Return the share of queries for which two published checkpoints chose alike."""
        return self._value(Key("grpo_balanced", None, "9 vs 42", "identical_selection_rate", 50, 1), FINAL)

    def metric(self, name: str, epoch: int, beta: float) -> float | None:
        """Return a training metric, or None where it was not published."""
        return self._value(Key("grpo_frozen", beta, str(epoch), name), BETAS)

    def accuracies(self, beta: float, epoch: int, samples: int, shots: Sequence[int]) -> list[float | None]:
        """Return accuracies in percent by shots, None where one was not published."""
        keys = [Key("grpo_frozen", beta, str(epoch), "vqa_acc_pct", samples, k) for k in shots]
        return [self._value(key, ACCURACY_015, BETAS) for key in keys]

    def metrics(self, name: str, epoch: int, betas: Sequence[float]) -> list[float]:
        """Return a training metric of one epoch for the betas that have it."""
        found = [self.metric(name, epoch, beta) for beta in betas]
        return [value for value in found if value is not None]

    def course(self, name: str, epochs: Sequence[int], betas: Sequence[float], *, digits: int = 5) -> str:
        """Return a training metric epoch by epoch, mean over the betas that have all of these epochs."""
        runs = [[v for epoch in epochs for v in self.metrics(name, epoch, [beta])] for beta in betas]
        whole = [run for run in runs if len(run) == len(epochs)]
        return ", ".join(number(fmean(values), digits) for values in zip(*whole, strict=True))

    def ratio_of(self, name: str, other: str, epoch: int, betas: Sequence[float]) -> str:
        """Return the mean over betas of one metric over another."""
        above, below = (self.metrics(metric, epoch, betas) for metric in (name, other))
        return number(fmean(above) / fmean(below), 3) if above and below else ABSENT

    def first_ratios(self) -> list[float]:
        """Return the mean ratios of epoch 1 in the long runs of `CURVE_BETAS`: means of a trained epoch."""
        found = [self._value(Key("grpo_balanced", beta, "1", "mean_ratio"), CURVES) for beta in CURVE_BETAS]
        return [value for value in found if value is not None]

    def _row(self, beta: float, epoch: int, samples: Sequence[int], shots: Sequence[int], file: str) -> Row:
        """Return accuracies in percent, or an empty row where one is absent."""
        keys = [Key("grpo_frozen", beta, str(epoch), "vqa_acc_pct", n, k) for n in samples for k in shots]
        values = [self._value(key, file) for key in keys]
        return tuple(value for value in values if value is not None) if None not in values else ()

    def _value(self, key: Key, *files: str) -> float | None:
        found = self._published.find(key, files)
        self._lineage.add(key, found)
        return found.value if found else None
