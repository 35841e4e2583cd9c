"""The configuration of study `intention`: GRPO of a tool-calling agent, every value that bears identity.

Defaults are the published production values; the embedded world overrides them in `config.yaml`. What the documents
do not state is marked inferred or chosen.
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
"""The source of tasks that people wrote, whose details no rule knows."""
WEIGHTS = {"kl": "kl_coefficient", "entropy": "entropy_coefficient"}
"""Terms of the loss that an arm weighs, and the training metric that tells a scheduled weight."""
SCHEDULES = ("schedule", *(f"{term}_schedule" for term in WEIGHTS))
"""Keys of an arm: of the learning rate, then of the weights."""
OF_GRPO = ("clip_low", "clip_high")
"""Those that it leaves to `grpo` where it does not give them."""
WORDS = "word"
TINY = "tiny Qwen3"
"""The codec of the embedded world's vocabulary, and the agent that has it."""
START_ARM = "start"
"""Under this name the policy that every run starts from stands beside the arms."""


class SyntheticTasks(Section):
    """The generator of the embedded tasks (`intention/sources/synthetic.py`)."""

    n_train: int = Field(380, ge=1, le=100_000)
    n_val: int = Field(40, ge=2, le=100_000)
    n_test: int = Field(200, ge=2, le=100_000)
    seed: RunSeed = 0


class TaskFiles(Section):
    """IntentionGym's own files: task objects as JSON, and the ids of the RL rows as parquet."""

    train: FilePath = "data/intention/train.parquet"
    """What is trained on: `.json`, or `.parquet` whose rows name tasks that have details below."""
    val: FilePath = "data/intention/test.parquet"
    """Rows of the validation curve."""
    test: FilePath = "data/intention/all_intentions_test.json"
    """Held-out tasks; those that are trained or validated on are left out."""
    details: tuple[FilePath, ...] = (
        "data/intention/all_intentions_train.json",
        "data/intention/all_intentions_test.json",
    )
    """JSON files that hold the tasks of the parquet's ids; read only if a file above is `.parquet`."""


class Tasks(Section):
    """Where the agent's tasks come from."""

    source: Annotated[str, plugin_of("intention/sources")] = WRITTEN_TASKS
    """A plugin of `lever_pipe/intention/sources`."""
    synthetic: SyntheticTasks = SyntheticTasks()
    files: TaskFiles = TaskFiles()


class Endpoint(Section):
    """The model behind an OpenAI-compatible server that plays the user and the judge."""

    model: str = "Qwen3-32B"
    temperature: float | None = Field(0.0, ge=0, le=2)
    """null sends none: some models accept no other than their own."""
    max_tokens: int = Field(2048, ge=1, le=100_000)


class AgentExecution(Section):
    """How the stages of this study run; changes no number and never enters `spec`."""

    connection: Connection = Connection()
    served: dict[ArmName, Connection] = Field({})
    """How a served agent is reached, by its name; one that is absent is reached as the simulated user is."""
    checkpoint_every: int = Field(5, ge=1)
    """Steps between resumable checkpoints."""


class Simulator(Section):
    """Who answers the agent's questions and judges what they uncover."""

    kind: Annotated[str, plugin_of("intention/simulators")] = "openai"
    """A plugin of `lever_pipe/intention/simulators`: `rule` or `openai`."""
    endpoint: Endpoint = Endpoint()
    leak_details: bool = False
    """Published problem: the reply prompt holds the hidden details."""
    silent_failures: bool = False
    """Published problem: a failed judge counts as nothing covered, unseen. Such a run still stops above
    `failure_limit`; raise that to 1 for parity with the original."""
    count_duplicates: bool = False
    """Published problem: a detail that the judge names twice counts twice."""
    last_call_only: bool = False
    """Published problem: of several calls in one turn only the last reward is kept."""
    failure_limit: float = Field(0.05, ge=0, le=1)
    """Share of failed requests in a step or evaluation, to the simulator or to a served agent, above which it stops."""


class ImportanceReward(Section):
    """What uncovering one detail is worth, by its importance."""

    low: float = Field(0.4, gt=0, le=10)
    medium: float = Field(0.7, gt=0, le=10)
    high: float = Field(1.0, gt=0, le=10)


