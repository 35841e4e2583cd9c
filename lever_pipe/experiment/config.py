"""Study `lever`: selectors, their training, and the runs of an arm.

The models of this folder are the only place that defines defaults. `make schema` generates
`workflow/schemas/config.schema.json` from them, and a test compares the two. Defaults are the published production
values; the embedded world overrides them in `config.yaml`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal, get_args

from pydantic import Field

from lever_pipe.base.plugins import plugin_of
from lever_pipe.base.sections import (
    Distinct,
    FilePath,
    Problem,
    Rising,
    Section,
    Seed,
    Share,
    at_most,
    dividing,
    rule,
    some_of,
)

KlBeta = Annotated[float, Field(ge=0, le=1000, description="Betas are penalties; drop the sign.")]
Epoch = Annotated[int, Field(ge=1, le=400, description="Epochs count from 1.")]
RewardModeName = Literal[
    "hard_plus_soft",
    "hard_plus_soft_v2",
    "hard_only",
    "soft_only",
    "separated",
    "hard01_plus_gtprob",
    "hard01_plus_gtprob_separated",
    "hard_plus_gtprob_plus_rel",
    "expected_only",
    "accuracy_plus_expected",
    "legacy",
    "hybrid",
]
AdvantageName = Literal["standardised", "centred", "leave_one_out", "batch"]
KlForm = Literal["k3_loss", "k2_loss", "k1_reward"]
ExtraObjective = Literal["reinforce", "distil", "continued"]
MOST_CELLS = 256  # of one sweep


class Selector(Section):
    """The pointer network (source: Lever-Plus v3, published code)."""

    inputs: Literal["fused", "parts"] = "fused"
    """Input of an example: one vector fused from image and question (published), or the two vectors side by side."""
    width: int = Field(256, ge=8, le=4096)
    feed_forward: int = Field(0, ge=0, le=16384)
    """Hidden width of a residual block after the input projection; 0 for none (published). Without the block, only the
    attention over the pool lets a question select the attribute in which two images must match."""
    layers: int = Field(1, ge=1, le=8)
    heads: int = Field(1, ge=1, le=64)
    dropout: float = Field(0.5, ge=0, lt=1)
    attention_dropout: float = Field(0.1, ge=0, lt=1)
    temperature: float = Field(0.1, gt=0, le=10)
    network: Annotated[str, plugin_of("lever/networks")] = "cross_attention"
    """A plugin of `lever_pipe/lever/networks`: `cross_attention` lets the query attend to its pool (published v2 to
    v4); `bi_encoder` maps query and candidates separately (published v1, with head `blend`)."""
    head: Annotated[str, plugin_of("lever/heads")] = "static"
    """A plugin of `lever_pipe/lever/heads`. `static`: one ranking, independent of earlier choices (published v3). In
    all other heads each choice changes the scores of later ones, so that they may complement it."""
    steps: int = Field(0, ge=0, le=16)
    """Rows of step embeddings, one per shot; 0 for none. Used by `gru` and the heads that derive from it."""

    @rule
    def _heads_divide_width(self) -> list[Problem]:
        return dividing(("heads",), self.heads, "width", self.width)


class Reward(Section):
    """The function from a trajectory's stored scores to one reward (`lever_pipe/lever/rewards.py`)."""

    mode: Annotated[str, plugin_of("lever/rewards", *get_args(RewardModeName))] = Field(
        "hard_plus_soft", examples=list(get_args(RewardModeName))
    )
    """A function of `lever_pipe/lever/rewards.py`, or a module `lever/rewards/NAME.py` outside the package."""
    hard: float = Field(1.0, ge=0, le=100)
    soft: float = Field(1.0, ge=0, le=100)
    relevance: float = Field(0.1, ge=0, le=100)
    alpha: float = Field(0.0, ge=0, le=100)
    """Weight of the proposal's own score, in mode `legacy` only."""
    beta: float = Field(0.0, ge=0, le=100)
    """Weight of correctness, in mode `legacy` only."""
    correctness: Literal["01", "-11"] = "01"
    """Whether a wrong answer counts 0 or -1, in mode `legacy` only."""


class Rce(Section):
    """Reward-weighted cross-entropy; one epoch is `passes` over the train queries."""

    learning_rate: float = Field(1e-4, gt=0, le=1)
    batch_queries: int = Field(1, ge=1)
    passes: int = Field(1, ge=1, le=64)
    temperature_start: float = Field(2.0, gt=0, le=100)
    temperature_end: float = Field(0.5, gt=0, le=100)
    horizon_epochs: int = Field(5, ge=1)
    """Epochs of the schedules; independent of the number of epochs, so that extending a run keeps earlier epochs."""
    final_learning_rate_share: Share = 1.0
    """Learning rate at the horizon as a share of the first, on a cosine; 1 keeps it constant."""
    weight_decay: float = Field(0.01, ge=0, le=1)
    weight_by_spread: bool = False
    """Whether to weight a query by its reward range, so that uniform groups are not imitated."""


