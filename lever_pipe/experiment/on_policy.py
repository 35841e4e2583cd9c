"""On-policy GRPO."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from lever_pipe.base.records import KlForm, Normalisation
from lever_pipe.base.sections import KlBeta, Problem, Rising, Section, Share, rule
from lever_pipe.experiment.lvlm import LVLM, LvlmConfig
from lever_pipe.experiment.reward import Reward
from lever_pipe.experiment.selector import SELECTOR, TrainingFromBaseConfig

AdvantageName = Literal["standardised", "centred", "leave_one_out", "batch"]


class OnPolicy(Section):
    """GRPO on groups that the policy draws, from a named RCE epoch; an epoch uses each train query at most once."""

    learning_rate: float = Field(3e-4, gt=0, le=1)
    horizon_epochs: int = Field(3, ge=1)
    """Epochs of the falling learning rate; independent of the number of epochs, so that extending a run keeps earlier
    epochs."""
    final_learning_rate_share: Share = 1.0
    """Learning rate at the horizon as a share of the first, on a cosine; 1 keeps it constant."""
    batch_queries: int = Field(32, ge=1)
    queries: int | None = Field(None, ge=1, exclude_if=lambda n: n is None)
    """Train queries of an epoch, different ones in each epoch; null for all."""
    group: int = Field(8, ge=1, le=256)
    """Selections drawn together for a query."""
    shots: Rising[Annotated[int, Field(ge=1, le=16)]] = Field((1, 2, 3, 4), min_length=1)
    """Lengths of selections; a query's group has one of them, drawn evenly."""
    updates: int = Field(2, ge=1, le=16)
    """Optimizer steps on a batch; from the second step on, the policy differs from the one that drew the batch."""
    kl_form: Literal["exact", KlForm] = Field("exact", exclude_if=lambda form: form == "exact")
    """The divergence that KL_BETA weighs: exact at every step, or an estimate from whole drawn selections
    (`lever_pipe/losses/kl.py`). The unbiased estimates are `k2_loss` and `k1_reward`."""
    clip_epsilon: float = Field(0.2, gt=0, lt=1)
    """Bound on the ratio's distance from 1, below and above."""
    clip_high: float | None = Field(None, gt=0, lt=10, exclude_if=lambda bound: bound is None)
    """Bound on the ratio's distance above 1, where it differs from the bound below."""
    advantages: AdvantageName = "standardised"
    """Comparison of a reward with its group (`lever_pipe/losses/advantages.py`)."""
    advantage_std_floor: float = Field(0.1, gt=0, le=10)
    """Lower bound on the spread of a group's rewards; `standardised` only, the same for `advantage_clamp`."""
    advantage_clamp: float = Field(5.0, gt=0, le=100)
    reward: Reward = Reward(mode="accuracy_plus_expected", hard=0.5, soft=0.5)
    """Reward of the drawn selections; it may differ from the reward of the stored ones."""
    stop_price: float = Field(0.0, ge=0, le=1)
    """Reward deducted for each demonstration, where `selector.head` may stop before the last shot."""
    weight_decay: float = Field(0.01, ge=0, le=1)
    freeze_projections: bool = False
    """As in `grpo`."""

    def queries_of(self, n: int) -> int:
        """Return the number of train queries of an epoch, out of `n`."""
        return n if self.queries is None else min(self.queries, n)

    @rule
    def _group_is_one(self) -> Iterator[Problem]:
        if self.group < 2 and self.advantages != "batch":
            bound = f"must be at least 2 with advantages={self.advantages!r}"
            yield ("group",), f"{bound}, got {self.group}. Raise it, or write advantages: batch."


class TrainOnPolicyEpochConfig(TrainingFromBaseConfig):
    PLUGINS = (LVLM, *SELECTOR)
    normalise_references: Normalisation = "when_they_disagree"
    objective: Literal["on_policy", "reinforce"]
    """GRPO, or the plain score-function estimator with a baseline."""
    lvlm: LvlmConfig
    on_policy: OnPolicy
    kl_beta: KlBeta
