"""The published side of the claims of documents 000 to 002."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from statistics import fmean

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from lever_pipe.report.claims.lever_side import Shots, Statistic
from lever_pipe.report.claims.quantities import Quantity, decimals_of, printed
from lever_pipe.report.claims.texts import named
from lever_pipe.report.claims.verdicts import Check, NotTestable
from lever_pipe.report.tables.lineage import UNKNOWN, Lineages, published_key
from lever_pipe.report.tables.published import (
    ACCURACY_012,
    ACCURACY_015,
    BETAS,
    CURVES,
    Key,
    Published,
    PublishedNumber,
)
from lever_pipe.report.tables.text import beta_text, listing, number, signed
from lever_pipe.statistics.summary import standard_error_percent

FILES = {
    "000": (CURVES,),
    "001": (ACCURACY_015, BETAS),
    "002": (ACCURACY_015, ACCURACY_012, BETAS),
}
"""The reference files that hold a document's numbers, in order of precedence."""
COMPARED = "KL_BETA_012_vs_015_对比报告.md"
FINAL = "KL_BETA_012_vs_015_最终对比报告.md"
"""Reference files with the accuracies and selections after the training-curve runs."""
LONG_EPOCHS = {0.12: 9, 0.15: 42}
"""The evaluated epoch of each training-curve run."""
EPOCH_OF = {"mean": "mean(1-50)", "first": "1", "last": "50", "minimum": "minimum"}
WHEN = {"mean(1-50)": "mean of epochs 1 to 50", "minimum": "minimum", "9 vs 42": "epochs 9 and 42"}
"""What a reader calls the epochs of the reference that are no single one."""
METRICS = {"loss": "grpo_loss", "std_advantage": "adv_std", "max_advantage": "adv_max"}
"""Published names of our metrics where they differ."""
NORMAL_95 = 1.959964


