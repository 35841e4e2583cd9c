"""The identity of each stage: exactly the values that may change its output, and nothing else.

The workflow writes a stage's model as canonical JSON into the one param `spec` of its rule, and the command line
parses the same model back; so a key that a stage does not read cannot rerun it.
"""

from __future__ import annotations

from typing import Literal

from lever_pipe.base.records import PolicyRef
from lever_pipe.base.sections import Section
from lever_pipe.experiment.config import (
    Decode,
    Distil,
    Emulate,
    Epoch,
    Grpo,
    KlBeta,
    OnPolicy,
    Pools,
    Prompt,
    Rce,
    Reward,
    Seed,
    Selector,
    WorldData,
)
from lever_pipe.experiment.faults import EmulatedPolicy


class Runtime(Section):
    """How a stage runs; changes no meaning and never enters `spec`."""

    device: str = "cpu"
    threads: int = 1
    ledger: str = ""
    """Folder of the answer ledger; empty for none."""
    ask_again: bool = False
    """`lvlm.ask_again`."""
    code: str = ""
    """Fingerprint of the code as the workflow planned this job; empty to compute it."""
    agent: str = ""
    """JSON of an `AgentExecution`, for the stages of study `intention`; text, so that no other stage imports it."""


class GenerateWorldConfig(Section):
    """Identity of `generate_world`."""

    world: WorldData


class PrepareExamplesConfig(Section):
    """Identity of `prepare_examples`."""

    reader: str
    train_image_name: str
    eval_image_name: str
    n_eval: int
    n_answers: int
    on_bad_image: Literal["stop", "skip"]
    on_split_overlap: Literal["stop", "count"]


class EmbedExamplesConfig(Section):
    """Identity of `embed_examples`."""

    member: str
    model_identity: str
    batch_size: int


class SamplePoolsConfig(Section):
    """Identity of `sample_pools`."""

    pools: Pools
    n_rl_queries: int
    rl_seed: Seed


class ProposeTrajectoriesConfig(Section):
    """Identity of `propose_trajectories`."""

    seed: Seed
    shots: int
    n_beams: int
    temperatures: tuple[float, ...]
    n_samples_per_temperature: int
    disjoint_samples: bool
    n_retrieval: int
    n_random: int
    similarity_scale: float


class LvlmConfig(Section):
    """What an LVLM answer depends on."""

    member: str
    model_identity: str
    dtype: Literal["float32", "bfloat16"]
    executor: Literal["packed", "padded"]
    wave_tokens: int
    kv_tokens: int
    prompt: Prompt
    decode: Decode


class GenerateRlDataConfig(Section):
    """Identity of one shard of `generate_rl_data`."""

    lvlm: LvlmConfig
    shard: int
    n_shards: int
    shots: int
    diversity_budget: int
    seed: Seed


class MergeRlDataConfig(Section):
    """Identity of `merge_rl_data`: none beyond its inputs."""


class ImportRlDataConfig(Section):
    """Identity of `import_rl_data`."""

    pool_size: int
    """K: what each pool must hold."""


class RewardGroupsConfig(Section):
    """Identity of `reward_groups`."""

    reward: Reward


class InitialiseSelectorConfig(Section):
    """Identity of `initialise_selector`."""

    preset: str
    selector: Selector
    seed: Seed


class TrainRceEpochConfig(Section):
    """Identity of `train_rce_epoch`; the number of epochs is absent, so that extending a run keeps its past."""

    preset: str
    selector: Selector
    rce: Rce
    train_share: float
    max_gradient_norm: float
    seed: Seed
    epoch: Epoch


class TrainGrpoEpochConfig(Section):
    """Identity of `train_grpo_epoch`."""

    preset: str
    selector: Selector
    grpo: Grpo
    train_share: float
    max_gradient_norm: float
    base_rce_epoch: Epoch
    kl_beta: KlBeta
    seed: Seed
    epoch: Epoch


