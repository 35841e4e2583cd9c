"""Configuration of study `intention`: GRPO of a tool-calling agent, with every value that enters an identity.

Defaults are the published production values; the embedded world overrides them in `config.yaml`. Values that the
documents do not state are marked inferred or chosen.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from lever_pipe.base.chat import Connection
from lever_pipe.base.plugins import plugin_of
from lever_pipe.base.sections import Distinct, FilePath, Problem, Section, at_most, dividing, one_of, repeated, rule
from lever_pipe.experiment.config import KlForm, Sweep, swept

RunSeed = Annotated[int, Field(ge=0, le=2**31 - 1)]
TrajectoryScore = Literal["sum", "mean", "r2g"]
TurnCredit = Literal["equalized", "r2g", "em"]
EvaluationMode = Literal["greedy", "sampled"]
Temperature = Annotated[float, Field(ge=0.01, le=10)]
ArmName = Annotated[str, Field(pattern="^[a-z][a-z0-9_]*$", max_length=64)]
WRITTEN_TASKS = "intentiongym"
"""The source of human-written tasks; the rule-based user cannot play them."""
WEIGHTS = {"kl": "kl_coefficient", "entropy": "entropy_coefficient"}
"""Weighted terms of an arm's loss, and the training metric that records a scheduled weight."""
SCHEDULES = ("schedule", *(f"{term}_schedule" for term in WEIGHTS))
"""An arm's schedule keys: the learning rate first, then the weights."""
OF_GRPO = ("clip_low", "clip_high")
"""Keys of an arm that default to the values of `grpo`."""
WORDS = "word"
TINY = "tiny Qwen3"
"""The codec of the embedded world's vocabulary, and the name of the agent that uses it."""
START_ARM = "start"
"""Name of the start policy in tables, next to the arms' names."""


class SyntheticTasks(Section):
    """The generator of the embedded tasks (`intention/sources/synthetic.py`)."""

    n_train: int = Field(380, ge=1, le=100_000)
    n_val: int = Field(40, ge=2, le=100_000)
    n_test: int = Field(200, ge=2, le=100_000)
    seed: RunSeed = 0


class TaskFiles(Section):
    """IntentionGym's own files: task objects as JSON, and the ids of the RL rows as parquet."""

    train: FilePath = "data/intention/train.parquet"
    """Training tasks: `.json`, or `.parquet` with ids of tasks in `details`."""
    val: FilePath = "data/intention/test.parquet"
    """Rows of the validation curve."""
    test: FilePath = "data/intention/all_intentions_test.json"
    """Held-out tasks; tasks of the training and validation files are removed."""
    details: tuple[FilePath, ...] = (
        "data/intention/all_intentions_train.json",
        "data/intention/all_intentions_test.json",
    )
    """JSON files with the tasks of the parquet's ids; read only if a file above is `.parquet`."""


class Tasks(Section):
    """The source of the agent's tasks."""

    source: Annotated[str, plugin_of("intention/sources")] = WRITTEN_TASKS
    """A plugin of `lever_pipe/intention/sources`."""
    synthetic: SyntheticTasks = SyntheticTasks()
    files: TaskFiles = TaskFiles()


class Endpoint(Section):
    """The model behind an OpenAI-compatible server that plays the user and the judge."""

    model: str = "Qwen3-32B"
    temperature: float | None = Field(0.0, ge=0, le=2)
    """null omits it from requests: some models accept only their own."""
    max_tokens: int = Field(2048, ge=1, le=100_000)


class AgentExecution(Section):
    """Execution of this study's stages; changes no number and never enters `spec`."""

    connection: Connection = Connection()
    served: dict[ArmName, Connection] = Field({})
    """Connections of served agents by name; an agent without an entry uses the simulated user's."""
    checkpoint_every: int = Field(5, ge=1)
    """Steps between resumable checkpoints."""


