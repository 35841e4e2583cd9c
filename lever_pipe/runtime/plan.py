"""Derive the workflow from the experiment: the policies, and the identity of every job.

The Snakefile calls these functions; tests and notebooks may too. They read no files except model folders, whose digests
are part of the identity of the stages that load them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path, PurePath
from typing import Any

from lever_pipe.base.model_folders import model_type
from lever_pipe.base.plugins import available
from lever_pipe.base.policy_names import EMULATION, FIRST_ITEMS, OWN, TRANSFER, PolicyName
from lever_pipe.base.provenance import canonical_json
from lever_pipe.base.records import PolicyRef
from lever_pipe.base.sections import Section
from lever_pipe.base.storage import header_of
from lever_pipe.experiment import collected  # noqa: F401 - declares identities
from lever_pipe.experiment.agent_tasks import WRITTEN_TASKS
from lever_pipe.experiment.arms import ArmSettings
from lever_pipe.experiment.data import Data, WorldData
from lever_pipe.experiment.emulation import HEAD, POOL
from lever_pipe.experiment.examples import EncoderSettings, ExampleSettings
from lever_pipe.experiment.grid import EvaluatedCell, GridArm, GridBaselines, GridSetting, MissingCell
from lever_pipe.experiment.identities import IDENTITIES, Planned, Setting, Wildcard
from lever_pipe.experiment.lvlm import AUTO, AnswerSettings, LvlmConfig, LvlmSettings
from lever_pipe.experiment.on_policy import OnPolicy
from lever_pipe.experiment.rce import ContinuedRce
from lever_pipe.experiment.report import ShownAgents, ShownStudy
from lever_pipe.experiment.reward import Reward
from lever_pipe.experiment.selections import BASELINES
from lever_pipe.experiment.studies import Experiment
from lever_pipe.runtime import agent_plan, grid_plan, snapshot

Wildcards = Mapping[str, str]
Planner = Callable[[Experiment, Wildcards], Any]

EMBEDDED_PARAMETERS = 50_000_000
"""A larger model requests a GPU."""
EMBEDDED_MODELS = "resources/world"
EXTRA_OBJECTIVE_BETAS = {"reinforce": 0.0, "distil": None, "continued": None}
"""Kinds of on-policy runs with another objective than GRPO -> KL_BETA in their names."""
GRPO_IN_CONTINUED = {"learning_rate", "batch_queries", "weight_decay", "freeze_projections", "reward"}
"""Settings that continued RCE copies from the preset's offline GRPO."""
RANDOM_BASELINES = ("random", "random_all")
"""Baselines with several random draws."""


def ledger_folder(experiment: Experiment) -> str:
    """Return the folder of LVLM answers: in the store, so that it outlives `results`; without a store in `results`."""
    store = experiment.store
    return f"{experiment.results}/ledger" if store is None else str(Path(store.folder).expanduser() / "ledger")


def baselines(experiment: Experiment) -> list[str]:
    """Return the names of all baselines."""
    draws = range(experiment.baselines.n_random_draws)
    kinds = experiment.baselines.names if isinstance(experiment.baselines, GridBaselines) else BASELINES
    return [
        full
        for name in kinds
        for full in ([f"{name}-{draw}" for draw in draws] if name in RANDOM_BASELINES else [name])
    ]


def sft_policies(arm: ArmSettings, seed: int, *, first: int = 1) -> list[str]:
    """Return the SFT epochs of one seed from `first` on."""
    run = PolicyName(kind="sft", preset=arm.preset, seed=seed)
    return [str(run.at(epoch)) for epoch in range(max(1, first), arm.sft_epochs + 1)]


def started_from(experiment: Experiment, preset: str) -> list[str]:
    """Return the file with a preset's initial selector; an empty list if it is the untrained one."""
    start = experiment.presets[preset].start_from
    if not start:
        return []
    return [start if start.endswith(".safetensors") else f"{start}/selector.safetensors"]


def _evaluated_epochs(arm: ArmSettings, last: int) -> range:
    """Return all epochs up to the last; in the grid, only the last."""
    return range(last if isinstance(arm, GridArm) else 1, last + 1)


