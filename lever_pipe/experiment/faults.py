"""The arms of the emulation: which published faults each switches on, and the runs and policies that come of it."""

from __future__ import annotations

from dataclasses import replace

from lever_pipe.base.policy_names import EMULATION, PolicyName
from lever_pipe.base.sections import Section
from lever_pipe.experiment.config import Epoch, KlBeta
from lever_pipe.experiment.evaluation_config import Emulate

CONTROL = "none"
ALL = "all"
FAULTS = ("head", "pool", "dropout", "bases")
ARMS = (CONTROL, *FAULTS, ALL)
"""The control, each fault alone, and all together."""


class EmulatedPolicy(Section):
    """One policy of an arm."""

    arm: str
    kl_beta: KlBeta
    epoch: Epoch

    @property
    def name(self) -> str:
        """Return the policy's path-like name."""
        return str(PolicyName(kind=EMULATION, member=self.arm, beta=self.kl_beta, epoch=self.epoch))


def faults_of(arm: str) -> frozenset[str]:
    """Return the faults that an arm switches on."""
    return frozenset(FAULTS) if arm == ALL else frozenset({arm} & set(FAULTS))


def policies_of_arm(emulate: Emulate, arm: str) -> list[EmulatedPolicy]:
    """Return the evaluated policies of an arm, betas outermost."""
    epochs = range(1, emulate.grpo_epochs + 1)
    return [EmulatedPolicy(arm=arm, kl_beta=beta, epoch=epoch) for beta in emulate.kl_betas for epoch in epochs]


def policies(emulate: Emulate) -> list[EmulatedPolicy]:
    """Return the evaluated policies of all arms."""
    return [policy for arm in ARMS for policy in policies_of_arm(emulate, arm)]


def checkpoint_of(emulate: Emulate, policy: EmulatedPolicy) -> str:
    """Return the run and epoch, as a path below the study, whose selector an emulated policy evaluates."""
    faults = faults_of(policy.arm)
    mixed = "bases" in faults and policy.kl_beta == emulate.other_kl_beta
    base = emulate.other_base_rce_epoch if mixed else emulate.base_rce_epoch
    name = PolicyName(
        kind="grpo", preset=emulate.preset, base=base, beta=policy.kl_beta, seed=emulate.seed, epoch=policy.epoch
    )
    return str(replace(name, kind=EMULATION, preset="", member="dropout") if "dropout" in faults else name)


def trained_runs(emulate: Emulate) -> list[str]:
    """Return every training epoch behind the emulated policies once: right ones first, then those with dropout."""
    found = dict.fromkeys(checkpoint_of(emulate, policy) for policy in policies(emulate))
    return sorted(found, key=lambda run: run.startswith(EMULATION))
