"""Study `lever`: presets and the runs of an arm."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from lever_pipe.base.sections import Distinct, Epoch, FilePath, KlBeta, Problem, Section, Seed, at_most, rule, some_of
from lever_pipe.experiment.distil import Distil
from lever_pipe.experiment.grpo import Grpo
from lever_pipe.experiment.on_policy import OnPolicy
from lever_pipe.experiment.rce import Rce
from lever_pipe.experiment.reward import Reward
from lever_pipe.experiment.selector import Selector
from lever_pipe.experiment.sft import Sft

ExtraObjective = Literal["reinforce", "distil", "continued"]


class Preset(Section):
    """One named set of training hyperparameters; every table names its preset."""

    selector: Selector = Selector()
    start_from: FilePath = Field("", exclude_if=lambda path: not path)
    """A checkpoint of this selector to use instead of the untrained one: a `.safetensors` file of another run or
    preset, or a folder with `selector.safetensors`, as an epoch or `import_checkpoint` writes it. Empty for none."""
    reward: Reward = Reward()
    sft: Sft = Sft()
    rce: Rce = Rce()
    rce_from_sft_epoch: int = Field(0, ge=0, le=400)
    """The SFT epoch that RCE starts from; 0 for the untrained selector."""
    grpo: Grpo = Grpo()
    on_policy: OnPolicy = OnPolicy()
    distil: Distil = Distil()
    train_share: float = Field(0.8, gt=0, lt=1)
    """Share of the RL queries, in id order, for training; the rest gives the validation loss."""
    max_gradient_norm: float = Field(1.0, gt=0)

    @rule
    def _something_is_trained(self) -> Iterator[Problem]:
        for objective in ("grpo", "on_policy"):
            if self.selector.network == "bi_encoder" and getattr(self, objective).freeze_projections:
                problem = "must be false with selector.network: bi_encoder, which has projections only, got true"
                yield (objective, "freeze_projections"), f"{problem}. Write {objective}: {{freeze_projections: false}}."


class OnPolicyRuns(Section):
    """An arm's on-policy runs from its base RCE epochs, in addition to its offline runs."""

    seeds: Distinct[Seed] = Field((0,), min_length=1)
    """Some of the arm's seeds."""
    epochs: Epoch = 3
    evaluated: Distinct[Epoch] = ()
    """Evaluated epochs; empty for all."""
    kl_betas: Distinct[KlBeta] = (0.0, 0.12, 0.145, 0.15, 0.155, 0.18)
    extra_objectives: Distinct[ExtraObjective] = ("reinforce", "distil")
    """Runs of other objectives from the same bases. `reinforce`: REINFORCE, meant as a lower bound, with as many
    optimizer steps as the GRPO run. `distil`: oracle distillation, meant as an upper bound; it trains the first choice
    only, so it shows little about a head with dependent steps. `continued`: RCE with the rewards, batch, learning rate
    and number of steps of offline GRPO."""

    @rule
    def _evaluated_epochs_are_trained(self) -> list[Problem]:
        return at_most(("evaluated",), max(self.evaluated, default=1), "epochs", self.epochs)


class ArmSettings(Section):
    """One factorial run: the trained and evaluated seeds, epochs and betas of a preset."""

    preset: str
    seeds: Distinct[Seed] = Field((0, 1, 2), min_length=1)
    sft_epochs: int = Field(0, ge=0, le=400)
    """Epochs of supervised learning of beam data; 0 for none. Only the last is evaluated."""
    rce_epochs: Epoch = 5
    base_rce_epochs: Distinct[Epoch] = Field((5,), min_length=1)
    """RCE epochs that GRPO starts from; explicit, so that extending RCE does not move the start."""
    grpo_epochs: Epoch = 3
    kl_betas: Distinct[KlBeta] = (0.0, 0.12, 0.145, 0.15, 0.155, 0.18)
    long_epochs: int = Field(0, ge=0, le=400)
    """Epochs of the training-curve runs; 0 for none. All are trained; only `long_evaluated` are evaluated."""
    long_kl_betas: Distinct[KlBeta] = ()
    long_seeds: Distinct[Seed] = (0,)
    long_evaluated: Distinct[Epoch] = ()
    """Evaluated epochs of these runs, for the arm's seeds among `long_seeds`. Arms are compared at the last epoch that
    all betas have, so an arm with long betas only is compared at the last of these epochs."""
    on_policy: OnPolicyRuns | None = None
    """null for the published, offline objective only."""

    @rule
    def _on_policy_seeds_exist(self) -> list[Problem]:
        seeds, do = self.on_policy.seeds if self.on_policy else (), "Drop it or add it to the arm."
        return some_of(("on_policy", "seeds"), seeds, self.seeds, do, "the arm's seeds")

    @rule
    def _long_runs_have_their_evaluated_epochs(self) -> list[Problem]:
        return at_most(("long_evaluated",), max(self.long_evaluated, default=0), "long_epochs", self.long_epochs)

    @rule
    def _base_epochs_exist(self) -> list[Problem]:
        return at_most(("base_rce_epochs",), max(self.base_rce_epochs), "rce_epochs", self.rce_epochs)