def grpo_policies(arm: ArmSettings, seed: int) -> list[str]:
    """Return the evaluated GRPO epochs of one seed, for every base epoch and beta, those of long runs last."""
    short = [(beta, epoch) for beta in arm.kl_betas for epoch in _evaluated_epochs(arm, arm.grpo_epochs)]
    is_long = seed in arm.long_seeds
    long = [(beta, epoch) for beta in arm.long_kl_betas for epoch in arm.long_evaluated if is_long]
    return [
        str(PolicyName(kind="grpo", preset=arm.preset, base=base, beta=beta, seed=seed, epoch=epoch))
        for base in arm.base_rce_epochs
        for beta, epoch in dict.fromkeys([*short, *long])  # a long run's epoch may be in both lists
    ]


def on_policy_policies(arm: ArmSettings, seed: int) -> list[str]:
    """Return the evaluated on-policy epochs of one seed, and those of extra objectives."""
    runs = arm.on_policy
    if runs is None or seed not in runs.seeds:
        return []
    on_policy = [("on_policy", beta) for beta in runs.kl_betas]
    extra_objectives = [(objective, EXTRA_OBJECTIVE_BETAS[objective]) for objective in runs.extra_objectives]
    return [
        str(PolicyName(kind=kind, preset=arm.preset, base=base, beta=beta, seed=seed, epoch=epoch))
        for base in arm.base_rce_epochs
        for kind, beta in [*on_policy, *extra_objectives]
        for epoch in runs.evaluated or _evaluated_epochs(arm, runs.epochs)
    ]


def long_runs(arm: ArmSettings) -> list[str]:
    """Return every epoch of the training-curve runs, evaluated or not."""
    return [
        str(PolicyName(kind="grpo", preset=arm.preset, base=base, beta=beta, seed=seed, epoch=epoch))
        for base in arm.base_rce_epochs
        for beta in arm.long_kl_betas
        for seed in arm.long_seeds
        for epoch in range(1, arm.long_epochs + 1)
    ]


def batches(experiment: Experiment) -> list[str]:
    """Return the answer batches: one for the baselines, one for each arm and seed."""
    return ["baseline", *_trained_batches(experiment)]


def _trained_batches(experiment: Experiment) -> dict[str, tuple[ArmSettings, int]]:
    return {
        PolicyName(kind="init", preset=arm.preset, seed=seed).batch: (arm, seed)
        for arm in experiment.arms
        for seed in arm.seeds
    }


def policies_of(experiment: Experiment, batch: str) -> list[str]:
    """Return the policies of one answer batch."""
    if batch == "baseline":
        return [f"baseline/{name}" for name in baselines(experiment)]
    if batch == EMULATION:
        return emulated(experiment)
    if batch == OWN:
        return [f"{OWN}/{name}" for name in experiment.grid.policies]
    arm, seed = _trained_batches(experiment)[batch]
    last_sft, run = sft_policies(arm, seed, first=arm.sft_epochs), PolicyName(kind="rce", preset=arm.preset, seed=seed)
    rce = [str(run.at(epoch)) for epoch in _evaluated_epochs(arm, arm.rce_epochs)]
    return [*last_sft, *rce, *grpo_policies(arm, seed), *on_policy_policies(arm, seed)]


def transferred(experiment: Experiment, setting: GridSetting) -> list[str]:
    """Return the selectors of other data sets and LVLMs that a setting evaluates, without those excluded in it."""
    grid = experiment.grid
    axes = ((setting.data, grid.data), (setting.lvlm, grid.lvlms))
    origins = [
        name for at, axis in axes for name in grid.transfer if at in grid.transfer and name in axis and name != at
    ]
    homes = [(name, grid_plan.folders_of(grid_plan.home_of(grid, setting, name))) for name in origins]
    names = [(o, PolicyName.parse(name)) for o, home in homes for name in evaluated(grid_plan.at(experiment, home))]
    presets = experiment.presets.keys() - {arm.preset for arm in grid.arms if grid.excluded(setting, arm.preset)}
    return [str(replace(name, origin=origin)) for origin, name in names if name.preset in presets]


def policies_at(experiment: Experiment, setting: GridSetting) -> list[str]:
    """Return every policy that a setting of the grid evaluates."""
    here = grid_plan.at(experiment, grid_plan.folders_of(setting))
    others = [name for batch in (OWN, FIRST_ITEMS, TRANSFER) for name in policies_in(experiment, setting, batch)]
    return [*evaluated(here), *others]


