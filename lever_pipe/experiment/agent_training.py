"""GRPO of the agent: its arms and their factors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from pydantic import Field

from lever_pipe.base.records import KlForm
from lever_pipe.base.sections import ArmName, Distinct, Problem, Section, Seed, dividing, rule
from lever_pipe.experiment.agent_evaluation import AgentEvaluation, EvaluationMode
from lever_pipe.experiment.agent_model import CODEC, PolicyConfig
from lever_pipe.experiment.environment import SIMULATOR, Environment, Simulator

TrajectoryScore = Literal["sum", "mean", "r2g"]
TurnCredit = Literal["equalized", "r2g", "em"]
WEIGHTS = {"kl": "kl_coefficient", "entropy": "entropy_coefficient"}
"""Weighted terms of an arm's loss, and the training metric that records a scheduled weight."""
SCHEDULES = ("schedule", *(f"{term}_schedule" for term in WEIGHTS))
"""An arm's schedule keys: the learning rate first, then the weights."""
OF_GRPO = ("clip_low", "clip_high")
"""Keys of an arm that default to the values of `grpo`."""
START_ARM = "start"
"""Name of the start policy in tables, next to the arms' names."""


def _is_default(value: object) -> bool:
    """Return whether an optional key has its default.

    Identities omit such keys, so that adding a key to the models does not rerun finished runs.
    """
    return value in (None, (), "k3_loss", "token", "standardised") or value == Schedule()


class Schedule(Section):
    """A learning rate (source: verl) or the weight of a loss term against completed steps."""

    kind: Literal["constant", "linear", "cosine", "rising", "adaptive"] = "constant"
    """`linear` and `cosine` fall from the peak; `rising` increases linearly to it. `adaptive`, for weights only, begins
    at the peak and follows `target` (source: Ziegler 2019)."""
    warmup_steps: int = Field(0, ge=0)
    """Steps of linear warm-up; the first step has `minimum`."""
    minimum: float = Field(0.0, ge=0, le=1)
    """Share of the peak at which warm-up and `rising` begin and the other kinds end."""
    target: float | None = Field(None, gt=0, le=100, exclude_if=_is_default)
    """`adaptive` only: target KL or entropy in nats per token."""
    horizon: int | None = Field(None, ge=1, exclude_if=_is_default)
    """`adaptive` only: number of episodes over which the weight changes by at most about a fifth."""

    @rule
    def _adaptive_ones_have_a_target(self) -> Iterator[Problem]:
        for key in ("target", "horizon"):
            if self.kind == "adaptive" and getattr(self, key) is None:
                yield (key,), "must be given with kind: adaptive, got nothing. Add it."


class Stop(Section):
    """Early stopping, when the validation curve has stopped rising."""

    metric: Literal["reward", "normalised_reward", "coverage"] = "reward"
    """The monitored metric; of equal values, the first becomes the best policy."""
    mode: EvaluationMode = "sampled"
    patience: int = Field(3, ge=1)
    """Evaluations in a row without a rise."""
    least_change: float = Field(0.0, ge=0, le=100)
    """Smallest increase over the last rise that counts as a rise."""


class AgentGrpo(Section):
    """GRPO of multi-turn episodes (source: UserRL on verl)."""

    steps: int = Field(45, ge=1, le=100_000)
    prompts: int = Field(6, ge=1)
    """Tasks of a step (inferred from the published token counts)."""
    group: int = Field(8, ge=2, le=1024)
    """Episodes of a task."""
    minibatches: int = Field(1, ge=1)
    """Optimizer updates of a step."""
    micro_batch: int = Field(8, ge=1)
    """Episodes of one backward pass on one device; changes no number beyond rounding."""
    learning_rate: float = Field(1e-6, gt=0, le=1)
    """Peak."""
    weight_decay: float = Field(0.01, ge=0, le=1)
    max_gradient_norm: float = Field(1.0, gt=0)
    clip_low: float = Field(0.2, gt=0, lt=1)
    clip_high: float = Field(0.2, gt=0, lt=10)
    dual_clip: float = Field(3.0, gt=1)
    """Bound on the loss of a token with negative advantage, in multiples of -A."""
    temperature: float = Field(1.0, gt=0, le=10)
    trajectory_score: TrajectoryScore = "mean"
    """The episode score that a group's advantages use; the original calls its mean over turns "Sum"."""
    turn_credit: TurnCredit = "equalized"
    gamma: float = Field(0.8, gt=0, le=1)
    """Discount of `r2g`."""

    @property
    def episodes(self) -> int:
        """Return the episodes of a step."""
        return self.prompts * self.group

    @rule
    def _minibatches_divide_prompts(self) -> list[Problem]:
        return dividing(("minibatches",), self.minibatches, "prompts", self.prompts)


