"""Our side of the claims of documents 000 to 002."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from lever_pipe.base.policy_names import group_of
from lever_pipe.report.claims.lever_side import Shots, Statistic
from lever_pipe.report.claims.quantities import Quantity, measured
from lever_pipe.report.claims.texts import PRINTED_ONLY, counted
from lever_pipe.report.claims.verdicts import Check, NotTestable
from lever_pipe.report.tables.comparisons.families import near
from lever_pipe.report.tables.documents.document_000 import curve_of, long_runs, statistics_of
from lever_pipe.report.tables.evidence import MEAN, Pair, Paired, p_text
from lever_pipe.report.tables.lineage import Lineages
from lever_pipe.report.tables.results import Results, offline_grpo
from lever_pipe.report.tables.text import beta_text

STATISTICS = {"mean": "Mean", "first": "First", "last": "Last", "minimum": "Minimum"}
DOCUMENTS = ("001", "002")
"""Documents whose betas are compared in families of their own."""


@dataclass(frozen=True)
class OurLever:
    """Our numbers of the main preset, for the claims of one document.

    `agreement` and `parameters` have the columns of `agreement.csv` and `parameters.csv`.
    """

    results: Results
    agreement: pd.DataFrame
    parameters: pd.DataFrame
    lineages: Lineages
    document: str
    word: str = "logged"

    def near(self, samples: int) -> int:
        """Return the evaluated sample count nearest to `samples`, of two the smaller."""
        if not self.results.samples:
            raise NotTestable("No GRPO epoch was evaluated.")
        return near(self.results.samples, samples)

    def require_print(self) -> None:
        """Raise: ours are not the printed text."""
        raise NotTestable(PRINTED_ONLY)

    def curve(self, beta: float, metric: str, statistic: Statistic) -> Quantity:
        """Return a statistic of our training-curve run."""
        return measured(statistics_of(self._curve(beta, metric))[STATISTICS[statistic]].value)

    def minimum_epoch(self, beta: float, metric: str) -> int:
        """Return the epoch of the smallest value."""
        return int(statistics_of(self._curve(beta, metric))["Minimum"].epoch)

    def every_epoch(self, beta: float, metric: str) -> NDArray[np.float64]:
        """Return the curve itself."""
        return np.asarray(self._curve(beta, metric), dtype=np.float64)

    def training(self, beta: float, epoch: int, metric: str) -> Quantity:
        """Return a training metric, mean over seeds."""
        found = self.results.metric(beta, epoch, metric)
        if found is None:
            raise NotTestable(self._without(beta, epoch))
        return measured(found)

    def together(self, betas: Sequence[float], epochs: Sequence[int], metric: str) -> dict[tuple[float, int], Quantity]:
        """Return a training metric of several betas and epochs."""
        return {(beta, epoch): self.training(beta, epoch, metric) for beta in betas for epoch in epochs}

    def by_seed(self, beta: float, epoch: int, metric: str) -> NDArray[np.float64]:
        """Return a training metric of every seed; one seed has no spread."""
        rows = offline_grpo(self.results.training)
        rows = rows[rows["base_rce_epoch"] == self.results.base]
        rows = rows[(rows["kl_beta"] == beta) & (rows["epoch"] == epoch) & (rows["metric"] == metric)]
        values = rows.sort_values("seed")["value"].to_numpy(dtype=np.float64)
        if not values.size:
            raise NotTestable(self._without(beta, epoch))
        if values.size < 2:
            raise NotTestable("One seed was trained, so there is no spread over runs.")
        return values

    def accuracy(self, beta: float, epoch: int, samples: int, shots: int) -> Quantity:
        """Return an accuracy, mean over seeds."""
        if shots not in self.results.shots:
            raise NotTestable(f"Shot {shots} is not part of this configuration.")
        found = self.results.accuracy(beta, epoch, samples, shots)
        if found is None:
            raise NotTestable(self._without(beta, epoch))
        return Quantity(found, 2, 0.0)

    def long_accuracy(self, beta: float, samples: int, shots: int) -> Quantity:
        """Return the accuracy after the last evaluated epoch; later ones of a training-curve run are not evaluated."""
        return self.accuracy(beta, self._last_epoch, samples, shots)

    def long_epoch(self, beta: float) -> int:  # noqa: ARG002 - one for all betas
        """Return the last evaluated epoch."""
        return self._last_epoch

    def separation(self, left: float, right: float, epoch: int, samples: int, shots: Shots) -> tuple[Check, str]:
        """Return a paired difference with its Holm-adjusted p value."""
        found = self._paired(left, right, epoch, samples, shots)
        where = f"{samples} samples, {'mean over shots' if shots == MEAN else f'shot {shots}'}"
        gap = f"{beta_text(left)} minus {beta_text(right)}: {found.text()} ({where})"
        half = max(found.high - found.difference, found.difference - found.low)
        return Check(found.difference, half, found.p), f"{gap}, Holm p {p_text(found.p)}"

    def same_selections(self, left: float, right: float) -> tuple[Quantity, str]:
        """Return the mean over seeds of the share of equal first demonstrations, the only ones that were published."""
        rows = self._agreeing(left, right)
        share = 100 * float(rows["as_sequence"].astype(float).mean())
        runs = counted(len(rows), "seed")
        return Quantity(share, 2, 0.0), f"first demonstration, shot 1, mean over {runs} after epoch {self._last_epoch}"

    def differing_parameters(self, beta: float) -> tuple[Quantity, str]:
        """Return the share of parameters that differ from the base, mean over seeds."""
        share = 100 * float(self._updates(beta, self._last_epoch)["share_differing"].astype(float).mean())
        return Quantity(share, 2, 0.0), f"from the base after epoch {self._last_epoch}"

    def update_size(self, beta: float, epoch: int) -> Quantity:
        """Return the relative norm of the update, mean over seeds."""
        return measured(float(self._updates(beta, epoch)["relative_norm"].astype(float).mean()))

    def gradient_share(self, beta: float, epoch: int, n_groups: int) -> tuple[Quantity, str]:  # noqa: ARG002 - theirs
        """Return the logged share of groups with a gradient."""
        return self.training(beta, epoch, "gradient_share"), "logged"

    def lineage(self, beta: float, epoch: int) -> Mapping[str, str]:
        """Return the fields of our run cards."""
        found = self.lineages.get(self.results.group(beta, epoch))
        if found is None:
            raise NotTestable(self._without(beta, epoch))
        return found

    @cached_property
    def _long(self) -> dict[float, pd.DataFrame]:
        return long_runs(self.results)

    @cached_property
    def _last_epoch(self) -> int:
        if not self.results.epochs:
            raise NotTestable("No GRPO epoch was evaluated.")
        return self.results.epochs[-1]

    def _curve(self, beta: float, metric: str) -> pd.Series[float]:
        run = self._long.get(beta)
        if run is None or run["epoch"].nunique() < 5:
            raise NotTestable(f"This configuration holds no training-curve run of KL_BETA {beta_text(beta)}.")
        return curve_of(run, metric)

    def _paired(self, left: float, right: float, epoch: int, samples: int, shots: Shots) -> Paired:
        pair = [self.results.group(beta, epoch) for beta in (left, right)]
        for document in (self.document, *DOCUMENTS):
            family = f"document-{document}/epoch~{epoch}"
            found = self.results.evidence.paired(Pair(family, pair[0], pair[1], samples, str(shots)))
            if found is not None:
                return found
        missing = [beta for beta in (left, right) if beta not in self.results.betas]
        if missing:
            raise NotTestable(self._without(missing[0], epoch))
        raise NotTestable(f"No comparison of {beta_text(left)} and {beta_text(right)} after epoch {epoch} was made.")

    def _agreeing(self, left: float, right: float) -> pd.DataFrame:
        groups = {self.results.group(beta, self._last_epoch) for beta in (left, right)}
        rows = self.agreement
        sides = rows["left"].map(group_of), rows["right"].map(group_of)
        pairs = pd.Series([{a, b} == groups for a, b in zip(*sides, strict=True)], index=rows.index, dtype=bool)
        seeds = [rows[side].str.extract(r"(seed~\d+)")[0].fillna("") for side in ("left", "right")]
        rows = rows[pairs & (seeds[0] == seeds[1])]
        if rows.empty:
            raise NotTestable(f"No agreement of {beta_text(left)} and {beta_text(right)} was measured.")
        rows = rows[rows["shots"].astype(int) == 1]
        if rows.empty:
            raise NotTestable("Shot 1 is not part of this configuration.")
        return rows

    def _updates(self, beta: float, epoch: int) -> pd.DataFrame:
        rows = self.parameters[self.parameters["policy"].map(group_of) == self.results.group(beta, epoch)]
        if rows.empty:
            raise NotTestable(self._without(beta, epoch))
        return rows

    def _without(self, beta: float, epoch: int) -> str:
        return f"KL_BETA {beta_text(beta)}, epoch {epoch} is not part of this configuration."