class Environment(Section):
    """IntentionGym's reward and protocol (source: UserRL)."""

    max_turns: int = Field(16, ge=1, le=256)
    """Agent turns of an episode; its last turn is generated, but its call is executed only with `execute_last_turn`."""
    execute_last_turn: bool = False
    """False as published: the last turn's call is never executed."""
    importance_reward: ImportanceReward = ImportanceReward()
    multi_detail_penalty: float = Field(0.2, ge=-10, le=10)
    """For each further detail that one question uncovers; below 0 it pays for them."""
    step_penalty: float = Field(0.0, ge=0, le=10)
    reward_scale: float = Field(1.0, gt=0, le=100)
    normalise_rewards: bool = True
    """Limit a turn's reward to [0, 1]."""
    show_reward: bool = True
    """Tell the agent each turn's reward, as published."""
    step_timeout_seconds: float = Field(30.0, gt=0, le=3600)
    """A turn that takes longer ends its episode, which is counted, and neither learned from nor averaged."""


class TinyQwen3(Section):
    """A small Qwen3 that is built with random weights and a word-level vocabulary."""

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
    """The policy that is trained."""

    folder: FilePath = "models/Qwen3-8B"
    """A local folder of a Llama, Qwen2 or Qwen3; empty builds the tiny Qwen3 below. `warm_start` warms up either."""
    codec: Annotated[str, plugin_of("intention/codecs")] = "hf"
    """A plugin of `lever_pipe/intention/codecs`: how dialogues become tokens."""
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    max_context: int = Field(9344, ge=16)
    """Tokens of an episode; one that is full ends. Published: 1,152 of the prompt and 8,192 of the response."""
    max_new_tokens: int = Field(1024, ge=1)
    """Tokens of one agent turn (chosen; not published)."""
    tiny: TinyQwen3 = TinyQwen3()


class WarmStart(Section):
    """Supervised fine-tuning on demonstrations, so that GRPO starts from a policy that calls the tool at all."""

    steps: int = Field(400, ge=1)
    batch: int = Field(32, ge=1)
    learning_rate: float = Field(2e-3, gt=0, le=1)
    warmup_steps: int = Field(20, ge=0)
    weight_decay: float = Field(0.01, ge=0, le=1)
    seed: RunSeed = 0
    irrelevant: float = Field(0.2, ge=0, le=1)
    """Chance that the demonstrator asks for any slot of the category instead of a remaining one."""
    double: float = Field(0.3, ge=0, le=1)
    """Chance that it adds a second slot."""
    early_stop: float = Field(0.1, ge=0, le=1)
    """Chance before each turn that it stops."""
    folder_micro_batch: int | None = Field(None, ge=1, exclude_if=lambda value: value is None)
    """Warms up a model folder, too, with so many dialogues a backward pass; None takes a folder as it is."""


def _is_default(value: object) -> bool:
    """Return whether a key that identities leave out is at its default."""
    return value in (None, (), "k3_loss", "token", "standardised") or value == Schedule()


class Schedule(Section):
    """A learning rate (source: verl) or the weight of a loss term against completed steps."""

    kind: Literal["constant", "linear", "cosine", "rising", "adaptive"] = "constant"
    """`linear` and `cosine` fall from the peak, `rising` goes straight up to it. `adaptive`, for weights alone, begins
    there and follows `target` (source: Ziegler 2019)."""
    warmup_steps: int = Field(0, ge=0)
    """Steps of linear warm-up; the first of them has `minimum`."""
    minimum: float = Field(0.0, ge=0, le=1)
    """Share of the peak at which warm-up and rise begin and the others end."""
    target: float | None = Field(None, gt=0, le=100, exclude_if=_is_default)
    """`adaptive` only: the KL or entropy in nats a token that the weight is to hold."""
    horizon: int | None = Field(None, ge=1, exclude_if=_is_default)
    """`adaptive` only: episodes in which the weight moves by about a fifth at most."""

    @rule
    def _adaptive_ones_have_a_target(self) -> Iterator[Problem]:
        for key in ("target", "horizon"):
            if self.kind == "adaptive" and getattr(self, key) is None:
                yield (key,), "must be given with kind: adaptive, got nothing. Add it."


class Stop(Section):
    """When a run ends before its last step: its validation curve has stopped rising."""

    metric: Literal["reward", "normalised_reward", "coverage"] = "reward"
    """What is looked at; of equal values the first is kept as the best policy."""
    mode: EvaluationMode = "sampled"
    patience: int = Field(3, ge=1)
    """Evaluations in a row without a rise."""
    least_change: float = Field(0.0, ge=0, le=100)
    """A rise is more than this above the last rise."""


