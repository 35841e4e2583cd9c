"""The arms of the emulation: which published fault each switches on, and the policies that come of it."""

from __future__ import annotations

from dataclasses import replace

from lever_pipe.base.policy_names import EMULATION, PolicyName
from lever_pipe.base.sections import Section
from lever_pipe.experiment.config import Epoch, KlBeta
from lever_pipe.experiment.evaluation_config import Emulate

CONTROL, HEAD, POOL = "none", "head", "pool"
ARMS = (CONTROL, HEAD, POOL)
"""The control, and a fault of the evaluation each."""
DROPOUT = "dropout"
"""The fault of the logged KL, which no policy is evaluated with."""


class EmulatedPolicy(Section):
    """One policy of an arm."""

    arm: str
    kl_beta: KlBeta
    epoch: Epoch

    @property
    def name(self) -> str:
        """Return the policy's path-like name."""
        return str(PolicyName(kind=EMULATION, member=self.arm, beta=self.kl_beta, epoch=self.epoch))


def policies_of_arm(emulate: Emulate, arm: str) -> list[EmulatedPolicy]:
    """Return the evaluated policies of an arm, betas outermost."""
    epochs = range(1, emulate.grpo_epochs + 1)
    return [EmulatedPolicy(arm=arm, kl_beta=beta, epoch=epoch) for beta in emulate.kl_betas for epoch in epochs]


def policies(emulate: Emulate) -> list[EmulatedPolicy]:
    """Return the evaluated policies of all arms."""
    return [policy for arm in ARMS for policy in policies_of_arm(emulate, arm)]


def checkpoint_of(emulate: Emulate, policy: EmulatedPolicy) -> str:
    """Return the run and epoch, as a path below the study, whose selector an emulated policy evaluates."""
    run = PolicyName(kind="grpo", preset=emulate.preset, base=emulate.base_rce_epoch, beta=policy.kl_beta)
    return str(replace(run, seed=emulate.seed, epoch=policy.epoch))