class Simulator(Section):
    """The simulated user: answers the agent's questions and judges the details that they uncover."""

    kind: Annotated[str, plugin_of("intention/simulators")] = "openai"
    """A plugin of `lever_pipe/intention/simulators`: `rule` or `openai`."""
    endpoint: Endpoint = Endpoint()
    leak_details: bool = False
    """Published bug: the reply prompt contains the hidden details."""
    silent_failures: bool = False
    """Published bug: a failed judgment silently counts as no detail covered. Such a run still stops above
    `failure_limit`; raise the limit to 1 for parity with the original."""
    count_duplicates: bool = False
    """Published bug: a detail that the judge names twice counts twice."""
    last_call_only: bool = False
    """Published bug: with several calls in one turn, only the last reward counts."""
    failure_limit: float = Field(0.05, ge=0, le=1)
    """Largest share of failed requests in a step or evaluation; above it the stage stops. Counts requests to the
    simulator or to a served agent."""


class ImportanceReward(Section):
    """Reward for uncovering one detail, by its importance."""

    low: float = Field(0.4, gt=0, le=10)
    medium: float = Field(0.7, gt=0, le=10)
    high: float = Field(1.0, gt=0, le=10)


class Environment(Section):
    """IntentionGym's reward and protocol (source: UserRL)."""

    max_turns: int = Field(16, ge=1, le=256)
    """Agent turns of an episode. The last turn is generated; its call is executed only with `execute_last_turn`."""
    execute_last_turn: bool = False
    """False as published: the last turn's call is never executed."""
    importance_reward: ImportanceReward = ImportanceReward()
    multi_detail_penalty: float = Field(0.2, ge=-10, le=10)
    """Penalty for each further detail that one question uncovers; a negative value rewards them."""
    step_penalty: float = Field(0.0, ge=0, le=10)
    reward_scale: float = Field(1.0, gt=0, le=100)
    normalise_rewards: bool = True
    """Limit a turn's reward to [0, 1]."""
    show_reward: bool = True
    """Show the agent each turn's reward, as published."""
    step_timeout_seconds: float = Field(30.0, gt=0, le=3600)
    """A longer turn ends its episode. Such episodes are counted, but excluded from learning and averages."""


class TinyQwen3(Section):
    """A small Qwen3 with random weights and a word-level vocabulary."""

    hidden: int = Field(96, ge=8, le=8192)
    layers: int = Field(2, ge=1, le=128)
    heads: int = Field(4, ge=1, le=128)
    kv_heads: int = Field(2, ge=1, le=128)
    head_dim: int = Field(24, ge=2, le=512)
    mlp: int = Field(288, ge=8, le=65_536)
    positions: int = Field(512, ge=16)

    @rule
    def _kv_heads_divide_heads(self) -> list[Problem]:
        return dividing(("kv_heads",), self.kv_heads, "heads", self.heads)


class AgentModel(Section):
    """The trained policy."""

    folder: FilePath = "models/Qwen3-8B"
    """A local folder of a Llama, Qwen2 or Qwen3; empty builds the tiny Qwen3 below. `warm_start` applies to either."""
    codec: Annotated[str, plugin_of("intention/codecs")] = "hf"
    """A plugin of `lever_pipe/intention/codecs`, which converts dialogues to tokens."""
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    max_context: int = Field(9344, ge=16)
    """Most tokens of an episode; a full episode ends. Published: 1,152 of the prompt and 8,192 of the response."""
    max_new_tokens: int = Field(1024, ge=1)
    """Most tokens of one agent turn (chosen; not published)."""
    tiny: TinyQwen3 = TinyQwen3()


class WarmStart(Section):
    """Supervised fine-tuning on demonstrations, so that GRPO starts from a policy that can call the tool."""

    steps: int = Field(400, ge=1)
    batch: int = Field(32, ge=1)
    learning_rate: float = Field(2e-3, gt=0, le=1)
    warmup_steps: int = Field(20, ge=0)
    weight_decay: float = Field(0.01, ge=0, le=1)
    seed: RunSeed = 0
    irrelevant: float = Field(0.2, ge=0, le=1)
    """Chance that the demonstrator asks for any slot of the category instead of a remaining one."""
    double: float = Field(0.3, ge=0, le=1)
    """Chance that the demonstrator adds a second slot."""
    early_stop: float = Field(0.1, ge=0, le=1)
    """Chance before each turn that the demonstrator stops."""
    folder_micro_batch: int | None = Field(None, ge=1, exclude_if=lambda value: value is None)
    """Dialogues of a backward pass when warming up a model folder; None uses the folder without a warm start."""


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


