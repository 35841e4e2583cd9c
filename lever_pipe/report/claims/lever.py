"""What documents 000 to 002 say of losses and accuracies, asked of the published numbers and of ours.

Every method of a side raises `NotTestable` where its number does not exist.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from statistics import fmean
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from lever_pipe.base.policy_names import PolicyName, group_of
from lever_pipe.report import comparability
from lever_pipe.report.cells import Cell, Number, say
from lever_pipe.report.claims.verdicts import (
    Check,
    NotTestable,
    Part,
    Parts,
    average,
    decimals,
    difference,
    labelled,
    less,
    listed,
    p_value,
    printed,
)
from lever_pipe.report.evidence import BY_SHOTS, MEAN, OF_ONE_RUN, Evidence, EvidenceRow, described
from lever_pipe.report.inference.families import near
from lever_pipe.report.lineage import UNKNOWN, Lineages, published_key
from lever_pipe.report.reference import FILES
from lever_pipe.statistics.curve_tests import f_test
from lever_pipe.statistics.summary import standard_error_percent

Betas = Sequence[float]
Statistic = Literal["mean", "first", "last", "minimum"]
"""Of a metric over the epochs of a training-curve run."""
Shots = int | Literal["mean"]
SHOTS = (1, 2, 3, 4)
FEWEST_EPOCHS = 5
"""Epochs below which a run is no training curve."""
NORMAL_95 = 1.959964
IDENTITY = frozenset(("kl_beta", "epoch", "base_rce_epoch"))
"""Fields that name a run, or repeat its base checkpoint."""


@dataclass(frozen=True)
class PublishedLever:
    """The published numbers as one document quotes them."""

    evidence: Evidence
    lineages: Lineages
    document: str

    def near(self, samples: int) -> int:
        """Return the document's sample count itself."""
        return samples

    def at(self, beta: float, metric: str, place: Statistic) -> Number:
        """Return a printed statistic of a training-curve run."""
        places: dict[str, dict[str, Any]] = {"mean": {"at": "mean(1-50)"}, "first": {"epoch": 1}, "last": {"epoch": 50}}
        return self._printed("grpo_balanced", beta, metric, **places.get(place, {"at": place}))

    def every_epoch(self, beta: float, metric: str) -> NDArray[np.float64]:
        """Raise: no epoch in between is printed."""
        raise NotTestable("no_epochs_between", what=say(f"claims.metric.{metric}"), beta=beta)

    def accuracy(self, beta: float, epoch: int, samples: int, shots: int) -> Number:
        """Return a printed accuracy.

        A VQA accuracy on OK-VQA is 0, 0.6 or 1, so up to 200 questions a mean has one decimal.
        """
        found = self._printed("grpo", beta, "accuracy", epoch=epoch, samples=samples, shots=shots)
        return replace(found, digits=1) if samples <= 200 else found

    def separation(self, left: float, right: float, epoch: int, samples: int, shots: Shots) -> Part:
        """Return a difference of accuracies against 1.96 standard errors of a difference.

        Both errors are binomial and taken as independent, because nothing paired is published; a mean over shots
        counts each question once.
        """
        counts = SHOTS if shots == MEAN else (int(shots),)
        pair = [average([self.accuracy(b, epoch, samples, k) for k in counts]) for b in (left, right)]
        gap = replace(difference(*pair), digits=2)
        error = math.hypot(*(standard_error_percent(each.value / 100, samples) for each in pair))
        needed = NORMAL_95 * error
        noise = listed({say("claims.name.noise"): Number(needed, 1, of=gap.of, how="1.96 errors")})
        return Part(Check(gap.value, needed), _minus(left, right, gap, shots, noise))

    def lineage(self, beta: float, epoch: int) -> Mapping[str, str]:
        """Return what is known of a published run, as this document quotes it."""
        keys = [published_key(beta, epoch, document=document) for document in (self.document, "")]
        found = next((self.lineages[key] for key in keys if key in self.lineages), None)
        if found is None:
            raise NotTestable("no_lineage", beta=beta, epoch=epoch)
        return {field: value for field, value in found.items() if value != UNKNOWN}

    def _printed(self, stage: str, beta: float, metric: str, *, epoch: int = 0, **place: Any) -> Number:
        subject = f"published/{stage}/beta~{beta:g}" + (f"/epoch~{epoch}" if epoch else "")
        for file in FILES[self.document]:
            row = self.evidence.find(subject, metric, quoted=file, **place)
            if row is not None:
                # Single numbers lost their closing zeros, so a metric has the most decimals that its file shows.
                return printed(row, self._decimals[file, metric])
        raise NotTestable("not_published", what=say(f"claims.metric.{metric}"))

    @cached_property
    def _decimals(self) -> dict[tuple[str, str], int]:
        rows = (row for row in self.evidence if row.study == "lever" and row.quoted and row.printed)
        return decimals(rows, lambda row: (row.quoted, row.metric))