class AdaptiveKl(Section):
    """KL_BETA follows the penalty after every batch (source: Lever-Plus, published code)."""

    low: float = Field(0.01, ge=0)
    """Penalty in nats below which beta is divided by `factor`."""
    high: float = Field(0.1, gt=0)
    """Penalty in nats above which beta is multiplied by `factor`."""
    factor: float = Field(1.5, gt=1)
    minimum: float = Field(0.001, ge=0)
    maximum: float = Field(10.0, gt=0)

    @rule
    def _window_is_in_order(self) -> list[Problem]:
        return at_most(("low",), self.low, "high", self.high, "Exchange or change them.")


class Grpo(Section):
    """Offline GRPO on stored trajectories from a named RCE epoch."""

    learning_rate: float = Field(5e-6, gt=0, le=1)
    batch_queries: int = Field(1, ge=1)
    weight_decay: float = Field(0.01, ge=0, le=1)
    clip_epsilon: float = Field(0.2, gt=0, lt=1)
    top_k_first_epoch: int = Field(3, ge=2)
    top_k: int = Field(5, ge=2)
    """Number of selected trajectories, by reward: `top_k_first_epoch` in the first epoch, `top_k` later."""
    replays: bool = Field(False, exclude_if=lambda does: not does)
    """Learn from the draws of on-policy GRPO with KL_BETA 0, in the same epoch of the same seed, instead of stored
    trajectories. The arm must have that run, and it must draw selections of one length."""
    reward: Reward | None = None
    """Reward of the stored trajectories; null uses the preset's reward, as RCE does. Replayed draws keep the reward
    that they were scored with."""
    freeze_projections: bool = True
    """Train attention and layer norm only (50.1 % of the parameters at D = 512)."""
    z_clamp: float = Field(3.0, gt=0, le=100)
    """Bound on the standardised rewards of a group."""
    advantage_std_floor: float = Field(0.1, gt=0, le=10)
    """Lower bound on the spread of the selected rewards, the divisor of advantages."""
    advantage_clamp: float = Field(5.0, gt=0, le=100)
    """Bound on an advantage."""
    adaptive_kl: AdaptiveKl | None = None
    """null keeps KL_BETA fixed; `{}` adapts it with the published window."""


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


class Sft(Section):
    """Supervised learning of beam data; one epoch is `passes` over the training anchors."""

    learning_rate: float = Field(1e-4, gt=0, le=1)
    batch_queries: int = Field(64, ge=1)
    passes: int = Field(1, ge=1, le=64)
    horizon_epochs: int = Field(20, ge=1)
    """Epochs over which the learning rate rises and falls; independent of the number of epochs, so that extending a run
    keeps earlier epochs."""
    warmup_share: Share = 0.05
    """Share of the horizon's steps with a rising learning rate."""
    final_learning_rate_share: Share = 0.0
    """Learning rate at the horizon as a share of the highest, on a cosine; 1 keeps it constant."""
    weight_decay: float = Field(1e-3, ge=0, le=1)
    targets: Literal["best", "beams"] = "best"
    """Targets: a query's best beam, or all of its beams, weighted by softmax(probability / temperature)."""
    temperature: float = Field(0.1, gt=0, le=100)
    """Temperature of these weights; `beams` only."""


class Distil(Section):
    """Supervised learning of the annotations' best candidates (`baseline/oracle`), as an upper bound."""

    learning_rate: float = Field(1e-3, gt=0, le=1)
    batch_queries: int = Field(16, ge=1)
    passes: int = Field(4, ge=1, le=64)
    """Number of passes of an epoch over the train queries."""
    weight_decay: float = Field(0.01, ge=0, le=1)


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


class SweptCell(Section):
    """A combination of values."""

    arm: str
    values: dict[str, Any]
    """Validated values by key."""


class Sweep(Section):
    """Values for keys of an arm; each combination becomes a separate arm with the same seeds, compared with that arm.

    In study `lever` an arm is named by its preset, and the preset's keys count as the arm's.
    """

    name: str = Field(pattern="^[a-z][a-z0-9]*(_[a-z0-9]+)*$", max_length=32)
    arm: str
    """The arm with the values of all other keys."""
    over: dict[str, tuple[Any, ...]] = Field(min_length=1)
    """Values by dotted key of the arm."""
    how: Literal["grid", "list"] = "grid"
    """Every combination, or the first value of every key, then the second of every key and so on."""
    cells: tuple[SweptCell, ...] = ()
    """Filled when the configuration is read, including the arm itself; users do not set it."""

    @rule
    def _combinations_are_some(self) -> Iterator[Problem]:
        sizes = [len(values) for values in self.over.values()]
        number = math.prod(sizes) if self.how == "grid" else max(sizes)
        if not 0 < number <= MOST_CELLS:
            yield ("over",), f"must make 1 to {MOST_CELLS} combinations, got {number}. Name fewer values, or some."
        elif self.how == "list" and len(set(sizes)) > 1:
            yield ("over",), f"must have as many values of each key with how: list, got {sizes}. Add what is missing."
        swept = {cell.arm for cell in self.cells if cell.values.keys() == self.over.keys()}
        if self.cells and (len(swept) < len(self.cells) or self.arm not in swept):
            yield ("cells",), "must be left out, as they are filled, got others. Drop them."


def swept(sweeps: Sequence[Sweep]) -> set[str]:
    """Return the names of the arms that sweeps have added."""
    return {cell.arm for sweep in sweeps for cell in sweep.cells if cell.arm != sweep.arm}