class PrimaryEndpoint(Section):
    """The quantity that compares the arms, fixed before any run: one number per decoding."""

    metric: Literal["reward", "normalised_reward"] = "normalised_reward"
    modes: Distinct[EvaluationMode] = Field(("sampled", "greedy"), min_length=1)
    """Each decoding has a separate family of tests; the first is shown where there is space for one."""
    split: Literal["val", "test"] = "test"
    checkpoint: Literal["last", "best"] = "last"


class AgentEvaluation(Section):
    """Evaluation of policies during and after training."""

    every: int = Field(5, ge=1)
    """Steps between evaluations; step 0 and the last step are always evaluated."""
    samples: int = Field(4, ge=1, le=256)
    """Sampled episodes per task, at the training temperature; the greedy curve has one."""
    test_samples: int = Field(4, ge=1, le=256)
    """The same on held-out tasks."""
    temperatures: Distinct[Temperature] = Field((), exclude_if=_is_default)
    """Further sampling temperatures for held-out tasks, each a decoding `sampled_at_TEMPERATURE`."""
    batch: int = Field(200, ge=1)
    """Episodes rolled out together on one device, in training as in evaluation; changes no number beyond rounding."""
    seed: RunSeed = 0
    """Seed of the evaluation's draws and of the resamples for intervals."""
    primary: PrimaryEndpoint = PrimaryEndpoint()

    @property
    def by_temperature(self) -> dict[str, float]:
        """Return the further temperatures by the names of their decodings."""
        return {f"sampled_at_{temperature:g}": temperature for temperature in self.temperatures}


class ServedAgent(Section):
    """An agent on an OpenAI-compatible server that plays the held-out tasks, as a row next to the arms."""

    name: ArmName
    model: str = Field(min_length=1)
    """The model's name at the server."""
    modes: Distinct[EvaluationMode] = Field(("greedy", "sampled"), min_length=1)
    """Evaluated decodings: once at temperature 0, and as often as the arms at the temperature of `grpo`."""
    max_tokens: int = Field(2048, ge=1, le=100_000)
    """Of one turn (source: UserRL's evaluation)."""
    temperature: Literal["as_arms"] | None = Field("as_arms", exclude_if=lambda value: value == "as_arms")
    """null omits it from requests in both decodings: some models accept only their own."""


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
    seeds: Distinct[RunSeed] = Field((0,), min_length=1)

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


class Verl(Section):
    """Settings of `engine: verl`: the original trainer's layout and its logs."""

    n_gpus: int = Field(3, ge=1, le=1024)
    """As published."""
    n_val: int = Field(40, ge=1)
    """Tasks of the validation file, as published; the logs do not record it."""
    logs: FilePath = "logs/verl"
    """Folder of finished runs' logs, `ARM/seed-SEED/` each."""
    version: str = "UserRL cf55a30 (verl 0.4.0.dev)"
    """The version that defines the logs' metrics; recorded with every converted number."""