class AgentArm(Section):
    """One combination of the factors, with its seeds."""

    name: ArmName
    kl: float = Field(0.0, ge=0, le=100)
    """Weight of the KL to the reference; the peak of `kl_schedule`."""
    kl_form: KlForm = Field("k3_loss", exclude_if=_is_default)
    """The weighted estimate: k3 as a loss (published; its gradient is the reverse KL's), k2 as a loss, or k1 as part of
    an episode's reward, outside the standardization. The last two are unbiased (source: Shah 2025)."""
    kl_schedule: Schedule = Field(Schedule(), exclude_if=_is_default)
    entropy: float = Field(0.0, ge=0, le=100)
    """Coefficient of the entropy bonus; the peak of `entropy_schedule`."""
    entropy_schedule: Schedule = Field(Schedule(), exclude_if=_is_default)
    schedule: Schedule = Schedule()
    """Schedule of the learning rate."""
    stop: Stop | None = Field(None, exclude_if=_is_default)
    """None trains to the last step."""
    trajectory_score: TrajectoryScore | None = None
    """None uses the value of `grpo`."""
    learning_rate: float | None = Field(None, gt=0, le=1)
    """None uses the value of `grpo`."""
    clip_low: float | None = Field(None, gt=0, lt=1, exclude_if=_is_default)
    """None uses the value of `grpo`; the same for `clip_high`."""
    clip_high: float | None = Field(None, gt=0, lt=10, exclude_if=_is_default)
    ratio: Literal["token", "sequence"] = Field("token", exclude_if=_is_default)
    """The clipped ratio: per token, or the geometric mean over the episode's tokens (source: Zheng 2025, GSPO)."""
    advantages: Literal["standardised", "centred"] = Field("standardised", exclude_if=_is_default)
    """Whether an episode's score minus its group's mean is divided by their deviation (source: Liu 2025, Dr. GRPO)."""
    reference_reset: int | None = Field(None, ge=1, exclude_if=_is_default)
    """Steps between replacements of the reference by the current policy (source: Liu 2025, ProRL); None keeps the start
    policy."""
    proxy: Environment | None = Field(None, exclude_if=_is_default)
    """Environment of the training episodes only, such as a reward that can be gamed: evaluations use `environment`, and
    a run's training metrics use this one. Omitted keys have their defaults; None trains with `environment`, too."""
    seeds: Distinct[Seed] = Field((0,), min_length=1)

    @rule
    def _learning_rates_follow_no_target(self) -> Iterator[Problem]:
        if self.schedule.kind == "adaptive":
            problem = (
                "must be constant, linear, cosine or rising, got 'adaptive'. Only kl_schedule and entropy_schedule"
            )
            yield ("schedule", "kind"), f"{problem} follow a target."


def _document_arm(arms: Sequence[AgentArm], reference: str) -> str:
    """Return the default arm for comparison with the documents' KL run."""
    others = [arm for arm in arms if arm.name != reference]
    first = next(arm.name for arm in (*(arm for arm in others if arm.kl), *others, *arms))
    return "bundle" if "bundle" in [arm.name for arm in arms] else first


WARM_COSINE = Schedule(kind="cosine", warmup_steps=5)
ARMS = (
    AgentArm(name="baseline", seeds=(0, 1, 2)),
    AgentArm(name="kl_only", kl=0.01, seeds=(0, 1, 2)),
    AgentArm(name="entropy_only", entropy=0.01),
    AgentArm(name="schedule_only", schedule=WARM_COSINE),
    AgentArm(name="bundle", kl=0.01, entropy=0.01, schedule=WARM_COSINE, seeds=(0, 1, 2)),
    AgentArm(name="kl_strong", kl=0.5),
)
Arms = tuple[AgentArm, ...]
"""All arms, with `trajectory_score` and `learning_rate` filled in."""


class TrainAgentConfig(Section):
    PLUGINS = (SIMULATOR, CODEC)
    arm: AgentArm
    """With one seed, and with `trajectory_score` and `learning_rate` filled in."""
    grpo: AgentGrpo
    policy: PolicyConfig
    environment: Environment
    simulator: Simulator
    evaluation: AgentEvaluation

    @property
    def seed(self) -> Seed:
        """Return the run's only seed."""
        return self.arm.seeds[0]
