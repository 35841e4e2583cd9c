"""Bugs of the published evaluation, emulated one at a time."""

from __future__ import annotations

from pydantic import Field

from lever_pipe.base.policy_names import EMULATION, PolicyName
from lever_pipe.base.records import Normalisation
from lever_pipe.base.sections import Counts, Distinct, Epoch, KlBeta, Section, Seed
from lever_pipe.experiment.grpo import Grpo
from lever_pipe.experiment.selector import SELECTOR, Selector


class EmulateUntouchedConfig(Section):
    PLUGINS = SELECTOR
    preset: str
    selector: Selector
    grpo: Grpo
    train_share: float
    base_rce_epoch: Epoch
    seed: Seed


class EmulateSelectionsConfig(Section):
    PLUGINS = SELECTOR
    arm: str
    selector: Selector
    shots: int
    head_seed: Seed | None
    """Seed of the head that replaces the trained one; None keeps the trained one."""
    pool_items: int | None
    """Size of a common pool, the first train items; None uses each query's pool."""


class EmulatedPolicy(Section):
    """One policy of an arm of the emulation."""

    arm: str
    kl_beta: KlBeta
    epoch: Epoch

    @property
    def name(self) -> str:
        """Return the policy's path-like name."""
        return str(PolicyName(kind=EMULATION, variant=self.arm, beta=self.kl_beta, epoch=self.epoch))


class ScoreEmulationConfig(Section):
    normalise_references: Normalisation = "when_they_disagree"
    policies: tuple[EmulatedPolicy, ...]
    """One for each of the `selections`."""
    samples: Counts
    shots: Counts


CONTROL, HEAD, POOL = "none", "head", "pool"
EMULATED_ARMS = (CONTROL, HEAD, POOL)
"""Arms of the emulation: the control, and one arm for each bug of the published evaluation."""
DROPOUT = "dropout"
"""The bug of the logged KL; it affects no evaluated policy."""


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