class Intention(Section):
    """The whole configuration of study `intention`."""

    tasks: Tasks = Tasks()
    simulator: Simulator = Simulator()
    environment: Environment = Environment()
    model: AgentModel = AgentModel()
    warm_start: WarmStart = WarmStart()
    """Warm start of the tiny model, or of a model folder where `folder_micro_batch` is set."""
    grpo: AgentGrpo = AgentGrpo()
    evaluation: AgentEvaluation = AgentEvaluation()
    arms: tuple[AgentArm, ...] = Field(ARMS, min_length=1)
    sweeps: tuple[Sweep, ...] = ()
    """Further arms, in separate tables."""
    reference_arm: str = "baseline"
    """The arm that all others are compared with."""
    document_arm: str = Field(
        default_factory=lambda data: _document_arm(data["arms"], data["reference_arm"]),
        json_schema_extra={"default": "bundle"},  # a factory has no default in the schema; this is the usual one
    )
    """The arm to compare with the documents' KL run; by default `bundle`, else the first arm with KL, else the first
    arm that is not the reference."""
    served: tuple[ServedAgent, ...] = ()
    """Served agents that also play the held-out tasks."""
    engine: Literal["native", "verl"] = "native"
    verl: Verl = Verl()
    execution: AgentExecution = AgentExecution()

    @property
    def is_world(self) -> bool:
        """Return whether tasks and model are the embedded ones, including a tiny agent of another run."""
        # A model folder with the word codec contains a tiny agent that another run trained.
        return self.tasks.source == "synthetic" and (not self.model.folder or self.model.codec == WORDS)

    @property
    def is_taught(self) -> bool:
        """Return whether every arm starts from the warm start's output, not from the model folder itself."""
        return not self.model.folder or self.warm_start.folder_micro_batch is not None

    @property
    def model_name(self) -> str:
        """Return the agent's name; for an agent of another run, its path there, as `arm~baseline/seed~0/best`."""
        folder = self.model.folder
        location = folder.rpartition("/intention/")[2].strip("/") if "/intention/" in folder else Path(folder).name
        return f"{TINY} of {location}" if folder and self.model.codec == WORDS else location or TINY

    @property
    def scale(self) -> str:
        """Return the model and its tasks, as captions print them."""
        if self.is_world:
            return f"embedded world, {self.model_name}"
        tasks = "embedded tasks" if self.tasks.source == "synthetic" else "IntentionGym"
        return f"{self.model_name} on {tasks}"

    @property
    def written_arms(self) -> tuple[AgentArm, ...]:
        """Return the arms without those of sweeps."""
        cells = swept(self.sweeps)
        return tuple(arm for arm in self.arms if arm.name not in cells)

    def filled(self, arm: AgentArm) -> AgentArm:
        """Return an arm with its omitted values filled in from `grpo`."""
        keys = ("trajectory_score", "learning_rate")
        return arm.model_copy(update={key: getattr(arm, key) or getattr(self.grpo, key) for key in keys})

    @rule
    def _the_rule_user_knows_the_tasks(self) -> Iterator[Problem]:
        kind, source = self.simulator.kind, self.tasks.source
        if kind == "rule" and source == WRITTEN_TASKS:
            problem = f"must not be 'rule' with tasks.source={source!r}: that user plays the embedded tasks only."
            yield ("simulator", "kind"), f"{problem} Name openai, or set tasks.source to synthetic."

    @rule
    def _a_folder_that_is_warmed_up_has_demonstrations(self) -> Iterator[Problem]:
        if self.warm_start.folder_micro_batch is None:
            return
        location = ("warm_start", "folder_micro_batch")
        if (source := self.tasks.source) == WRITTEN_TASKS:
            problem = f"must be null with tasks.source={source!r}, whose tasks have no demonstrations."
            yield location, f"{problem} Drop it, or set tasks.source to synthetic."
        if self.engine == "verl":
            yield location, "must be null with engine='verl', which starts from the folder itself. Drop it."

    @rule
    def _arms_differ(self) -> Iterator[Problem]:
        names = [arm.name for arm in self.arms]
        yield from repeated(("arms",), "name", names)
        if START_ARM in names:
            location, problem = (
                ("arms", names.index(START_ARM), "name"),
                "the name of the start policy's rows. Rename it.",
            )
            yield location, f"must not be {START_ARM!r}, {problem}"
        for key in ("reference_arm", "document_arm"):
            yield from one_of((key,), getattr(self, key), names, "Name one of them or add the arm.")

    @rule
    def _served_agents_stand_next_to_the_arms(self) -> Iterator[Problem]:
        names, agents = (START_ARM, *(arm.name for arm in self.arms)), [agent.name for agent in self.served]
        yield from repeated(("served",), "name", agents)
        for index, name in enumerate(agents):
            if name in names:
                yield ("served", index, "name"), f"must differ from 'start' and the arms, got {name!r}. Rename it."
        for name in self.execution.served:
            yield from one_of(("execution", "served", name), name, agents, "Name a served agent, or drop the key.")
        if self.engine == "verl":
            problem = "must be empty with engine: verl, which evaluates no held-out tasks. Drop them."
            for key, given in (
                (("served",), self.served),
                (("evaluation", "temperatures"), self.evaluation.temperatures),
            ):
                if given:
                    yield key, problem

    @rule
    def _steps_find_prompts(self) -> list[Problem]:
        if self.tasks.source != "synthetic":
            return []
        bound, most = "intention.tasks.synthetic.n_train", self.tasks.synthetic.n_train
        return at_most(("grpo", "prompts"), self.grpo.prompts, bound, most, "Lower it or raise n_train.")