class TrainOnPolicyEpochConfig(Section):
    """Identity of `train_on_policy_epoch`."""

    objective: Literal["on_policy", "reinforce"]
    """GRPO, or the plain score function with a baseline."""
    lvlm: LvlmConfig
    preset: str
    selector: Selector
    on_policy: OnPolicy
    train_share: float
    max_gradient_norm: float
    base_rce_epoch: Epoch
    kl_beta: KlBeta
    seed: Seed
    epoch: Epoch


class TrainDistilEpochConfig(Section):
    """Identity of `train_distil_epoch`."""

    preset: str
    selector: Selector
    distil: Distil
    train_share: float
    max_gradient_norm: float
    base_rce_epoch: Epoch
    seed: Seed
    epoch: Epoch


class MeasureRewardsConfig(Section):
    """Identity of `measure_rewards`."""

    rewards: tuple[Reward, ...]
    """Under which the groups are looked at."""
    kept: tuple[int, ...]
    """Numbers of best selections that the offline objective keeps."""
    z_clamp: float
    advantage_std_floor: float
    advantage_clamp: float


class SelectDemonstrationsConfig(Section):
    """Identity of `select_demonstrations`."""

    selector: Selector
    shots: int


class SelectBaselineConfig(Section):
    """Identity of `select_baseline`."""

    baseline: str
    shots: int
    seed: Seed


class AnswerPromptsConfig(Section):
    """Identity of `answer_prompts`."""

    lvlm: LvlmConfig
    shots: tuple[int, ...]


class CheckWorldConfig(Section):
    """Identity of `check_world`."""

    lvlm: LvlmConfig
    seed: Seed = 0
    n_stock_prompts: int = 96
    """Prompts that the stock classes answer too."""
    n_judged: int = 400
    """Probed queries from which on the bounds are judged; fewer are too noisy."""


class MeasurePoolsConfig(Section):
    """Identity of `measure_pools`: none beyond its inputs."""


class ScoreAnswersConfig(Section):
    """Identity of `score_answers`."""

    policy: PolicyRef
    samples: tuple[int, ...]
    shots: tuple[int, ...]
    n_random_subsets: int
    seed: Seed


class CollectResultsConfig(Section):
    """Identity of `collect_results`."""

    main_preset: str
    evaluated: tuple[str, ...]
    """Policies that must have every cell of samples x shots."""
    trained: tuple[str, ...]
    """Training epochs that must have metrics."""
    stepped: tuple[str, ...]
    """Those among them that must have every step."""
    samples: tuple[int, ...]
    shots: tuple[int, ...]


class TabulateDocumentsConfig(Section):
    """Identity of `tabulate_documents`."""

    main_preset: str
    data: str
    """`world` or `files`."""
    lvlm: str
    """Name of the LVLM, as the captions print it."""
    samples: tuple[int, ...]
    shots: tuple[int, ...]
    base_rce_epoch: Epoch | None = None
    """RCE epoch whose GRPO runs fill the documents' tables; None takes the latest."""
    grpo: Grpo
    """GRPO settings of the main preset, printed as the training configuration."""
    reward: Reward
    """Reward of the main preset, likewise."""
    guard: Literal["footnote", "strict"] = "footnote"


class TabulateOnPolicyConfig(Section):
    """Identity of `tabulate_on_policy`."""

    main_preset: str
    data: str
    """As in `tabulate_documents`, and so are `lvlm` and `guard`."""
    lvlm: str
    samples: tuple[int, ...]
    shots: tuple[int, ...]
    base_rce_epoch: Epoch | None = None
    """RCE epoch whose on-policy runs are shown; None takes the latest that they have."""
    guard: Literal["footnote", "strict"] = "footnote"


class CollectLineageConfig(Section):
    """Identity of `collect_lineage`."""

    presets: tuple[str, ...]
    """One for each of the `rewards`."""
    batch_sizes: tuple[int, ...]
    """How many policies share each of the `answers`."""
    scale: str
    """Which LVLM on which data, and its number of parameters."""