def policies_in(experiment: Experiment, setting: GridSetting, batch: str) -> list[str]:
    """Return the policies of one answer batch of a setting of the grid."""
    if batch == TRANSFER:
        return transferred(experiment, setting)
    here = grid_plan.at(experiment, grid_plan.folders_of(setting))
    if batch != FIRST_ITEMS:
        return policies_of(here, batch)
    items, names = experiment.grid.first_items, map(PolicyName.parse, evaluated(here))
    return [str(replace(name, items=items)) for name in names if items and name.preset in experiment.presets]


def policies_of_batch(experiment: Experiment, wildcards: Wildcards) -> list[str]:
    """Return the policies of a job's answer batch."""
    if wildcards.get("data", grid_plan.DOCUMENTS["data"]) == grid_plan.DOCUMENTS["data"]:
        return policies_of(experiment, wildcards["batch"])
    return policies_in(experiment, grid_plan.setting_of(wildcards), wildcards["batch"])


def evaluated_cells(experiment: Experiment) -> list[EvaluatedCell]:
    """Return every run of every policy in every setting of the grid."""
    return [
        EvaluatedCell(**setting._asdict(), policy=policy, training_prompts=training_prompts(seen_at_home, policy))
        for setting in experiment.grid.settings
        for policy in policies_at(experiment, setting)
        for home in [grid_plan.home_of(experiment.grid, setting, PolicyName.parse(policy).origin)]
        for seen_at_home in [grid_plan.at(experiment, grid_plan.folders_of(home))]
    ]


def training_prompts(experiment: Experiment, policy: str) -> int:
    """Return the maximum number of prompts that the LVLM answers to train a policy."""
    name, rl = PolicyName.parse(policy), experiment.rl_data
    if not name.preset:
        return 0
    stored, preset = rl.n_queries * (rl.per_query + rl.diversity_budget), experiment.presets[name.preset]
    searched = sum(prompts for _, prompts in experiment.beams.prompts(experiment.pools.size))
    if name.kind == "sft":  # SFT learns from beam search only, the others from the RL data
        return searched
    stored += searched if preset.rce_from_sft_epoch else 0
    # On-policy runs, and offline GRPO that replays their samples, need more answers in each epoch.
    if name.mode != "on_policy" and not (name.kind == "grpo" and preset.grpo.replays):
        return stored
    queries = preset.on_policy.queries_of(int(preset.train_share * rl.n_queries))
    return stored + queries * preset.on_policy.group * (name.epoch or 0)


def missing_cells(experiment: Experiment) -> list[MissingCell]:
    """Return the selectors that do not run in a setting."""
    grid = experiment.grid
    return [
        MissingCell(**setting._asdict(), preset=arm.preset, why=grid.excluded(setting, arm.preset))
        for setting in grid.combinations
        for arm in grid.arms
        if grid.excluded(setting, arm.preset)
    ]


def batch_of(policy: str) -> str:
    """Return the answer batch of a policy."""
    return PolicyName.parse(policy).batch


def evaluated(experiment: Experiment) -> list[str]:
    """Return every evaluated policy once."""
    return [policy for batch in batches(experiment) for policy in policies_of(experiment, batch)]


def sampled(experiment: Experiment) -> list[str]:
    """Return the policies whose samples `collect_samples` collects.

    These are the baselines, trained policies after the last epoch that all evaluated runs of their preset and kind
    share, and policies from which an evaluated run starts.
    """
    names = {name: PolicyName.parse(name) for name in evaluated(experiment)}
    latest = {replace(name, epoch=None): name.epoch or 0 for name in names.values()}  # a run's epochs rise
    common: dict[tuple[str, str], int] = {}
    for run, epoch in latest.items():
        common[run.preset, run.kind] = min(epoch, common.get((run.preset, run.kind), epoch))
    starts = {name.start for name in names.values() if name.base is not None}
    return [
        text for text, name in names.items() if name in starts or (name.epoch or 0) == common[name.preset, name.kind]
    ]


def controlled(experiment: Experiment) -> list[str]:
    """Return one draw of each baseline with demonstrations, and one run of each kind of the main preset.

    A run has the arm's first seed and the smallest KL_BETA of its kind.
    """
    main = experiment.arms[0]
    names = [n for n in map(PolicyName.parse, sampled(experiment)) if n.preset in ("", main.preset)]
    least = {kind: min(n.beta or 0.0 for n in names if n.kind == kind) for kind in {n.kind for n in names}}
    return [
        str(name)
        for name in names
        if name.variant != "zero_shot" and name.draw in (None, 0)
        if name.seed in (None, main.seeds[0]) and (name.beta or 0.0) == least[name.kind]
    ]