@dataclass(frozen=True)
class OurLever:
    """Our numbers of the main preset for the claims of one document: means over seeds, or those of one seed."""

    evidence: Evidence
    lineages: Lineages
    document: str
    preset: str
    base: int | None
    samples: Sequence[int]
    seed: int | None = None

    @cached_property
    def runs(self) -> dict[tuple[float, int], int]:
        """Return the last trained epoch by beta and seed."""
        last: dict[tuple[float, int], int] = {}
        for subject in self.evidence.subjects("loss", study="lever"):
            kind, preset, base, beta, seed, epoch = described(subject)
            if (kind, preset, base) == ("grpo", self.preset, str(self.base)) and seed:
                at = (float(beta), int(seed))
                last[at] = max(last.get(at, 0), int(epoch))
        return last

    def near(self, samples: int) -> int:
        """Return the evaluated sample count nearest to `samples`, of two the smaller."""
        if not self.samples:
            raise NotTestable("no_epoch")
        return near(self.samples, samples)

    def at(self, beta: float, metric: str, place: Statistic) -> Number:
        """Return a statistic of our training-curve run."""
        rows = self._curve(beta, metric)
        values = [row.value for row in rows]
        if place == "mean":
            digits = _logged(fmean(values), rows[0]).digits
            return Number(fmean(values), digits, of=(rows[0].key, rows[-1].key), how="mean over epochs")
        i = {"first": 0, "last": -1, "minimum": int(np.argmin(values))}[place]
        return _logged(values[i], rows[i])

    def every_epoch(self, beta: float, metric: str) -> NDArray[np.float64]:
        """Return [E] the curve itself."""
        return np.array([row.value for row in self._curve(beta, metric)])

    def accuracy(self, beta: float, epoch: int, samples: int, shots: int) -> Number:
        """Return an accuracy in percent."""
        row = self.evidence.find(self._name(beta, epoch), "accuracy", subset="prefix", samples=samples, shots=shots)
        if row is None:
            known = {of.shots for of in self.evidence.where(metric="accuracy", study="lever", subset="prefix")}
            if str(shots) not in known:
                raise NotTestable("no_shots", shots=shots)
            raise NotTestable("not_configured", beta=beta, epoch=epoch)
        return Number(row.value, 2, row.key)

    def separation(self, left: float, right: float, epoch: int, samples: int, shots: Shots) -> Part:
        """Return a paired difference of accuracies with its Holm p."""
        row, turned = self._compared(left, right, epoch, samples, shots)
        value, low, high = (-row.value, -row.high, -row.low) if turned else (row.value, row.low, row.high)
        gap = Number(value, 2, sign=True, of=(row.key,), how="turned")
        gap = gap if turned else Number(value, 2, row.key, sign=True)
        numbers = _minus(left, right, gap, shots, p_value("holm", row.p_holm))
        return Part(Check(value, max(high - value, value - low), row.p_holm), numbers)

    def lineage(self, beta: float, epoch: int) -> Mapping[str, str]:
        """Return the fields of our run cards."""
        found = self.lineages.get(self._group(beta, epoch))
        if found is None:
            raise NotTestable("not_configured", beta=beta, epoch=epoch)
        return found

    def _curve(self, beta: float, metric: str) -> list[EvidenceRow]:
        """Return a metric by epoch of the longest runs; runs of other lengths span other epochs."""
        length = max(self.runs.values(), default=0)
        seeds = [seed for (of, seed), last in self.runs.items() if (of, last) == (beta, length)]
        kept = [seed for seed in seeds if self.seed in (None, seed)]
        if not kept or length < FEWEST_EPOCHS:
            raise NotTestable("no_curve", beta=beta)
        names = ([self._name(beta, epoch, seed) for seed in kept] for epoch in range(1, length + 1))
        by_epoch = ([self.evidence.get(name, metric) for name in of] for of in names)
        return [rows[0]._replace(value=fmean(row.value for row in rows)) for rows in by_epoch]

    def _compared(self, left: float, right: float, epoch: int, samples: int, shots: Shots) -> tuple[EvidenceRow, bool]:
        pair = [self._group(beta, epoch) for beta in (left, right)]
        place = {"study": "lever", "subset": "prefix", "samples": samples, "shots": shots}
        for document in (self.document, "001", "002"):
            for one, other in (pair, pair[::-1]):
                for row in self.evidence.where(one, "accuracy", against=other, **place):
                    family = row.family.removesuffix(OF_ONE_RUN).removesuffix(BY_SHOTS)
                    if family == f"document-{document}/epoch~{epoch}":
                        return row, one != pair[0]
        _ = [self.lineage(beta, epoch) for beta in (left, right)]
        raise NotTestable("no_comparison", betas=[left, right])

    def _name(self, beta: float, epoch: int, seed: int | None = None) -> str:
        own = self.seed if seed is None else seed
        return str(PolicyName(kind="grpo", preset=self.preset, base=self.base, beta=beta, seed=own, epoch=epoch))

    def _group(self, beta: float, epoch: int) -> str:
        return group_of(self._name(beta, epoch))