class PublishedLever:
    """The published numbers as one document quotes them."""

    word = "printed"

    def __init__(self, reference: pd.DataFrame, lineages: Lineages, document: str) -> None:
        """Look numbers up in the rows of `reference` (every column as text) that `document` quotes."""
        self._lineages = lineages
        self._published = Published(reference)
        self._document = document
        files = reference["source_file"].str.rpartition(":")[2]
        self._decimals = reference["value"].map(decimals_of).groupby([files, reference["metric"]]).max().to_dict()

    def near(self, samples: int) -> int:
        """Return the document's sample count itself."""
        return samples

    def require_print(self) -> None:
        """Return: the printed text is this side."""

    def curve(self, beta: float, metric: str, statistic: Statistic) -> Quantity:
        """Return a printed statistic of a training-curve run."""
        return self._quantity(Key("grpo_balanced", beta, EPOCH_OF[statistic], _name(metric)), self._files)

    def minimum_epoch(self, beta: float, metric: str) -> int:
        """Return the printed epoch of a minimum."""
        return int(self._found(Key("grpo_balanced", beta, "minimum", _name(metric)), self._files).epoch)

    def every_epoch(self, beta: float, metric: str) -> NDArray[np.float64]:
        """Raise: no epoch in between is printed."""
        label = f"{named(metric)} of {beta_text(beta)}"
        raise NotTestable(f"Of the epochs in between nothing is printed: {label}.")

    def training(self, beta: float, epoch: int, metric: str) -> Quantity:
        """Return a printed training metric of one epoch."""
        return self._quantity(Key("grpo_frozen", beta, str(epoch), _name(metric)), self._files)

    def together(self, betas: Sequence[float], epochs: Sequence[int], metric: str) -> dict[tuple[float, int], Quantity]:
        """Return a training metric of several betas and epochs from the first file that has them all.

        Two files print different runs of one beta, so their rows do not compare.
        """
        keys = {(b, e): Key("grpo_frozen", b, str(e), _name(metric)) for b in betas for e in epochs}
        for file in self._files:
            if all(self._published.find(key, (file,)) for key in keys.values()):
                return {at: self._quantity(key, (file,)) for at, key in keys.items()}
        listed = f"{listing(map(beta_text, betas))}, epoch {listing(epochs)}"
        raise NotTestable(f"Not published together: {named(metric)} of {listed}.")

    def by_seed(self, beta: float, epoch: int, metric: str) -> NDArray[np.float64]:
        """Raise: every published run is single."""
        label = f"{named(metric)} of {beta_text(beta)}, epoch {epoch}"
        raise NotTestable(f"One run a beta is published, so there is no spread over runs: {label}.")

    def accuracy(self, beta: float, epoch: int, samples: int, shots: int) -> Quantity:
        """Return a printed accuracy.

        A VQA accuracy on OK-VQA is 0, 0.6 or 1, so up to 200 questions a mean has one decimal and no rounding.
        """
        found = self._quantity(Key("grpo_frozen", beta, str(epoch), "vqa_acc_pct", samples, shots), self._files)
        return found._replace(digits=1, rounding=0.0) if samples <= 200 else found

    def long_accuracy(self, beta: float, samples: int, shots: int) -> Quantity:
        """Return the printed accuracy after a training-curve run."""
        epoch = str(self.long_epoch(beta))
        return self._quantity(Key("grpo_balanced", beta, epoch, "vqa_acc_pct", samples, shots), (COMPARED,))

    def long_epoch(self, beta: float) -> int:
        """Return the evaluated epoch of a training-curve run."""
        if beta not in LONG_EPOCHS:
            raise NotTestable(f"No training-curve run of KL_BETA {beta_text(beta)} is published.")
        return LONG_EPOCHS[beta]

    def separation(self, left: float, right: float, epoch: int, samples: int, shots: Shots) -> tuple[Check, str]:
        """Return a difference of accuracies against 1.96 standard errors of a difference, and its p value.

        Both errors are binomial and taken as independent, because nothing paired is published; a mean over shots
        counts each question once. The p value is that of the normal law, so that it is below 0.05 beyond the noise.
        """
        counts = (1, 2, 3, 4) if shots == "mean" else (shots,)
        pair = [fmean(self.accuracy(b, epoch, samples, k).value for k in counts) for b in (left, right)]
        gap = pair[0] - pair[1]
        error = math.hypot(*(standard_error_percent(value / 100, samples) for value in pair))
        needed, p = NORMAL_95 * error, math.erfc(abs(gap) / error / math.sqrt(2)) if error else float(not gap)
        where = f"{samples} samples, {_shots_text(shots)}"
        text = f"{beta_text(left)} minus {beta_text(right)}: {signed(gap, 2)} ({where}), noise {number(needed, 1)}"
        return Check(gap, needed, p), text

    def same_selections(self, left: float, right: float) -> tuple[Quantity, str]:
        """Return the published share of identical first demonstrations, which is known of 0.12 and 0.15."""
        self._require_compared(left, right)
        rate = self._found(Key("grpo_balanced", None, "9 vs 42", "identical_selection_rate", 50, 1), (FINAL,))
        runs = " and ".join(f"{beta_text(beta)} after epoch {self.long_epoch(beta)}" for beta in (left, right))
        return Quantity(100 * rate.value, 0, 0.0), f"first demonstration, shot 1, {runs}, {rate.note} queries"

    def differing_parameters(self, beta: float) -> tuple[Quantity, str]:
        """Return the published share of weights that differ between 0.12 and 0.15."""
        self._require_compared(beta)
        note = self._found(Key("grpo_balanced", None, "9 vs 42", "mean_abs_weight_diff"), (FINAL,)).note
        share = re.search(r"([\d.]+)% of weights differ", note)
        if share is None:
            raise NotTestable("No share of differing weights is published.")
        return printed(share[1]), "between 0.12 and 0.15"

    def update_size(self, beta: float, epoch: int) -> Quantity:
        """Raise: weights are not published."""
        raise NotTestable(f"Not published: size of the update of {beta_text(beta)}, epoch {epoch}.")

    def gradient_share(self, beta: float, epoch: int, n_groups: int) -> tuple[Quantity, str]:
        """Return the whole number of groups that lies nearest to the printed spread, as a share."""
        spread = self.training(beta, epoch, "std_advantage")
        count = round(spread.value * n_groups)
        return Quantity(count / n_groups, 4, spread.rounding), f"{count} of {n_groups}"

    def lineage(self, beta: float, epoch: int) -> Mapping[str, str]:
        """Return what is known of a published run, as this document quotes it."""
        stage = "grpo_balanced" if self._document == "000" else "grpo"
        keys = [published_key(beta, epoch, stage=stage, document=document) for document in (self._document, "")]
        found = next((self._lineages[key] for key in keys if key in self._lineages), None)
        if found is None:
            raise NotTestable(f"How the run of {beta_text(beta)}, epoch {epoch} came to be is not known.")
        return {field: value for field, value in found.items() if value != UNKNOWN}

    def _require_compared(self, *betas: float) -> None:
        if not {*betas} <= LONG_EPOCHS.keys():
            raise NotTestable(f"Not published: agreement of {listing(map(beta_text, betas))}.")

    @property
    def _files(self) -> tuple[str, ...]:
        return FILES[self._document]

    def _quantity(self, key: Key, files: tuple[str, ...]) -> Quantity:
        found = self._found(key, files)
        # Single numbers lost their closing zeros, so a metric has the most decimals that its file shows.
        return printed(found.text, self._decimals[found.source, key.metric])

    def _found(self, key: Key, files: tuple[str, ...]) -> PublishedNumber:
        found = self._published.find(key, files)
        if found is None:
            label = "" if key.beta is None else f" of {beta_text(key.beta)}"
            raise NotTestable(
                f"Not published: {named(key.metric)}{label}, {WHEN.get(key.epoch, f'epoch {key.epoch}')}."
            )
        return found


def _name(metric: str) -> str:
    return METRICS.get(metric, metric)


def _shots_text(shots: Shots) -> str:
    return "mean over shots" if shots == "mean" else f"shot {shots}"