def trained(experiment: Experiment) -> list[str]:
    """Return every training epoch of every run once, evaluated or not."""
    names = [policy for policy in evaluated(experiment) if not policy.startswith("baseline/")]
    for arm in experiment.arms:
        names += [policy for seed in arm.seeds for policy in sft_policies(arm, seed)] + long_runs(arm)
    return list(dict.fromkeys(names))


def stepped(experiment: Experiment) -> list[str]:
    """Return every training epoch that logs its steps: those of on-policy runs."""
    return [policy for policy in trained(experiment) if PolicyName.parse(policy).mode == "on_policy"]


def emulated(experiment: Experiment, *arms: str) -> list[str]:
    """Return the emulated policies of these arms, by default of all; `evaluated` does not contain them."""
    if experiment.emulate is None:
        return []
    return [policy.name for policy in experiment.emulate.policies(*arms)]


def starts(experiment: Experiment) -> list[str]:
    """Return the selectors that evaluated policies start from and that are not evaluated themselves."""
    names = [name for name in evaluated(experiment) if not name.startswith("baseline/")]
    begun = dict.fromkeys(str(PolicyName.parse(name).start) for name in names)
    return [name for name in begun if name not in names]


def stage_config(experiment: Experiment, stage: str, wildcards: Wildcards) -> Section:
    """Return the identity of one job: the stage's config for these wildcards.

    Raises:
        KeyError: unknown stage, or a wildcard is missing.
    """
    experiment, declared = grid_plan.at(experiment, wildcards), IDENTITIES[stage]
    keys = {**vars(experiment), **wildcards}

    def taken(source: Setting | Wildcard | Planned) -> Any:
        match source:
            case Wildcard(name):
                return wildcards[name]
            case Planned(name):
                return PLANNED[name](experiment, wildcards)
            case Setting(path):
                return _at(experiment, path.format_map(keys))

    section = taken(declared.section) if declared.section else None
    values = dict(section) if isinstance(section, Mapping) else {}
    for name, field in declared.config.model_fields.items():
        source = next((source for source in field.metadata if isinstance(source, Setting | Wildcard | Planned)), None)
        if source is not None:
            values[name] = taken(source)
        elif hasattr(section, name):
            values[name] = getattr(section, name)
    return declared.config.model_validate(values)


def _at(value: Any, path: str) -> Any:
    for key in path.split("."):
        value = value[key] if isinstance(value, dict) else value[int(key)] if key.isdigit() else getattr(value, key)
    return value


def spec_of(experiment: Experiment, stage: str, wildcards: Wildcards) -> str:
    """Return a rule's identity param: canonical JSON of config and code fingerprint."""
    config = stage_config(experiment, stage, wildcards)
    code = snapshot.code_of(stage, plugins_of(config)).fingerprint
    return canonical_json({"code": code, "config": config.model_dump(mode="json")})


def plugins_of(config: Section) -> tuple[str, ...]:
    """Return the modules that a stage's config selects by name, as `lever.samplers.uniform`."""
    declared = next((identity for identity in IDENTITIES.values() if identity.config is type(config)), None)
    modules = [name.format_map(vars(config)) for name in declared.plugins] if declared else []
    on_policy = getattr(config, "on_policy", None)
    rewards = [getattr(config, "reward", None), getattr(on_policy, "reward", None), *getattr(config, "rewards", ())]
    modes = [reward.mode for reward in rewards if reward]
    reward_plugins = available("lever/rewards") if modes else ()  # the other modes are built in
    module = getattr(config, "module", "")
    modules += [f"lever.policies.{module}"] if module else []
    return (*modules, *(f"lever.rewards.{mode}" for mode in modes if mode in reward_plugins))


def lvlm_config(experiment: Experiment) -> LvlmConfig:
    """Return the settings that the LVLM's answers depend on."""
    values = experiment.lvlm.model_dump(include=set(AnswerSettings.model_fields))
    values["engine"] = lvlm_engine(experiment.lvlm)
    model = experiment.lvlm.model
    # A served model has no folder to digest, so its name is its identity.
    identity = model if experiment.lvlm.is_served else agent_plan.identity_of_model(model)
    return LvlmConfig(model_identity=identity, **values)