class AgentGrpo(Section):
    """GRPO of multi-turn episodes (source: UserRL on verl)."""

    steps: int = Field(45, ge=1, le=100_000)
    prompts: int = Field(6, ge=1)
    """Tasks of a step (inferred from the published token counts)."""
    group: int = Field(8, ge=2, le=1024)
    """Episodes of a task."""
    minibatches: int = Field(1, ge=1)
    """Optimiser updates of a step."""
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
    """What a group is compared by; the original calls its mean over turns "Sum"."""
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
    """What the arms are compared by, fixed before any run: one number a decoding."""

    metric: Literal["reward", "normalised_reward"] = "normalised_reward"
    modes: Distinct[EvaluationMode] = Field(("sampled", "greedy"), min_length=1)
    """Each with a family of tests of its own; the first stands where there is room for one."""
    split: Literal["val", "test"] = "test"
    checkpoint: Literal["last", "best"] = "last"


class AgentEvaluation(Section):
    """How policies are evaluated during and after training."""

    every: int = Field(5, ge=1)
    """Steps between evaluations; step 0 and the last step are always evaluated."""
    samples: int = Field(4, ge=1, le=256)
    """Sampled episodes of a task, at the training temperature; the greedy curve has one."""
    test_samples: int = Field(4, ge=1, le=256)
    """The same on held-out tasks."""
    temperatures: Distinct[Temperature] = Field((), exclude_if=_is_default)
    """Further temperatures that held-out tasks are sampled at, each a decoding `sampled_at_TEMPERATURE`."""
    batch: int = Field(200, ge=1)
    """Episodes rolled out together on one device, in training as in evaluation; changes no number beyond rounding."""
    seed: RunSeed = 0
    """Stream of the evaluation's draws and of the resamples behind intervals."""
    primary: PrimaryEndpoint = PrimaryEndpoint()

    @property
    def by_temperature(self) -> dict[str, float]:
        """Return the further temperatures by the names of their decodings."""
        return {f"sampled_at_{temperature:g}": temperature for temperature in self.temperatures}


class ServedAgent(Section):
    """An agent behind an OpenAI-compatible server that plays the held-out tasks, a row beside the arms."""

    name: ArmName
    model: str = Field(min_length=1)
    """What the server calls it."""
    modes: Distinct[EvaluationMode] = Field(("greedy", "sampled"), min_length=1)
    """Decodings that are evaluated: at temperature 0 once, at that of `grpo` as often as the arms."""
    max_tokens: int = Field(2048, ge=1, le=100_000)
    """Of one turn (source: UserRL's evaluation)."""
    temperature: Literal["as_arms"] | None = Field("as_arms", exclude_if=lambda value: value == "as_arms")
    """null sends none, in both decodings: some models accept no other than their own."""


class AgentArm(Section):
    """One setting of the factors, with its seeds."""

    name: ArmName
    kl: float = Field(0.0, ge=0, le=100)
    """Weight of the KL to the reference; the peak of `kl_schedule`."""
    kl_form: KlForm = Field("k3_loss", exclude_if=_is_default)
    """What it weighs: k3 as a loss (published; its gradient is that of the KL the other way round), k2 as a loss, or
    k1 as part of an episode's reward, outside the standardisation. The last two have no bias (source: Shah 2025)."""
    kl_schedule: Schedule = Field(Schedule(), exclude_if=_is_default)
    entropy: float = Field(0.0, ge=0, le=100)
    """Coefficient of the entropy bonus; the peak of `entropy_schedule`."""
    entropy_schedule: Schedule = Field(Schedule(), exclude_if=_is_default)
    schedule: Schedule = Schedule()
    """Of the learning rate."""
    stop: Stop | None = Field(None, exclude_if=_is_default)
    """None goes on to the last step."""
    trajectory_score: TrajectoryScore | None = None
    """None takes that of `grpo`."""
    learning_rate: float | None = Field(None, gt=0, le=1)
    """None takes that of `grpo`."""
    clip_low: float | None = Field(None, gt=0, lt=1, exclude_if=_is_default)
    """None takes that of `grpo`, as the next."""
    clip_high: float | None = Field(None, gt=0, lt=10, exclude_if=_is_default)
    ratio: Literal["token", "sequence"] = Field("token", exclude_if=_is_default)
    """What is clipped: a token's ratio, or the geometric mean over its episode's tokens (source: Zheng 2025, GSPO)."""
    advantages: Literal["standardised", "centred"] = Field("standardised", exclude_if=_is_default)
    """Whether an episode's score minus its group's mean is divided by their deviation (source: Liu 2025, Dr. GRPO)."""
    reference_reset: int | None = Field(None, ge=1, exclude_if=_is_default)
    """Steps after which the policy as it is becomes the reference, again and again (source: Liu 2025, ProRL); None
    keeps the start policy."""
    proxy: Environment | None = Field(None, exclude_if=_is_default)
    """Rules of the training episodes alone, such as a reward that can be gamed: evaluations go by `environment`, and a
    run's training metrics by these. What it leaves out has its default; None trains by `environment`, too."""
    seeds: Distinct[RunSeed] = Field((0,), min_length=1)

    @rule
    def _learning_rates_follow_no_target(self) -> Iterator[Problem]:
        if self.schedule.kind == "adaptive":
            problem = (
                "must be constant, linear, cosine or rising, got 'adaptive'. Only kl_schedule and entropy_schedule"
            )
            yield ("schedule", "kind"), f"{problem} follow a target."


