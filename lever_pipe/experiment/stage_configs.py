"""The identity of each stage: exactly the values that may change its output, with their sources.

The workflow writes a stage's model as canonical JSON into its rule's param `spec`, the only param that can rerun a job,
and the command line parses it back. So a configuration key that a stage does not use cannot rerun the stage.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import not_
from typing import Annotated, Literal

from pydantic import Field

from lever_pipe.base.policy_names import PolicyName
from lever_pipe.base.records import AnswerText, Normalisation, PolicyRef, Split
from lever_pipe.base.sections import Section, Seed
from lever_pipe.experiment.config import Distil, Epoch, Grpo, KlBeta, OnPolicy, Rce, Reward, Selector, Sft, Sweep
from lever_pipe.experiment.data_config import ExampleSettings, Pools, WorldData
from lever_pipe.experiment.evaluation_config import EmulatedPolicy, EvaluatedCells, PrimaryCells, PrimaryFamily
from lever_pipe.experiment.identities import Planned, Setting, Wildcard, identity_of
from lever_pipe.experiment.lvlm_config import AnswerSettings, LvlmExecution
from lever_pipe.experiment.rl_data_config import Balance, Beams, ImportFormat, ProposalSettings


class Runtime(Section):
    """Execution of a stage; it does not change the meaning of results and never enters `spec`."""

    device: str = "cpu"
    threads: int = 1
    ledger: str = ""
    """Folder of the answer ledger; empty for none."""
    lvlm: LvlmExecution = LvlmExecution()
    code: str = ""
    """Fingerprint of the code as the workflow planned this job; empty to compute it."""
    agent: str = ""
    """JSON of an `AgentExecution`, for stages of study `intention`; text, so that other stages need not import it."""


OF_PRESET = "presets.{preset}"
"""A run's hyper-parameters."""
LVLM = "lvlms.{lvlm.engine}"
SELECTOR = ("lever.networks.{selector.network}", "lever.heads.{selector.head}")
OfSplit = Annotated[Split, Wildcard("split")]
OfSeed = Annotated[Seed, Wildcard("seed")]
OfEpoch = Annotated[Epoch, Wildcard("epoch")]
Names = tuple[str, ...]
Counts = tuple[int, ...]
MainPreset = Annotated[str, Setting("arms.0.preset")]
References = Annotated[Normalisation, Setting("evaluation.normalise_references")]
MostShots = Annotated[int, Planned("most_shots")]
Guard = Annotated[Literal["footnote", "strict"], Setting("report.guard")]
Evaluated = Annotated[Names, Planned("evaluated")]
Sweeps = Annotated[tuple[Sweep, ...], Setting("sweeps"), Field(exclude_if=not_)]


class LvlmConfig(AnswerSettings):
    """All values that an LVLM answer depends on."""

    model_identity: str


OfLvlm = Annotated[LvlmConfig, Planned("lvlm")]


@identity_of("generate_world")
class GenerateWorldConfig(Section):
    """Identity of one split's files; the other split's size has its default, so that it cannot rerun this one."""

    split: Annotated[Literal["train", "val"], Wildcard("split")]
    world: Annotated[WorldData, Planned("world_of_split")]


@identity_of("prepare_examples", "lever.datasets.{reader}", section=Planned("examples_of_split"))
class PrepareExamplesConfig(ExampleSettings):
    """Identity of one split's examples; keys of the other split have their defaults."""

    split: OfSplit


@identity_of("embed_examples", "lever.encoders.{plugin}", section=Planned("encoder"))
class EmbedExamplesConfig(Section):
    plugin: str
    model_identity: Annotated[str, Planned("encoder_identity")]
    batch_size: int


@identity_of("sample_pools", "lever.samplers.{pools.sampler}")
class SamplePoolsConfig(Section):
    split: OfSplit
    pools: Annotated[Pools, Setting("pools")]
    n_rl_queries: Annotated[int, Setting("rl_data.n_queries")]
    rl_seed: Annotated[Seed, Setting("rl_data.seed")]


@identity_of("propose_trajectories", section="rl_data")
class ProposeTrajectoriesConfig(ProposalSettings):
    """Identity of `propose_trajectories`."""


@identity_of("generate_rl_data", LVLM, section="rl_data")
class GenerateRlDataConfig(Section):
    normalise_references: References = "when_they_disagree"
    lvlm: OfLvlm
    shard: Annotated[int, Wildcard("shard")]
    n_shards: int
    shots: int
    diversity_budget: int
    seed: Seed


@identity_of("search_beams", LVLM, section="beams")
class SearchBeamsConfig(Beams):
    lvlm: OfLvlm


@identity_of("measure_pools", section="evaluation")
class MeasurePoolsConfig(Section):
    normalise_references: References = "when_they_disagree"


@identity_of("collect_evidence")
class InputsAlone(Section):
    """Identity of stages that depend on their inputs only."""


@identity_of("merge_rl_data", section="rl_data")
class MergeRlDataConfig(Section):
    balance: Balance | None = None


