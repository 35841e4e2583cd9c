"""What the claims of documents 000 to 002 are asked of: the published numbers and ours, which answer alike.

Every method raises `NotTestable` where its number does not exist.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from lever_pipe.base.policy_names import PolicyName, group_of
from lever_pipe.report.cells import Cell, say
from lever_pipe.report.claims.quantities import (
    Quantity,
    average,
    decimals_of,
    labelled,
    listed,
    measured,
    named,
    p_value,
    printed,
)
from lever_pipe.report.claims.verdicts import Check, Part, lacking
from lever_pipe.report.evidence import BY_SHOTS, MEAN, OF_ONE_RUN, Evidence, EvidenceRow, described
from lever_pipe.report.inference.families import near
from lever_pipe.report.lineage import UNKNOWN, Lineages, published_key
from lever_pipe.report.reference import COMPARED, FILES, FINAL
from lever_pipe.statistics.summary import standard_error_percent

Statistic = Literal["mean", "first", "last", "minimum"]
"""Of a metric over the epochs of a training-curve run."""
Place = int | Statistic
"""A single epoch, or a statistic of a training-curve run."""
Row = dict[float, Quantity]
"""A number by KL_BETA."""
Shots = int | Literal["mean"]
SHOTS = (1, 2, 3, 4)
FEWEST_EPOCHS = 5
"""Epochs below which a run is no training curve."""
LONG_EPOCHS = {0.12: 9, 0.15: 42}
"""The evaluated epoch of each published training-curve run."""
NORMAL_95 = 1.959964


@dataclass(frozen=True)
class PublishedLever:
    """The published numbers as one document quotes them."""

    evidence: Evidence
    lineages: Lineages
    document: str
    word: str = "printed"
    is_print: bool = True

    def near(self, samples: int) -> int:
        """Return the document's sample count itself."""
        return samples

    def at(self, beta: float, metric: str, place: Place) -> Quantity:
        """Return a printed training metric: of one epoch, or a statistic of a training-curve run."""
        if isinstance(place, int):
            return self._printed("grpo", beta, metric, epoch=place)
        places: dict[str, dict[str, Any]] = {"mean": {"at": "mean(1-50)"}, "first": {"epoch": 1}, "last": {"epoch": 50}}
        return self._printed("grpo_balanced", beta, metric, **places.get(place, {"at": place}))

    def minimum_epoch(self, beta: float, metric: str) -> Quantity:
        """Return the printed epoch of a minimum."""
        found = self._printed("grpo_balanced", beta, metric, at="minimum epoch")
        return replace(found, digits=0, rounding=0.0)

    def every_epoch(self, beta: float, metric: str) -> NDArray[np.float64]:
        """Raise: no epoch in between is printed."""
        raise lacking("no_epochs_between", what=_named(metric), beta=beta)

    def together(self, betas: Sequence[float], places: Sequence[Place], metric: str) -> dict[Place, Row]:
        """Return a training metric by place and beta; single epochs from the first file that has them all.

        Two files print different runs of one beta, so their rows do not compare.
        """
        if not all(isinstance(place, int) for place in places):
            return {place: {beta: self.at(beta, metric, place) for beta in betas} for place in places}
        for file in FILES[self.document]:
            rows = {(e, b): self._row("grpo", b, metric, (file,), epoch=int(e)) for e in places for b in betas}
            known = {at: self._quantity(row) for at, row in rows.items() if row is not None}
            if len(known) == len(rows):
                return {place: {beta: known[place, beta] for beta in betas} for place in places}
        raise lacking("not_together", what=_named(metric), betas=list(betas), epochs=list(places))

    def by_seed(self, beta: float, epoch: int, metric: str) -> dict[int, Quantity]:
        """Raise: every published run is single."""
        raise lacking("single_run", what=_named(metric), beta=beta, epoch=epoch)

    def accuracy(self, beta: float, epoch: int, samples: int, shots: int) -> Quantity:
        """Return a printed accuracy.

        A VQA accuracy on OK-VQA is 0, 0.6 or 1, so up to 200 questions a mean has one decimal and no rounding.
        """
        found = self._printed("grpo", beta, "accuracy", epoch=epoch, samples=samples, shots=shots)
        return replace(found, digits=1, rounding=0.0) if samples <= 200 else found

    def long_accuracy(self, beta: float, samples: int, shots: int) -> Quantity:
        """Return the printed accuracy after a training-curve run."""
        at = {"epoch": self.long_epoch(beta), "samples": samples, "shots": shots}
        return self._printed("grpo_balanced", beta, "accuracy", (COMPARED,), **at)

    def long_epoch(self, beta: float) -> int:
        """Return the evaluated epoch of a training-curve run."""
        if beta not in LONG_EPOCHS:
            raise lacking("no_curve", beta=beta)
        return LONG_EPOCHS[beta]

    def separation(self, left: float, right: float, epoch: int, samples: int, shots: Shots) -> Part:
        """Return a difference of accuracies against 1.96 standard errors of a difference, and its p value.

        Both errors are binomial and taken as independent, because nothing paired is published; a mean over shots
        counts each question once. The p value is that of the normal law, so that it is below 0.05 beyond the noise.
        """
        counts = SHOTS if shots == MEAN else (int(shots),)
        pair = [average([self.accuracy(b, epoch, samples, k) for k in counts]) for b in (left, right)]
        gap = (pair[0] - pair[1]).shown(2)
        error = math.hypot(*(standard_error_percent(each.value / 100, samples) for each in pair))
        needed = NORMAL_95 * error
        p = math.erfc(abs(gap.value) / error / math.sqrt(2)) if error else float(not gap.value)
        noise = named(noise=Quantity(needed, 1, of=gap.of, how="1.96 errors"))
        return Part(Check(gap.value, needed, p), _minus(left, right, gap, shots, noise))

    def same_selections(self, left: float, right: float) -> tuple[Quantity, Cell]:
        """Return the published share of identical first demonstrations, which is known of 0.12 and 0.15."""
        self._require_compared(left, right)
        at = {"at": "9 vs 42", "samples": 50, "shots": 1}
        rate = self._printed("grpo_balanced", None, "identical_selection_rate", (FINAL,), **at)
        epochs = [self.long_epoch(beta) for beta in (left, right)]
        return replace(rate, value=100 * rate.value, digits=0, rounding=0.0), say("claims.selections", epochs=epochs)

    def differing_parameters(self, beta: float) -> tuple[Quantity, Cell]:
        """Return the published share of weights that differ between 0.12 and 0.15."""
        self._require_compared(beta)
        row = self._row("grpo_balanced", None, "mean_abs_weight_diff", (FINAL,), at="9 vs 42")
        share = re.search(r"([\d.]+)% of weights differ", "" if row is None else row.how)
        if row is None or share is None:
            raise lacking("no_weights")
        return replace(printed(share[1], of=row), how="share in the note"), say("claims.between")

    def update_size(self, beta: float, epoch: int) -> Quantity:
        """Raise: weights are not published."""
        raise lacking("no_update", beta=beta, epoch=epoch)

    def gradient_share(self, beta: float, epoch: int, n_groups: int) -> Quantity:
        """Return the whole number of groups that lies nearest to the printed spread, as a share."""
        spread = self.at(beta, "std_advantage", epoch)
        nearest = round(spread.value * n_groups) / n_groups
        return replace(spread, value=nearest, digits=4, how=f"nearest share of {n_groups}")

    def lineage(self, beta: float, epoch: int) -> Mapping[str, str]:
        """Return what is known of a published run, as this document quotes it."""
        stage = "grpo_balanced" if self.document == "000" else "grpo"
        keys = [published_key(beta, epoch, stage=stage, document=document) for document in (self.document, "")]
        found = next((self.lineages[key] for key in keys if key in self.lineages), None)
        if found is None:
            raise lacking("no_lineage", beta=beta, epoch=epoch)
        return {field: value for field, value in found.items() if value != UNKNOWN}

    def _require_compared(self, *betas: float) -> None:
        if not {*betas} <= LONG_EPOCHS.keys():
            raise lacking("no_agreement", betas=list(betas))

    def _row(
        self, stage: str, beta: float | None, metric: str, files: Sequence[str] = (), *, epoch: int = 0, **parts: object
    ) -> EvidenceRow | None:
        names = [f"published/{stage}", "" if beta is None else f"beta~{beta:g}", f"epoch~{epoch}" if epoch else ""]
        subject = "/".join(filter(None, names))
        rows = (self.evidence.find(subject, metric, quoted=file, **parts) for file in files or FILES[self.document])
        return next((row for row in rows if row is not None), None)

    def _printed(
        self, stage: str, beta: float | None, metric: str, files: Sequence[str] = (), **place: object
    ) -> Quantity:
        row = self._row(stage, beta, metric, files, **place)  # type: ignore[arg-type]
        if row is None:
            raise lacking("not_published", what=_named(metric), beta=beta)
        return self._quantity(row)

    def _quantity(self, row: EvidenceRow) -> Quantity:
        # Single numbers lost their closing zeros, so a metric has the most decimals that its file shows.
        return printed(row.printed, self._decimals[row.quoted, row.metric], of=row)

    @cached_property
    def _decimals(self) -> dict[tuple[str, str], int]:
        found: dict[tuple[str, str], int] = {}
        for row in self.evidence:
            if row.study == "lever" and row.quoted and row.printed:
                at = (row.quoted, row.metric)
                found[at] = max(found.get(at, 0), decimals_of(row.printed))
        return found


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
    word: str = "logged"
    is_print: bool = False

    @cached_property
    def _runs(self) -> dict[tuple[float, int], int]:
        """Return the last trained epoch by beta and seed."""
        found: dict[tuple[float, int], int] = {}
        for subject in self.evidence.subjects("loss", study="lever"):
            kind, preset, base, beta, seed, epoch = described(subject)
            if (kind, preset, base) == ("grpo", self.preset, str(self.base)) and seed:
                at = (float(beta), int(seed))
                found[at] = max(found.get(at, 0), int(epoch))
        return found

    @property
    def seeds(self) -> list[int]:
        """Return every seed, rising."""
        return sorted({seed for _, seed in self._runs})

    def of_seed(self, seed: int) -> OurLever:
        """Return the numbers of one seed."""
        return replace(self, seed=seed)

    def near(self, samples: int) -> int:
        """Return the evaluated sample count nearest to `samples`, of two the smaller."""
        if not self.samples:
            raise lacking("no_epoch")
        return near(self.samples, samples)

    def at(self, beta: float, metric: str, place: Place) -> Quantity:
        """Return a training metric of one epoch, or a statistic of our training-curve run."""
        if isinstance(place, int):
            row = self.evidence.find(self._name(beta, place), metric)
            if row is None:
                raise self._without(beta, place)
            return measured(row.value, [row.key])
        rows = self._curve(beta, metric)
        values = [row.value for row in rows]
        if place == "mean":
            return measured(fmean(values), [rows[0].key, rows[-1].key], "mean over epochs")
        i = {"first": 0, "last": -1, "minimum": int(np.argmin(values))}[place]
        return measured(values[i], [rows[i].key])

    def minimum_epoch(self, beta: float, metric: str) -> Quantity:
        """Return the epoch of the smallest value."""
        rows = self._curve(beta, metric)
        at = int(np.argmin(self.every_epoch(beta, metric)))
        return Quantity(at + 1, 0, of=(rows[at].key,), how="epoch of the minimum")

    def every_epoch(self, beta: float, metric: str) -> NDArray[np.float64]:
        """Return [E] the curve itself."""
        return np.array([row.value for row in self._curve(beta, metric)])

    def together(self, betas: Sequence[float], places: Sequence[Place], metric: str) -> dict[Place, Row]:
        """Return a training metric by place and beta."""
        return {place: {beta: self.at(beta, metric, place) for beta in betas} for place in places}

    def by_seed(self, beta: float, epoch: int, metric: str) -> dict[int, Quantity]:
        """Return a training metric of every seed; one seed has no spread."""
        seeds = [seed for of, seed in sorted(self._runs) if of == beta]
        found = {
            seed: measured(row.value, [row.key])
            for seed in seeds
            if (row := self.evidence.find(self._name(beta, epoch, seed), metric)) is not None
        }
        if len(found) < 2:
            raise lacking("one_seed_of", beta=beta) if found else self._without(beta, epoch)
        return found

    def accuracy(self, beta: float, epoch: int, samples: int, shots: int) -> Quantity:
        """Return an accuracy in percent."""
        row = self.evidence.find(self._name(beta, epoch), "accuracy", subset="prefix", samples=samples, shots=shots)
        if row is None:
            raise self._without(beta, epoch) if str(shots) in self._shots else lacking("no_shots", shots=shots)
        return Quantity(row.value, 2, of=(row.key,))

    def long_accuracy(self, beta: float, samples: int, shots: int) -> Quantity:
        """Return an accuracy after the last evaluated epoch: the long runs are trained further, but not evaluated."""
        return self.accuracy(beta, self.long_epoch(beta), samples, shots)

    def long_epoch(self, beta: float) -> int:
        """Return the last evaluated epoch."""
        if beta not in {of for of, _ in self._runs}:
            raise lacking("no_curve", beta=beta)
        return self._last

    def separation(self, left: float, right: float, epoch: int, samples: int, shots: Shots) -> Part:
        """Return a paired difference of accuracies with its Holm p."""
        row, turned = self._compared(left, right, epoch, samples, shots)
        value, low, high = (-row.value, -row.high, -row.low) if turned else (row.value, row.low, row.high)
        found = Quantity(value, 2, of=(row.key,), how="turned" if turned else "", sign=True)
        numbers = _minus(left, right, found, shots, p_value("holm", row.p_holm))
        return Part(Check(value, max(high - value, value - low), row.p_holm), numbers)

    def same_selections(self, left: float, right: float) -> tuple[Quantity, Cell]:
        """Return the mean over seeds of the share of equal first demonstrations, the only ones that were published."""
        pair = [self._group(beta, self._last) for beta in (left, right)]
        for one, other in (pair, pair[::-1]):
            row = self.evidence.find(one, "as_sequence", against=other, shots=1)
            if row is not None:
                share = Quantity(100 * row.value, 2, of=(row.key,))
                return share, say("claims.selections", epochs=[self._last])
        raise lacking("no_agreement", betas=[left, right])

    def differing_parameters(self, beta: float) -> tuple[Quantity, Cell]:
        """Return the share of parameters that differ from the base, mean over seeds."""
        share = self._update(beta, self._last, "share_differing")
        return Quantity(100 * share.value, 2, of=share.of), say("claims.from_base")

    def update_size(self, beta: float, epoch: int) -> Quantity:
        """Return the norm of the update as a share of the base's norm."""
        return self._update(beta, epoch, "relative_norm")

    def gradient_share(self, beta: float, epoch: int, n_groups: int) -> Quantity:  # noqa: ARG002 - theirs
        """Return the logged share of groups with a gradient."""
        return self.at(beta, "gradient_share", epoch)

    def lineage(self, beta: float, epoch: int) -> Mapping[str, str]:
        """Return the fields of our run cards."""
        found = self.lineages.get(self._group(beta, epoch))
        if found is None:
            raise self._without(beta, epoch)
        return found

    @cached_property
    def _shots(self) -> set[str]:
        return {row.shots for row in self.evidence.where(metric="accuracy", study="lever", subset="prefix")}

    @cached_property
    def _evaluated(self) -> set[tuple[float, int]]:
        """Return every evaluated beta and epoch."""
        names = self.evidence.subjects("accuracy", study="lever", subset="prefix")
        parts = [described(name) for name in names]
        return {(float(of[3]), int(of[5])) for of in parts if of[:3] == ("grpo", self.preset, str(self.base)) and of[3]}

    @property
    def _last(self) -> int:
        """Return the last evaluated epoch of any beta."""
        if not self._evaluated:
            raise lacking("no_epoch")
        return max(epoch for _, epoch in self._evaluated)

    def _curve(self, beta: float, metric: str) -> list[EvidenceRow]:
        """Return a metric by epoch of the longest runs; runs of other lengths span other epochs."""
        length = max(self._runs.values(), default=0)
        seeds = [seed for (of, seed), last in self._runs.items() if (of, last) == (beta, length)]
        kept = [seed for seed in seeds if self.seed in (None, seed)]
        if not kept or length < FEWEST_EPOCHS:
            raise lacking("no_curve", beta=beta)
        names = ([self._name(beta, epoch, seed) for seed in kept] for epoch in range(1, length + 1))
        found = ([self.evidence.get(name, metric) for name in of] for of in names)
        return [rows[0]._replace(value=fmean(row.value for row in rows)) for rows in found]

    def _compared(self, left: float, right: float, epoch: int, samples: int, shots: Shots) -> tuple[EvidenceRow, bool]:
        pair = [self._group(beta, epoch) for beta in (left, right)]
        place = {"study": "lever", "subset": "prefix", "samples": samples, "shots": shots}
        for document in (self.document, "001", "002"):
            for one, other in (pair, pair[::-1]):
                for row in self.evidence.where(one, "accuracy", against=other, **place):
                    family = row.family.removesuffix(OF_ONE_RUN).removesuffix(BY_SHOTS)
                    if family == f"document-{document}/epoch~{epoch}":
                        return row, one != pair[0]
        missing = [beta for beta in (left, right) if (beta, epoch) not in self._evaluated]
        raise self._without(missing[0], epoch) if missing else lacking("no_comparison", betas=[left, right])

    def _update(self, beta: float, epoch: int, metric: str) -> Quantity:
        row = self.evidence.find(self._name(beta, epoch), metric, at="from base")
        if row is None:
            raise self._without(beta, epoch)
        return measured(row.value, [row.key])

    def _name(self, beta: float, epoch: int, seed: int | None = None) -> str:
        own = self.seed if seed is None else seed
        return str(PolicyName(kind="grpo", preset=self.preset, base=self.base, beta=beta, seed=own, epoch=epoch))

    def _group(self, beta: float, epoch: int) -> str:
        return group_of(self._name(beta, epoch))

    def _without(self, beta: float, epoch: int) -> Exception:
        return lacking("not_configured", beta=beta, epoch=epoch)


LeverSide = PublishedLever | OurLever


def _named(metric: str) -> Cell:
    return say(f"claims.metric.{metric}")


def _minus(left: float, right: float, gap: Quantity, shots: Shots, beside: Cell) -> Cell:
    where = say("claims.name.average") if shots == MEAN else say("claims.at_shots", shots=int(shots))
    found = labelled(where, listed([(say("claims.minus", left=left, right=right), gap)]))
    return say("claims.two", first=found, second=beside)