def _document_arm(arms: Sequence[AgentArm], reference: str) -> str:
    """Return the arm that stands beside the documents' KL run where none is named."""
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
    """What `engine: verl` needs: the original trainer's place and the logs that it wrote."""

    n_gpus: int = Field(3, ge=1, le=1024)
    """As published."""
    n_val: int = Field(40, ge=1)
    """Tasks of the validation file, as published; the logs do not say."""
    logs: FilePath = "logs/verl"
    """Folder of finished runs' logs, `ARM/seed-SEED/` each."""
    version: str = "UserRL cf55a30 (verl 0.4.0.dev)"
    """Whose metric definitions the logs follow; written beside every converted number."""


class Intention(Section):
    """The whole configuration of study `intention`."""

    tasks: Tasks = Tasks()
    simulator: Simulator = Simulator()
    environment: Environment = Environment()
    model: AgentModel = AgentModel()
    warm_start: WarmStart = WarmStart()
    """Of the tiny model; of a model folder where `folder_micro_batch` says so."""
    grpo: AgentGrpo = AgentGrpo()
    evaluation: AgentEvaluation = AgentEvaluation()
    arms: tuple[AgentArm, ...] = Field(ARMS, min_length=1)
    sweeps: tuple[Sweep, ...] = ()
    """Further arms, which stand in tables of their own."""
    reference_arm: str = "baseline"
    """The arm that every other one is compared with."""
    document_arm: str = Field(
        default_factory=lambda data: _document_arm(data["arms"], data["reference_arm"]),
        json_schema_extra={"default": "bundle"},
    )
    """The arm that stands beside the documents' KL run; by default `bundle`, or where no arm is called so the first one
    with KL, else the first that is not the reference."""
    served: tuple[ServedAgent, ...] = ()
    """Agents behind servers that play the held-out tasks, too."""
    engine: Literal["native", "verl"] = "native"
    verl: Verl = Verl()
    execution: AgentExecution = AgentExecution()

    @property
    def is_world(self) -> bool:
        """Return whether tasks and model are the embedded ones; a folder of words holds a tiny agent of another run."""
        return self.tasks.source == "synthetic" and (not self.model.folder or self.model.codec == WORDS)

    @property
    def is_taught(self) -> bool:
        """Return whether every arm starts from what the warm start makes, not from the model folder itself."""
        return not self.model.folder or self.warm_start.folder_micro_batch is not None

    @property
    def model_name(self) -> str:
        """Return the agent's name; one of another run has its place there, as `arm~baseline/seed~0/best`."""
        folder = self.model.folder
        location = folder.rpartition("/intention/")[2].strip("/") if "/intention/" in folder else Path(folder).name
        return f"{TINY} of {location}" if folder and self.model.codec == WORDS else location or TINY

    @property
    def scale(self) -> str:
        """Return which model runs on which tasks, as captions print it."""
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
        """Return an arm with the settings that it leaves to `grpo` filled in."""
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
            problem = f"must be null with tasks.source={source!r}, whose tasks nobody demonstrates."
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