class MeasureAgreementConfig(Section):
    """Identity of `measure_agreement`."""

    main_preset: str
    data: str
    """As in `tabulate_documents`, and so are `lvlm` and `guard`."""
    lvlm: str
    policies: tuple[str, ...]
    """One for each of the `selections`."""
    starts: tuple[str, ...]
    """Selectors that a policy starts from and that are none of the policies themselves."""
    shots: tuple[int, ...]
    guard: Literal["footnote", "strict"]


class ComparePoliciesConfig(Section):
    """Identity of `compare_policies`."""

    main_preset: str
    data: str
    """As in `tabulate_documents`, and so is `lvlm`."""
    lvlm: str
    policies: tuple[str, ...]
    """Whose scores are compared, in the order of their files."""
    samples: tuple[int, ...]
    shots: tuple[int, ...]
    seed: Seed
    n_resamples: int = 10_000
    """Draws of questions behind an interval; an end of it is then off by about 1.5 % of its half width."""
    guard: Literal["footnote", "strict"] = "footnote"


class ClaimArm(Section):
    """An arm of study `intention` as the claims see it: what two arms may differ in."""

    name: str
    kl: float
    entropy: float
    schedule: Literal["constant", "cosine"]
    warmup_steps: int
    learning_rate: float
    trajectory_score: str


class CheckClaimsConfig(Section):
    """Identity of `check_claims`."""

    main_preset: str
    data: str
    """As in `tabulate_documents`, and so are `lvlm` and `base_rce_epoch`."""
    lvlm: str
    base_rce_epoch: Epoch | None = None
    seed: Seed
    """Stream of the simulated flat curves."""
    arms: tuple[ClaimArm, ...] = ()
    """Of study `intention`; none where the configuration holds no run of it."""
    reference_arm: str = ""
    document_arm: str = ""
    mode: Literal["greedy", "sampled"] = "sampled"
    """Which validation curve of ours is judged: that of the primary endpoint."""
    scale: str = ""
    """Which model on which tasks study `intention` has, as the captions print it."""


class PlotCurvesConfig(Section):
    """Identity of `plot_curves`."""

    main_preset: str
    data: str
    """As in `tabulate_documents`, and so is `lvlm`."""
    lvlm: str
    samples: tuple[int, ...]
    shots: tuple[int, ...]
    base_rce_epoch: Epoch | None = None
    """As in `tabulate_documents`."""


class ShownStudy(Section):
    """A study on the page: whether its world is the embedded one, and which model it runs."""

    name: Literal["lever", "intention"]
    is_world: bool
    model: str


class BuildReportConfig(Section):
    """Identity of `build_report`."""

    title: str
    language: Literal["en", "zh"] = "en"
    main_preset: str
    studies: tuple[ShownStudy, ...]


class EmulateGrpoEpochConfig(Section):
    """Identity of `emulate_grpo_epoch`."""

    training: TrainGrpoEpochConfig


class EmulateUntouchedConfig(Section):
    """Identity of `emulate_untouched`."""

    preset: str
    selector: Selector
    grpo: Grpo
    train_share: float
    base_rce_epoch: Epoch
    seed: Seed


class EmulateSelectionsConfig(Section):
    """Identity of `emulate_selections`."""

    arm: str
    selector: Selector
    shots: int
    head_seed: Seed | None
    """Stream of the head that replaces the trained one; None keeps the trained one."""
    pool_items: int | None
    """First train items that every query is offered; None offers each query its own pool."""


class ScoreEmulationConfig(Section):
    """Identity of `score_emulation`."""

    policies: tuple[EmulatedPolicy, ...]
    """One for each of the `selections`."""
    samples: tuple[int, ...]
    shots: tuple[int, ...]


class ExplainPatternsConfig(Section):
    """Identity of `explain_patterns`."""

    emulate: Emulate
    samples: tuple[int, ...]
    shots: tuple[int, ...]
    data: str
    """As in `tabulate_documents`, and so is `lvlm`."""
    lvlm: str