def asks_vllm(experiment: Experiment) -> bool:
    """Return whether any of the experiment's LVLMs runs in vLLM."""
    return "vllm" in map(lvlm_engine, (experiment.lvlm, *experiment.grid.lvlms.values()))


def lvlm_engine(lvlm: LvlmSettings) -> str:
    """Return the LVLM's plugin: the configured one, else `vllm` for a large model, else that of the model's family.

    Without vLLM, or without a plugin of the family, the model library answers (`hf`).
    """
    if lvlm.engine != AUTO:
        return lvlm.engine
    if is_large(lvlm.model):
        return "vllm" if find_spec("vllm") else "hf"
    kind = model_type(Path(lvlm.model))
    return kind if kind in available("lvlms") else "hf"


def world_of_split(experiment: Experiment, wildcards: Wildcards) -> WorldData:
    """Return the settings of one split of the embedded world, with those of the other split at their defaults."""
    unread = ("n_eval",) if wildcards["split"] == "train" else ("n_train", "near_duplicates")
    return agent_plan.at_defaults(experiment.data.world, *unread)


def examples_of_split(experiment: Experiment, wildcards: Wildcards) -> ExampleSettings:
    """Return the settings of one split's examples, with those of the other split at their defaults."""
    settings = ExampleSettings(**experiment.data.model_dump(include=set(ExampleSettings.model_fields)))
    of_queries = ("n_eval", "eval_subset", "eval_seed", "eval_image_name", "on_split_overlap")
    return agent_plan.at_defaults(settings, *(of_queries if wildcards["split"] == "train" else ("train_image_name",)))


def encoder_of(experiment: Experiment, wildcards: Wildcards) -> EncoderSettings:
    """Return the encoder of a file of embeddings: for pool embeddings, the pools' encoder if configured."""
    encoder = experiment.pools.encoder if wildcards.get("embedded") == "pool_embeddings" else None
    return encoder or experiment.encoder