@identity_of("import_rl_data", section="rl_data")
class ImportRlDataConfig(Section):
    balance: Annotated[Balance | None, Planned("balance_of_import")] = None
    """None if the LVLM scores again: `merge_rl_data` then balances by the new scores."""

    import_format: ImportFormat
    pool_size: Annotated[int, Setting("pools.size")]
    """K, the size of each pool."""
    pool_seed: Annotated[Seed, Setting("pools.seed")]
    exclude_same_image: Annotated[bool, Setting("pools.exclude_same_image")]


@identity_of("reward_groups")
class RewardGroupsConfig(Section):
    reward: Annotated[Reward, Planned("reward")]


@identity_of("initialise_selector", *SELECTOR, section=OF_PRESET)
class InitialiseSelectorConfig(Section):
    preset: Annotated[str, Wildcard("preset")]
    selector: Selector
    seed: OfSeed


class TrainingConfig(InitialiseSelectorConfig):
    """Common identity of training epochs; it omits the number of epochs, so that extending a run keeps earlier ones."""

    train_share: float
    max_gradient_norm: float
    epoch: OfEpoch

    def policy(self, kind: str, *, base: int | None = None, beta: float | None = None) -> PolicyRef:
        """Return the policy of this epoch; `kind` is a key of `policy_names.TRAINED`."""
        run = PolicyName(kind=kind, preset=self.preset, base=base, beta=beta, seed=self.seed)
        return PolicyRef.of(run.at(self.epoch))


class TrainingFromBaseConfig(TrainingConfig):
    """Common identity of epochs in runs that start from an RCE epoch."""

    base_rce_epoch: Annotated[Epoch, Wildcard("base")]


@identity_of("train_sft_epoch", *SELECTOR, section=OF_PRESET)
class TrainSftEpochConfig(TrainingConfig):
    sft: Sft


@identity_of("train_rce_epoch", *SELECTOR, section=OF_PRESET)
class TrainRceEpochConfig(TrainingConfig):
    rce: Rce
    rce_from_sft_epoch: int = 0
    """The SFT epoch that the first RCE epoch starts from; 0 for the untrained selector."""


@identity_of("train_grpo_epoch", *SELECTOR, section=OF_PRESET)
class TrainGrpoEpochConfig(TrainingFromBaseConfig):
    grpo: Grpo
    kl_beta: Annotated[KlBeta, Wildcard("beta")]


@identity_of("train_on_policy_epoch", LVLM, *SELECTOR, section=OF_PRESET)
class TrainOnPolicyEpochConfig(TrainingFromBaseConfig):
    normalise_references: References = "when_they_disagree"
    objective: Annotated[Literal["on_policy", "reinforce"], Wildcard("objective")]
    """GRPO, or the plain score-function estimator with a baseline."""
    lvlm: OfLvlm
    on_policy: Annotated[OnPolicy, Planned("on_policy_settings")]
    kl_beta: Annotated[KlBeta, Wildcard("beta")]


@identity_of("train_distil_epoch", *SELECTOR, section=OF_PRESET)
class TrainDistilEpochConfig(TrainingFromBaseConfig):
    normalise_references: References = "when_they_disagree"
    distil: Distil


class ContinuedRce(Rce):
    """Continued RCE, for comparison with GRPO: RCE's temperature; GRPO's data, batch and learning rate."""

    reward: Reward | None
    freeze_projections: bool


@identity_of("train_continued_epoch", *SELECTOR, section=OF_PRESET)
class TrainContinuedEpochConfig(TrainingFromBaseConfig):
    continued: Annotated[ContinuedRce, Planned("continued_rce")]


@identity_of("measure_rewards", section="presets.{arms[0].preset}.grpo")
class MeasureRewardsConfig(Section):
    rewards: Annotated[tuple[Reward, ...], Planned("rewards")]
    """Reward functions that the stage applies to the groups."""
    selected: Annotated[Counts, Planned("selected")]
    """Values of top k in the offline objective."""
    z_clamp: float
    advantage_std_floor: float
    advantage_clamp: float


@identity_of("select_demonstrations", *SELECTOR)
class SelectDemonstrationsConfig(Section):
    selector: Annotated[Selector, Planned("selector")]
    shots: MostShots


@identity_of("select_baseline", section="baselines")
class SelectBaselineConfig(Section):
    normalise_references: References = "when_they_disagree"
    baseline: Annotated[str, Wildcard("baseline")]
    shots: MostShots
    seed: Seed


@identity_of("select_own")
class SelectOwnConfig(Section):
    own: Annotated[str, Wildcard("own")]
    module: Annotated[str, Planned("own_module")]
    """Plugin of `lever/policies` that selects; empty if a file contains the selections."""
    shots: MostShots


@identity_of("answer_prompts", LVLM, section="evaluation")
class AnswerPromptsConfig(Section):
    lvlm: OfLvlm
    shots: Counts


@identity_of("score_answers", section="evaluation")
class ScoreAnswersConfig(EvaluatedCells):
    policies: Annotated[tuple[PolicyRef, ...], Planned("policies_of_batch")]
    """Policies of the batch, one for each of the `selections`."""