LeverSide = PublishedLever | OurLever


def curve_falls(side: LeverSide, *, metric: str, betas: Betas) -> Parts:
    """Tell whether a metric ends below its first epoch."""
    ranges = {}
    for beta in betas:
        first, last = side.at(beta, metric, "first"), side.at(beta, metric, "last")
        ranges[beta] = say("claims.from_value_to", first=first, last=last)
        yield Part(Check(first.value - last.value))
    yield Part(None, listed(ranges))


def metric_rises_over(side: LeverSide, *, metric: str, places: Sequence[Statistic], betas: Betas) -> Parts:
    """Tell whether a metric rises in the claimed order of betas, at each place."""
    for place in places:
        row = {beta: side.at(beta, metric, place) for beta in betas}
        for before, after in pairwise(row.values()):
            yield Part(Check(after.value - before.value))
        yield Part(None, labelled(say(f"claims.statistic.{place}"), listed(row)))


def curve_changes_less(side: LeverSide, *, metric: str, steadier: float, than: float) -> Parts:
    """Compare the spread of the changes from epoch to epoch (F test)."""
    changes = {beta: np.diff(side.every_epoch(beta, metric)) for beta in (steadier, than)}
    spread = {
        beta: Number(float(of.std(ddof=1)), 6, of=side.at(beta, metric, "mean").of, how="sd of changes")
        for beta, of in changes.items()
    }
    return less("sd_of_changes", spread, test="f", p=f_test(*changes.values()))


def rows_are_identical(side: LeverSide, *, epoch: int, samples: int, betas: Betas) -> Parts:
    """Tell whether betas have the same accuracy at every shot count."""
    n = side.near(samples)
    rows = {beta: [side.accuracy(beta, epoch, n, k) for k in SHOTS] for beta in betas}
    for column in zip(*rows.values(), strict=True):
        yield Part(Check(float(np.ptp([each.value for each in column]))))
    by_shot = {beta: say("claims.four", a=a, b=b, c=c, d=d) for beta, (a, b, c, d) in rows.items()}
    yield Part(None, labelled(say("claims.shots"), listed(by_shot)))


def is_more_accurate(side: LeverSide, *, better: float, than: Betas, epoch: int, samples: int, shots: Shots) -> Parts:
    """Compare accuracies; `cause` is judged by what else the runs differ in."""
    for other in than:
        yield side.separation(better, other, epoch, side.near(samples), shots)
    lineages = [side.lineage(beta, epoch) for beta in (better, *than)]
    fields = dict.fromkeys(field for known in lineages for field in known if field not in IDENTITY)
    differing = (name for name in fields if len({known[name] for known in lineages if name in known}) > 1)
    yield Part(differs=tuple(map(comparability.named, differing)))


def _logged(value: float, row: EvidenceRow) -> Number:
    """Return a number of ours with six significant digits."""
    size = math.floor(math.log10(abs(value))) if value else 0
    return Number(value, max(0, min(12, 5 - size)), row.key)


def _minus(left: float, right: float, gap: Number, shots: Shots, beside: Cell) -> Cell:
    where = say("claims.name.average") if shots == MEAN else say("claims.at_shots", shots=int(shots))
    found = labelled(where, listed({say("claims.minus", left=left, right=right): gap}))
    return say("claims.two", first=found, second=beside)