def on_policy_settings(experiment: Experiment, wildcards: Wildcards) -> OnPolicy:
    """Return a run's on-policy settings, with those that it does not read at their defaults."""
    settings = experiment.presets[wildcards["preset"]].on_policy
    if wildcards["objective"] == "reinforce":
        # REINFORCE takes one step per batch of samples, so smaller batches give it as many steps as GRPO. Its baseline
        # comes from the batch and contains no sample of the same query.
        smaller = max(1, settings.batch_queries // settings.updates)
        update = {"updates": 1, "batch_queries": smaller, "advantages": "batch"}
        settings = agent_plan.at_defaults(settings, "clip_epsilon").model_copy(update=update)
    if settings.advantages != "standardised":
        settings = agent_plan.at_defaults(settings, "advantage_std_floor", "advantage_clamp")
    return settings


def continued_rce(experiment: Experiment, wildcards: Wildcards) -> ContinuedRce:
    """Return continued RCE: the end of RCE's schedule, with data, batch, steps and learning rate of offline GRPO."""
    preset = experiment.presets[wildcards["preset"]]
    shared = preset.grpo.model_dump(include=GRPO_IN_CONTINUED)
    constant = {"final_learning_rate_share": 1.0, "temperature_start": preset.rce.temperature_end, "passes": 1}
    return ContinuedRce(**preset.rce.model_dump() | shared | constant | {"horizon_epochs": 1})


def grpo_groups(experiment: Experiment, preset: str) -> str:
    """Return the name of the rewarded groups for offline GRPO."""
    return "groups" if experiment.presets[preset].grpo.reward is None else "grpo_groups"


def reward_of(experiment: Experiment, wildcards: Wildcards) -> Reward:
    """Return the reward of a file of groups."""
    preset = experiment.presets[wildcards["preset"]]
    reward = preset.grpo.reward if wildcards["rewarded"] == "grpo_groups" else None
    return reward or preset.reward


def measured_rewards(experiment: Experiment) -> list[Reward]:
    """Return the rewards in use and the dense ones, each once."""
    presets = [experiment.presets[arm.preset] for arm in experiment.written_arms]
    dense = [Reward(mode=mode) for mode in ("soft_only", "expected_only", "accuracy_plus_expected")]
    of_presets = [(preset.reward, preset.grpo.reward, preset.on_policy.reward) for preset in presets]
    rewards = [reward for used in of_presets for reward in used if reward] + dense
    return list({canonical_json(reward.model_dump(mode="json")): reward for reward in rewards}.values())


def top_k_values(experiment: Experiment, _: Wildcards) -> list[int]:
    """Return the values of top-k in the main preset's offline objective."""
    grpo = experiment.presets[experiment.arms[0].preset].grpo
    return sorted({grpo.top_k_first_epoch, grpo.top_k})


def is_embedded(folder: str) -> bool:
    """Return whether a model folder is one of the small models of this repository."""
    return PurePath(folder).parent.as_posix().endswith(EMBEDDED_MODELS)


def lvlm_name(experiment: Experiment) -> str:
    """Return the LVLM's name for captions."""
    folder = experiment.lvlm.model
    return "embedded Qwen2.5-VL" if is_embedded(folder) else folder.rstrip("/").split("/")[-1]


def data_name(data: Data, name: str = "world") -> str:
    """Return the name of a data set; for files with the default name `world`, the path of their questions."""
    return data.files.eval_questions if data.source == "files" and name == "world" else name


def displayed_studies(experiment: Experiment) -> list[ShownStudy]:
    """Return the studies of the report."""
    intention = experiment.intention
    data, folder = experiment.data, experiment.lvlm.model
    lever = {"is_world": data.source == "world", "model": lvlm_name(experiment)}
    if data.source == "files":
        lever |= {"data": data_name(data), "parameters": parameters_of(folder) if is_embedded(folder) else 0}
    source = intention.tasks.source
    tasks = {"synthetic": "", WRITTEN_TASKS: intention.tasks.files.test}.get(source, source)
    agents = {"is_world": intention.is_world, "model": intention.model_name, "data": tasks}
    facts = {"lever": lever, "intention": agents}
    return [ShownStudy.model_validate({"name": name, **facts[name]}) for name in experiment.studies if name in facts]


def displayed_agents(experiment: Experiment) -> ShownAgents | None:
    """Return the report's facts about study `intention`; None if it does not run."""
    if "intention" not in experiment.studies:
        return None
    intention = experiment.intention
    names = ("reference_arm", "document_arm", "evaluation", "sweeps", "grpo", "scale")
    values = {name: getattr(intention, name) for name in names}
    if intention.is_world and intention.model.folder and not intention.is_taught:
        values["start"] = f"{intention.model_name} ({agent_plan.identity_of_model(intention.model.folder)})"
    return ShownAgents(arms=agent_plan.arms(intention), **values)


def scale(experiment: Experiment) -> str:
    """Return the names of LVLM and data, with the number of parameters if the model folder exists."""
    is_world = experiment.data.source == "world"
    subject = "embedded world" if is_world else f"{lvlm_name(experiment)} on {experiment.data.reader}"
    return _with_parameters(subject, experiment.lvlm.model)


def grid_models(experiment: Experiment) -> dict[str, str]:
    """Return the name and size of each LVLM of the grid."""
    settings = {name: experiment.model_copy(update={"lvlm": lvlm}) for name, lvlm in experiment.grid.lvlms.items()}
    return {name: _with_parameters(lvlm_name(of), of.lvlm.model) for name, of in settings.items()}


def _with_parameters(subject: str, folder: str) -> str:
    """Return a subject, with the number of parameters if the model folder exists."""
    n_parameters = parameters_of(folder)
    return f"{subject}, {n_parameters / 1e6:.1f} M parameters" if n_parameters else subject


@cache
def parameters_of(folder: str) -> int:
    """Return the number of weights from the headers of a folder's safetensors files; 0 if none can be read."""
    try:
        headers = [header_of(path) for path in sorted(Path(folder).glob("*.safetensors"))]
    except (OSError, ValueError, ImportError):  # rules are linted where Snakemake alone is installed
        return 0
    return sum(math.prod(tensor["shape"]) for _, tensors in headers for tensor in tensors.values())


def is_large(folder: str) -> bool:
    """Return whether a model is larger than an embedded one; a missing folder counts as large."""
    return bool(folder) and not 0 < parameters_of(folder) <= EMBEDDED_PARAMETERS


PLANNED: Mapping[str, Planner] = {
    "most_shots": lambda experiment, _: max(experiment.evaluation.shots),
    "most_samples": lambda experiment, _: max(experiment.evaluation.samples),
    "world_of_split": world_of_split,
    "examples_of_split": examples_of_split,
    "encoder": encoder_of,
    "encoder_identity": lambda experiment, wildcards: agent_plan.identity_of_model(
        encoder_of(experiment, wildcards).model
    ),
    "lvlm": lambda experiment, _: lvlm_config(experiment),
    "lvlm_name": lambda experiment, _: lvlm_name(experiment),
    "evaluated_cells": lambda experiment, _: evaluated_cells(experiment),
    "missing_cells": lambda experiment, _: missing_cells(experiment),
    "grid_models": lambda experiment, _: grid_models(experiment),
    "grid_data": lambda experiment, _: {name: data_name(data, name) for name, data in experiment.grid.data.items()},
    "balance_of_import": lambda experiment, _: None if experiment.rl_data.rescore else experiment.rl_data.balance,
    "own_module": lambda experiment, wildcards: (
        "" if experiment.grid.policies[wildcards["own"]].selections else wildcards["own"]
    ),
    "scale": lambda experiment, _: scale(experiment),
    "on_policy_settings": on_policy_settings,
    "continued_rce": continued_rce,
    "reward": reward_of,
    "rewards": lambda experiment, _: measured_rewards(experiment),
    "selected": top_k_values,
    "policies_of_batch": lambda experiment, wildcards: [
        PolicyRef.of(name) for name in policies_of_batch(experiment, wildcards)
    ],
    "selector": lambda experiment, wildcards: (
        experiment.presets[PolicyName.parse(wildcards.get("selected") or wildcards["trained"]).preset].selector
    ),
    "selectors": lambda experiment, _: {arm.preset: experiment.presets[arm.preset].selector for arm in experiment.arms},
    "evaluated": lambda experiment, _: evaluated(experiment),
    "starts": lambda experiment, _: starts(experiment),
    "sampled": lambda experiment, _: sampled(experiment),
    "controlled": lambda experiment, _: controlled(experiment),
    "world": lambda experiment, _: experiment.data.world if experiment.data.source == "world" else None,
    "presets": lambda experiment, _: [arm.preset for arm in experiment.arms],
    "train_shares": lambda experiment, _: [experiment.presets[arm.preset].train_share for arm in experiment.arms],
    "batch_sizes": lambda experiment, _: [len(policies_of(experiment, batch)) for batch in batches(experiment)],
    "studies": lambda experiment, _: displayed_studies(experiment),
    "emulate": lambda experiment, _: experiment.emulate if "lever" in experiment.studies else None,
    "shown_presets": lambda experiment, _: {
        arm.preset: experiment.presets[arm.preset] for arm in experiment.written_arms
    },
    "shown_agents": lambda experiment, _: displayed_agents(experiment),
    "emulated_policies": lambda experiment, _: experiment.emulate.policies() if experiment.emulate else [],
    "head_seed": lambda experiment, wildcards: (
        experiment.emulate.head_seed if experiment.emulate and wildcards["arm"] == HEAD else None
    ),
    "pool_items": lambda experiment, wildcards: (
        experiment.emulate.pool_items if experiment.emulate and wildcards["arm"] == POOL else None
    ),
    "generator": lambda experiment, _: agent_plan.generator(experiment.intention),
    "agent_policy": lambda experiment, _: agent_plan.policy(experiment.intention),
    "agent_runs": lambda experiment, _: agent_plan.runs(experiment.intention),
    "agent_arms": lambda experiment, _: agent_plan.arms(experiment.intention),
    "swept_arms": lambda experiment, _: agent_plan.swept_arms(experiment.intention),
    "served_agent": agent_plan.served_agent,
    "evaluation_of_served": agent_plan.evaluation_of_served,
    "temperature_of_served": agent_plan.temperature_of_served,
    "served_names": lambda experiment, _: [agent.name for agent in experiment.intention.served],
    "agent_arm": agent_plan.arm_of,
    "grpo_of_arm": agent_plan.grpo_of_arm,
    "evaluation_in_training": lambda experiment, _: agent_plan.at_defaults(
        experiment.intention.evaluation, "test_samples", "temperatures", "primary"
    ),
    "evaluation_of_tests": lambda experiment, _: agent_plan.at_defaults(
        experiment.intention.evaluation, "every", "samples", "primary"
    ),
}
"""Functions for the identity fields that are declared as `Planned`."""
