"""Evaluation of study `lever`: baselines, cells, and emulated bugs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from lever_pipe.base.policy_names import EMULATION, PolicyName
from lever_pipe.base.records import Normalisation
from lever_pipe.base.sections import Distinct, Problem, Rising, Section, Seed, one_of, rule
from lever_pipe.experiment.config import Epoch, KlBeta

CONTROL, HEAD, POOL = "none", "head", "pool"
EMULATED_ARMS = (CONTROL, HEAD, POOL)
"""Arms of the emulation: the control, and one arm for each bug of the published evaluation."""
DROPOUT = "dropout"
"""The bug of the logged KL; it affects no evaluated policy."""
BASELINES = ("zero_shot", "random", "similar_image", "similar_question", "similar_both", "oracle")
"""Policies without training that every report shows."""


class Baselines(Section):
    """Policies without training, at the same shot and sample counts."""

    n_random_draws: int = Field(3, ge=1, le=100)
    seed: Seed = 42


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


class EmulatedPolicy(Section):
    """One policy of an arm of the emulation."""

    arm: str
    kl_beta: KlBeta
    epoch: Epoch

    @property
    def name(self) -> str:
        """Return the policy's path-like name."""
        return str(PolicyName(kind=EMULATION, variant=self.arm, beta=self.kl_beta, epoch=self.epoch))


class Emulate(Section):
    """Bugs of the published evaluation, emulated one at a time to show their effects."""

    preset: str = "published"
    """Preset whose checkpoints are emulated; its projections must be frozen in GRPO, as published."""
    seed: Seed = 0
    kl_betas: Distinct[KlBeta] = Field((0.12, 0.145, 0.15, 0.155, 0.18), min_length=2)
    grpo_epochs: Epoch = 3
    base_rce_epoch: Epoch = 5
    head_seed: Seed = 42
    """Seed of the new attention and layer norm that replace the trained ones."""
    pool_items: int = Field(2, ge=2, le=64)
    """Size of the pool of every evaluation query: the first train items."""

    def policies(self, *arms: str) -> list[EmulatedPolicy]:
        """Return the evaluated policies of these arms (default: all), ordered by arm, beta, then epoch."""
        return [
            EmulatedPolicy(arm=arm, kl_beta=beta, epoch=epoch)
            for arm in arms or EMULATED_ARMS
            for beta in self.kl_betas
            for epoch in range(1, self.grpo_epochs + 1)
        ]

    def checkpoint_of(self, policy: EmulatedPolicy) -> str:
        """Return the path, below the study, of the checkpoint that an emulated policy evaluates."""
        run = {"preset": self.preset, "base": self.base_rce_epoch, "seed": self.seed}
        return str(PolicyName(kind="grpo", beta=policy.kl_beta, epoch=policy.epoch, **run))  # type: ignore[arg-type]