@identity_of("collect_results", section="evaluation")
class CollectResultsConfig(Section):
    main_preset: MainPreset
    presets: Annotated[Names, Planned("presets")]
    """Presets of the arms, in the arms' order."""
    train_shares: Annotated[tuple[float, ...], Planned("train_shares")]
    """One for each of these presets."""


@identity_of("collect_samples", section="evaluation")
class CollectSamplesConfig(Section):
    normalise_references: References = "when_they_disagree"
    answers: Annotated[AnswerText, Setting("data.answers")] = "stemmed"
    main_preset: MainPreset
    policies: Annotated[Names, Planned("sampled")]
    """One for each of the `answers` and of `per_question`."""
    samples: Counts
    shots: Counts
    world: Annotated[WorldData | None, Planned("world")]
    """None if data come from files."""


@identity_of("answer_controls", LVLM, section="evaluation")
class AnswerControlsConfig(Section):
    normalise_references: References = "when_they_disagree"
    lvlm: OfLvlm
    policies: Annotated[Names, Planned("controlled")]
    """One for each of the `selections`."""
    questions: Annotated[int, Planned("most_samples")]
    """Number of questions: the first ones."""
    shots: MostShots


@identity_of("collect_lineage")
class CollectLineageConfig(Section):
    presets: Annotated[Names, Planned("presets")]
    """One for each of the `rewards`."""
    batch_sizes: Annotated[Counts, Planned("batch_sizes")]
    """Number of policies in each of the `answers`."""
    scale: Annotated[str, Planned("scale")]
    """The LVLM, its number of parameters, and its data."""


@identity_of("measure_drift", section="evaluation")
class MeasureDriftConfig(Section):
    policies: Evaluated
    starts: Annotated[Names, Planned("starts")]
    """Start selectors of policies that are not in `policies` themselves."""
    selectors: Annotated[Mapping[str, Selector], Planned("selectors")]
    """By preset."""
    shots: Counts


@identity_of("compare_policies", section="evaluation")
class ComparePoliciesConfig(Section):
    main_preset: MainPreset
    data: Annotated[str, Setting("data.source")]
    """`world` or `files`."""
    policies: Evaluated
    """The compared policies, in the order of their score files."""
    samples: Counts
    shots: Counts
    seed: Seed
    primary: PrimaryCells = PrimaryCells()
    families: dict[PrimaryFamily, Names] = Field({})
    sweeps: Sweeps = ()
    n_resamples: int = 10_000
    """Resamples of questions for an interval; the error of an end is then about 1.5 % of the half width."""


class EvaluatedCell(Section):
    """A policy in a setting of the grid."""

    data: str
    sampler: str
    lvlm: str
    policy: str
    training_prompts: int
    """Most prompts that the LVLM answers before the policy can select."""


@identity_of("compare_cells", section="evaluation")
class CompareCellsConfig(Section):
    evaluated: Annotated[tuple[EvaluatedCell, ...], Planned("evaluated_cells")]
    """One for each of the `per_question`."""
    reference: Annotated[str, Setting("grid.reference")]
    samples: Counts
    shots: Counts
    seed: Seed
    n_resamples: int = 10_000


class MissingCell(Section):
    """An excluded selector of a setting, and the reason."""

    data: str
    sampler: str
    lvlm: str
    preset: str
    why: str


@identity_of("build_grid", section="evaluation")
class BuildGridConfig(Section):
    title: Annotated[str, Setting("report.title")]
    samples: Counts
    shots: Counts
    missing: Annotated[tuple[MissingCell, ...], Planned("missing_cells")]
    models: Annotated[dict[str, str], Planned("grid_models")]
    """LVLM of the grid -> its model."""
    data: Annotated[dict[str, str], Planned("grid_data")]
    """Data set of the grid -> its name on the page."""


@identity_of("emulate_untouched", *SELECTOR, section="presets.{emulate.preset}")
class EmulateUntouchedConfig(Section):
    preset: Annotated[str, Setting("emulate.preset")]
    selector: Selector
    grpo: Grpo
    train_share: float
    base_rce_epoch: Annotated[Epoch, Setting("emulate.base_rce_epoch")]
    seed: Annotated[Seed, Setting("emulate.seed")]


@identity_of("emulate_selections", *SELECTOR, section="presets.{emulate.preset}")
class EmulateSelectionsConfig(Section):
    arm: Annotated[str, Wildcard("arm")]
    selector: Selector
    shots: MostShots
    head_seed: Annotated[Seed | None, Planned("head_seed")]
    """Seed of the head that replaces the trained one; None keeps the trained one."""
    pool_items: Annotated[int | None, Planned("pool_items")]
    """Size of a common pool, the first train items; None uses each query's pool."""


@identity_of("emulate_first_items", *SELECTOR)
class EmulateFirstItemsConfig(SelectDemonstrationsConfig):
    items: Annotated[int, Wildcard("offered")]
    """Size of the common pool, the first train items, that replaces each query's pool."""


@identity_of("score_emulation", section="evaluation")
class ScoreEmulationConfig(Section):
    normalise_references: References = "when_they_disagree"
    policies: Annotated[tuple[EmulatedPolicy, ...], Planned("emulated_policies")]
    """One for each of the `selections`."""
    samples: Counts
    shots: Counts
