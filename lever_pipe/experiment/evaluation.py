"""Cells of the evaluation, and the primary one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from lever_pipe.base.records import Normalisation, Policy
from lever_pipe.base.sections import Distinct, Problem, Rising, Section, Seed, one_of, rule


class EvaluatedCells(Section):
    """The cells of every policy: samples x shots."""

    samples: Rising[Annotated[int, Field(ge=2)]] = Field((100, 200, 400, 800), min_length=1)
    """Questions of a cell; at least two, since one question has no interval."""
    shots: Rising[Annotated[int, Field(ge=1, le=16)]] = Field((1, 2, 3, 4), min_length=1)
    n_random_subsets: int = Field(20, ge=0, le=1000)
    seed: Seed = 42
    normalise_references: Normalisation = "when_they_disagree"
    """The references that every VQA accuracy of a run normalizes, including rewards. `when_they_disagree`: as the
    official tool, where "Black" does not match ten times "black". `always`: as the published study, OpenFlamingo and
    newer harnesses. `punctuation_only`: as the official tool's first revision."""


class ScoreAnswersConfig(EvaluatedCells):
    policies: tuple[Policy, ...]
    """Policies of the batch, one for each of the `selections`."""


PrimaryFamily = Literal[
    "grpo-over-betas",
    "grpo-against-rce",
    "grpo-betas",
    "on-policy-over-betas",
    "on-policy-against-rce",
    "on-policy-betas",
    "on-policy-against-offline",
]
"""Comparisons of every preset at the primary endpoint: the mean over KL_BETA, and each KL_BETA against RCE and against
the smallest one, offline and on-policy; then on-policy against offline."""


class PrimaryCells(Section):
    """The primary cell of study `lever`, fixed before any run; all other cells are secondary."""

    shots: Literal["mean"] | Annotated[int, Field(ge=1, le=16)] = "mean"
    """One of `evaluation.shots`, or the mean over all of them."""
    samples: Literal["largest"] | Annotated[int, Field(ge=2)] = "largest"
    """One of `evaluation.samples`, or the largest of them."""
    epoch: Literal["last"] = "last"
    """The last GRPO epoch that all KL_BETA have."""


class EvaluationSettings(EvaluatedCells):
    """The cells, and the primary one."""

    primary: PrimaryCells = PrimaryCells()
    families: dict[PrimaryFamily, Annotated[Distinct[str], Field(min_length=2)]] = Field({})
    """Presets with comparisons at the primary endpoint that are adjusted (Holm) as one family, because one claim covers
    them. By default, each preset's comparisons are a separate family."""

    @rule
    def _primary_cells_exist(self) -> Iterator[Problem]:
        for name in ("shots", "samples"):
            value, do = getattr(self.primary, name), "Name one of them or add it."
            if not isinstance(value, str):
                yield from one_of(("primary", name), value, getattr(self, name), do, f"evaluation.{name}")
