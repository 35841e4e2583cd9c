"""From the experiment to the workflow: which policies exist, and the identity of every job.

The Snakefile calls these functions; tests and notebooks may too. Of files only the model folders are
read, whose digests belong to the identity of the stages that load them.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from lever_pipe.base.contents import model_identity
from lever_pipe.base.provenance import canonical_json, code_of
from lever_pipe.base.records import PolicyRef, base_of, beta_text, mode_of
from lever_pipe.base.sections import Section
from lever_pipe.base.storage import header_of
from lever_pipe.experiment import faults
from lever_pipe.experiment import stage_configs as stages
from lever_pipe.experiment.config import Arm, Emulate, OnPolicy, Preset, Reward
from lever_pipe.experiment.studies import Experiment
from lever_pipe.runtime import agent_plan

Wildcards = Mapping[str, str]

MARK_RUNS = {"reinforce": "reinforce/base~{base}/beta~0", "distil": "distil/base~{base}"}
"""Names of the runs that are no GRPO and stand beside the on-policy ones, to be filled with a base epoch."""
SIMILARITIES = ("similar_image", "similar_question", "similar_both")


def put_this_interpreter_first() -> None:
    """Make `python` in a job's shell the interpreter that runs the workflow, also without an activated environment."""
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])


def ledger_folder(experiment: Experiment) -> str:
    """Return the folder of LVLM answers: in the store, so that it outlives `results`, or without a store in these."""
    store = experiment.store
    return f"{experiment.results}/ledger" if store is None else str(Path(store.folder).expanduser() / "ledger")


def baselines(experiment: Experiment) -> list[str]:
    """Return the names of all baselines."""
    draws = [f"random-{draw}" for draw in range(experiment.baselines.n_random_draws)]
    return ["zero_shot", *draws, *SIMILARITIES, "oracle"]


def rce_policies(arm: Arm, seed: int) -> list[str]:
    """Return the evaluated RCE epochs of one seed."""
    return [f"preset~{arm.preset}/rce/seed~{seed}/epoch~{e}" for e in range(1, arm.rce_epochs + 1)]


def grpo_policies(arm: Arm, seed: int) -> list[str]:
    """Return the evaluated GRPO epochs of one seed, for every base epoch and beta."""
    return [
        f"preset~{arm.preset}/grpo/base~{base}/beta~{beta_text(beta)}/seed~{seed}/epoch~{epoch}"
        for base in arm.base_rce_epochs
        for beta in arm.kl_betas
        for epoch in range(1, arm.grpo_epochs + 1)
    ]


def on_policy_policies(arm: Arm, seed: int) -> list[str]:
    """Return the evaluated epochs of one seed that learn from what the policy draws, and of the marks beside them."""
    runs = arm.on_policy
    if runs is None or seed not in runs.seeds:
        return []
    drawn = [f"on_policy/base~{{base}}/beta~{beta_text(beta)}" for beta in runs.kl_betas]
    marks = [MARK_RUNS[mark] for mark in runs.marks]
    return [
        f"preset~{arm.preset}/{run.format(base=base)}/seed~{seed}/epoch~{epoch}"
        for base in arm.base_rce_epochs
        for run in [*drawn, *marks]
        for epoch in range(1, runs.epochs + 1)
    ]


def long_runs(arm: Arm) -> list[str]:
    """Return every epoch of the training-curve runs; they are trained, not evaluated."""
    return [
        f"preset~{arm.preset}/grpo/base~{base}/beta~{beta_text(beta)}/seed~{seed}/epoch~{epoch}"
        for base in arm.base_rce_epochs
        for beta in arm.long_kl_betas
        for seed in arm.long_seeds
        for epoch in range(1, arm.long_epochs + 1)
    ]


def batches(experiment: Experiment) -> list[str]:
    """Return the answer batches: one for the baselines, one for each arm and seed."""
    trained = [f"preset~{arm.preset}/seed~{seed}" for arm in experiment.arms for seed in arm.seeds]
    return ["baseline", *trained]


def policies_of(experiment: Experiment, batch: str) -> list[str]:
    """Return the policies whose prompts one answer batch holds."""
    if batch == "baseline":
        return [f"baseline/{name}" for name in baselines(experiment)]
    if batch == faults.EMULATION:
        return emulated(experiment)
    for arm in experiment.arms:
        for seed in arm.seeds:
            if batch == f"preset~{arm.preset}/seed~{seed}":
                return [*rce_policies(arm, seed), *grpo_policies(arm, seed), *on_policy_policies(arm, seed)]
    raise KeyError(batch)


def batch_of(policy: str) -> str:
    """Return the answer batch of a policy."""
    parts = policy.split("/")
    if parts[0] == faults.EMULATION:
        return faults.EMULATION
    seed = next((part for part in parts if part.startswith("seed~")), None)
    return "baseline" if seed is None else f"{parts[0]}/{seed}"


def evaluated(experiment: Experiment) -> list[str]:
    """Return every evaluated policy once."""
    return [policy for batch in batches(experiment) for policy in policies_of(experiment, batch)]


def trained(experiment: Experiment) -> list[str]:
    """Return every training epoch of every run once, evaluated or not."""
    names = [policy for policy in evaluated(experiment) if not policy.startswith("baseline/")]
    for arm in experiment.arms:
        names += long_runs(arm)
    return list(dict.fromkeys(names))


def stepped(experiment: Experiment) -> list[str]:
    """Return every training epoch that logs its steps, because the policy draws what it learns from."""
    return [policy for policy in trained(experiment) if mode_of(policy) == "on_policy"]


def emulated(experiment: Experiment, *arms: str) -> list[str]:
    """Return the emulated policies of these arms, by default of all; they are not among the evaluated ones."""
    if experiment.emulate is None:
        return []
    wanted = arms or faults.ARMS
    return [policy.name for policy in faults.policies(experiment.emulate) if policy.arm in wanted]


def emulated_checkpoints(experiment: Experiment, arm: str) -> list[str]:
    """Return the training epochs whose selectors an arm evaluates, in the order of its policies."""
    emulate = _emulate(experiment)
    return [faults.checkpoint_of(emulate, policy) for policy in faults.policies_of_arm(emulate, arm)]


def emulated_runs(experiment: Experiment) -> list[str]:
    """Return every training epoch behind the emulated policies once, right and with dropout."""
    return [] if experiment.emulate is None else faults.trained_runs(experiment.emulate)


def _emulate(experiment: Experiment) -> Emulate:
    if experiment.emulate is None:
        raise KeyError(faults.EMULATION)
    return experiment.emulate


def starts(experiment: Experiment) -> list[str]:
    """Return the selectors that evaluated policies start from and that are not evaluated themselves."""
    names = [name for name in evaluated(experiment) if not name.startswith("baseline/")]
    return [name for name in dict.fromkeys(map(base_of, names)) if name not in names]


def policy_ref(policy: str) -> PolicyRef:
    """Return a policy's fields from its path-like name."""
    values = dict(part.split("~", 1) for part in policy.split("/") if "~" in part)
    run = policy.split("/")[0] if policy.startswith("baseline/") else policy.split("/")[1]
    return PolicyRef.model_validate(
        {
            "name": policy,
            "stage": "grpo" if run == "on_policy" else run,
            "mode": mode_of(policy),
            "preset": values.get("preset", ""),
            "base_rce_epoch": values.get("base"),
            "kl_beta": values.get("beta"),
            "seed": values.get("seed"),
            "epoch": values.get("epoch"),
        }
    )


def stage_config(experiment: Experiment, stage: str, wildcards: Wildcards) -> Section:
    """Return the identity of one job: the stage's config for these wildcards."""
    of_intention = agent_plan.stage_config(experiment.intention, stage, dict(wildcards))
    if of_intention is not None:
        return of_intention
    builder = globals()[f"_{stage}"]
    config: Section = builder(experiment, wildcards)
    return config


def spec_of(experiment: Experiment, stage: str, wildcards: Wildcards) -> str:
    """Return the one identity param of a rule: canonical JSON of config and code fingerprint."""
    config = stage_config(experiment, stage, wildcards)
    code = code_of(stage, members_of(config))
    return canonical_json({"code": code, "config": config.model_dump(mode="json")})


def members_of(config: Section) -> tuple[str, ...]:
    """Return the modules that a stage's config selects by name, as `lever.samplers.uniform`."""
    match config:
        case stages.PrepareExamplesConfig():
            return (f"lever.datasets.{config.reader}",)
        case stages.EmbedExamplesConfig():
            return (f"lever.encoders.{config.member}",)
        case stages.SamplePoolsConfig():
            return (f"lever.samplers.{config.pools.sampler}",)
        case (
            stages.GenerateRlDataConfig()
            | stages.AnswerPromptsConfig()
            | stages.CheckWorldConfig()
            | stages.TrainOnPolicyEpochConfig()
        ):
            return (f"lvlms.{config.lvlm.member}",)
        case _:
            return agent_plan.members_of(config)


@cache
def _identity(folder: str) -> str:
    return model_identity(folder)


def _lvlm(experiment: Experiment) -> stages.LvlmConfig:
    values = experiment.lvlm.model_dump(exclude={"model", "ask_again"})
    return stages.LvlmConfig(model_identity=_identity(experiment.lvlm.model), **values)


def _preset(experiment: Experiment, wildcards: Wildcards) -> Preset:
    return experiment.presets[wildcards["preset"]]


def _generate_world(experiment: Experiment, _: Wildcards) -> Section:
    return stages.GenerateWorldConfig(world=experiment.data.world)


def _prepare_examples(experiment: Experiment, _: Wildcards) -> Section:
    return stages.PrepareExamplesConfig(**experiment.data.model_dump(exclude={"source", "world", "files"}))


def _embed_examples(experiment: Experiment, _: Wildcards) -> Section:
    encoder = experiment.encoder
    identity = _identity(encoder.model)
    return stages.EmbedExamplesConfig(member=encoder.member, model_identity=identity, batch_size=encoder.batch_size)


def _sample_pools(experiment: Experiment, _: Wildcards) -> Section:
    rl = experiment.rl_data
    return stages.SamplePoolsConfig(pools=experiment.pools, n_rl_queries=rl.n_queries, rl_seed=rl.seed)


def _propose_trajectories(experiment: Experiment, _: Wildcards) -> Section:
    return stages.ProposeTrajectoriesConfig(
        **experiment.rl_data.model_dump(exclude={"import_from", "n_queries", "n_shards", "diversity_budget"})
    )


def _generate_rl_data(experiment: Experiment, wildcards: Wildcards) -> Section:
    rl = experiment.rl_data
    return stages.GenerateRlDataConfig(
        lvlm=_lvlm(experiment),
        shard=int(wildcards["shard"]),
        n_shards=rl.n_shards,
        shots=rl.shots,
        diversity_budget=rl.diversity_budget,
        seed=rl.seed,
    )


def _merge_rl_data(_experiment: Experiment, _: Wildcards) -> Section:
    return stages.MergeRlDataConfig()


def _import_rl_data(experiment: Experiment, _: Wildcards) -> Section:
    return stages.ImportRlDataConfig(pool_size=experiment.pools.size)


def _reward_groups(experiment: Experiment, wildcards: Wildcards) -> Section:
    return stages.RewardGroupsConfig(reward=_preset(experiment, wildcards).reward)


def _initialise_selector(experiment: Experiment, wildcards: Wildcards) -> Section:
    return stages.InitialiseSelectorConfig(
        preset=wildcards["preset"],
        selector=_preset(experiment, wildcards).selector,
        seed=int(wildcards["seed"]),
    )


def _train_rce_epoch(experiment: Experiment, wildcards: Wildcards) -> Section:
    preset = _preset(experiment, wildcards)
    return stages.TrainRceEpochConfig(
        preset=wildcards["preset"],
        seed=int(wildcards["seed"]),
        epoch=int(wildcards["epoch"]),
        **_fields(preset, "selector", "rce", "train_share", "max_gradient_norm"),
    )


def _train_grpo_epoch(experiment: Experiment, wildcards: Wildcards) -> stages.TrainGrpoEpochConfig:
    preset = _preset(experiment, wildcards)
    return stages.TrainGrpoEpochConfig(
        kl_beta=float(wildcards["beta"]),
        **_run(wildcards),
        **_fields(preset, "selector", "grpo", "train_share", "max_gradient_norm"),
    )


def _train_on_policy_epoch(experiment: Experiment, wildcards: Wildcards) -> Section:
    preset, objective = _preset(experiment, wildcards), wildcards["objective"]
    settings = preset.on_policy
    if objective == "reinforce":  # one step on what was drawn, and a baseline that no draw of the query enters
        settings = settings.model_copy(update={"updates": 1, "advantages": "batch"} | _defaults("clip_epsilon"))
    if settings.advantages != "standardised":
        settings = settings.model_copy(update=_defaults("advantage_std_floor", "advantage_clamp"))
    return stages.TrainOnPolicyEpochConfig(
        objective=objective,
        lvlm=_lvlm(experiment),
        on_policy=settings,
        kl_beta=float(wildcards["beta"]),
        **_run(wildcards),
        **_fields(preset, "selector", "train_share", "max_gradient_norm"),
    )


def _defaults(*names: str) -> dict[str, Any]:
    """Return the defaults of on-policy settings that a run does not read, so that no edit of them reruns it."""
    return {name: OnPolicy.model_fields[name].default for name in names}


def _train_distil_epoch(experiment: Experiment, wildcards: Wildcards) -> Section:
    preset = _preset(experiment, wildcards)
    return stages.TrainDistilEpochConfig(
        **_run(wildcards), **_fields(preset, "selector", "distil", "train_share", "max_gradient_norm")
    )


def _run(wildcards: Wildcards) -> dict[str, Any]:
    """Return the fields of a run's epoch that its name states."""
    numbers = {"base_rce_epoch": "base", "seed": "seed", "epoch": "epoch"}
    return {"preset": wildcards["preset"], **{name: int(wildcards[key]) for name, key in numbers.items()}}


def _measure_rewards(experiment: Experiment, _: Wildcards) -> Section:
    presets = [experiment.presets[arm.preset] for arm in experiment.arms]
    alone = [Reward(mode=mode) for mode in ("soft_only", "expected_only", "accuracy_plus_expected")]
    rewards = [reward for preset in presets for reward in (preset.reward, preset.on_policy.reward)] + alone
    distinct = {canonical_json(reward.model_dump(mode="json")): reward for reward in rewards}
    grpo = presets[0].grpo
    return stages.MeasureRewardsConfig(
        rewards=tuple(distinct.values()),
        kept=tuple(sorted({grpo.top_k_first_epoch, grpo.top_k})),
        **grpo.model_dump(include={"z_clamp", "advantage_std_floor", "advantage_clamp"}),
    )


def _select_demonstrations(experiment: Experiment, wildcards: Wildcards) -> Section:
    preset = experiment.presets[policy_ref(wildcards["trained"]).preset]
    return stages.SelectDemonstrationsConfig(selector=preset.selector, shots=max(experiment.evaluation.shots))


def _select_baseline(experiment: Experiment, wildcards: Wildcards) -> Section:
    return stages.SelectBaselineConfig(
        baseline=wildcards["baseline"],
        shots=max(experiment.evaluation.shots),
        seed=experiment.baselines.seed,
    )


def _answer_prompts(experiment: Experiment, _: Wildcards) -> Section:
    return stages.AnswerPromptsConfig(lvlm=_lvlm(experiment), shots=experiment.evaluation.shots)


def _check_world(experiment: Experiment, _: Wildcards) -> Section:
    return stages.CheckWorldConfig(lvlm=_lvlm(experiment))


def _measure_pools(_experiment: Experiment, _: Wildcards) -> Section:
    return stages.MeasurePoolsConfig()


def _score_answers(experiment: Experiment, wildcards: Wildcards) -> Section:
    return stages.ScoreAnswersConfig(policy=policy_ref(wildcards["policy"]), **experiment.evaluation.model_dump())


def _fields(preset: Preset, *names: str) -> dict[str, Any]:
    return {name: getattr(preset, name) for name in names}


def _collect_results(experiment: Experiment, _: Wildcards) -> Section:
    return stages.CollectResultsConfig(
        main_preset=experiment.arms[0].preset,
        evaluated=tuple(evaluated(experiment)),
        trained=tuple(trained(experiment)),
        stepped=tuple(stepped(experiment)),
        samples=experiment.evaluation.samples,
        shots=experiment.evaluation.shots,
    )


def _tabulate_documents(experiment: Experiment, _: Wildcards) -> Section:
    evaluation, main = experiment.evaluation, experiment.presets[experiment.arms[0].preset]
    counts = {"samples": evaluation.samples, "shots": evaluation.shots}
    shown = {**_origin(experiment), **counts, **_fields(main, "grpo", "reward")}
    return stages.TabulateDocumentsConfig(**shown, guard=experiment.report.guard)


def _tabulate_on_policy(experiment: Experiment, _: Wildcards) -> Section:
    evaluation = experiment.evaluation
    counts = {"samples": evaluation.samples, "shots": evaluation.shots}
    return stages.TabulateOnPolicyConfig(**_origin(experiment), **counts, guard=experiment.report.guard)


def _collect_lineage(experiment: Experiment, _: Wildcards) -> Section:
    return stages.CollectLineageConfig(
        presets=tuple(arm.preset for arm in experiment.arms),
        batch_sizes=tuple(len(policies_of(experiment, batch)) for batch in batches(experiment)),
        scale=_scale(experiment),
    )


def _measure_agreement(experiment: Experiment, _: Wildcards) -> Section:
    return stages.MeasureAgreementConfig(
        **_origin(experiment),
        policies=tuple(evaluated(experiment)),
        starts=tuple(starts(experiment)),
        shots=experiment.evaluation.shots,
        guard=experiment.report.guard,
    )


def _compare_policies(experiment: Experiment, _: Wildcards) -> Section:
    evaluation = experiment.evaluation
    return stages.ComparePoliciesConfig(
        **_origin(experiment),
        policies=tuple(evaluated(experiment)),
        samples=evaluation.samples,
        shots=evaluation.shots,
        seed=evaluation.seed,
        guard=experiment.report.guard,
    )


def _check_claims(experiment: Experiment, _: Wildcards) -> Section:
    of_agents = agent_plan.claim_settings(experiment.intention) if "intention" in experiment.studies else {}
    return stages.CheckClaimsConfig(**_origin(experiment), seed=experiment.evaluation.seed, **of_agents)


def _plot_curves(experiment: Experiment, _: Wildcards) -> Section:
    evaluation = experiment.evaluation
    return stages.PlotCurvesConfig(samples=evaluation.samples, shots=evaluation.shots, **_origin(experiment))


def _build_report(experiment: Experiment, _: Wildcards) -> Section:
    report, origin, intention = experiment.report, _origin(experiment), experiment.intention
    shown = {
        "lever": stages.ShownStudy(name="lever", is_world=origin["data"] == "world", model=origin["lvlm"]),
        "intention": stages.ShownStudy(
            name="intention", is_world=agent_plan.is_world(intention), model=agent_plan.model_name(intention)
        ),
    }
    return stages.BuildReportConfig(
        title=report.title,
        language=report.language,
        main_preset=origin["main_preset"],
        studies=tuple(shown[name] for name in experiment.studies),
    )


def _emulate_grpo_epoch(experiment: Experiment, wildcards: Wildcards) -> Section:
    preset = {"preset": _emulate(experiment).preset}
    return stages.EmulateGrpoEpochConfig(training=_train_grpo_epoch(experiment, {**wildcards, **preset}))


def _emulate_untouched(experiment: Experiment, _: Wildcards) -> Section:
    emulate = _emulate(experiment)
    return stages.EmulateUntouchedConfig(
        preset=emulate.preset,
        base_rce_epoch=emulate.base_rce_epoch,
        seed=emulate.seed,
        **_fields(experiment.presets[emulate.preset], "selector", "grpo", "train_share"),
    )


def _emulate_selections(experiment: Experiment, wildcards: Wildcards) -> Section:
    emulate, switched_on = _emulate(experiment), faults.faults_of(wildcards["arm"])
    return stages.EmulateSelectionsConfig(
        arm=wildcards["arm"],
        selector=experiment.presets[emulate.preset].selector,
        shots=max(experiment.evaluation.shots),
        head_seed=emulate.head_seed if "head" in switched_on else None,
        pool_items=emulate.pool_items if "pool" in switched_on else None,
    )


def _score_emulation(experiment: Experiment, _: Wildcards) -> Section:
    policies, evaluation = tuple(faults.policies(_emulate(experiment))), experiment.evaluation
    return stages.ScoreEmulationConfig(policies=policies, samples=evaluation.samples, shots=evaluation.shots)


def _explain_patterns(experiment: Experiment, _: Wildcards) -> Section:
    origin, evaluation = _origin(experiment), experiment.evaluation
    return stages.ExplainPatternsConfig(
        emulate=_emulate(experiment),
        samples=evaluation.samples,
        shots=evaluation.shots,
        data=origin["data"],
        lvlm=origin["lvlm"],
    )


def _origin(experiment: Experiment) -> dict[str, Any]:
    """Return what a reader needs to know about our numbers: main preset, data and LVLM."""
    source, folder = experiment.data.source, experiment.lvlm.model.rstrip("/").split("/")[-1]
    lvlm = "embedded Qwen2.5-VL" if source == "world" else folder
    return {"main_preset": experiment.arms[0].preset, "data": source, "lvlm": lvlm}


def _scale(experiment: Experiment) -> str:
    """Return which LVLM answers on which data, with its number of parameters where its folder is there."""
    folder = experiment.lvlm.model
    world, name = experiment.data.source == "world", folder.rstrip("/").split("/")[-1]
    what = "embedded world" if world else f"{name} on {experiment.data.reader}"
    n_parameters = parameters_of(folder)
    return f"{what}, {n_parameters / 1e6:.1f} M parameters" if n_parameters else what


@cache
def parameters_of(folder: str) -> int:
    """Return how many weights the headers of a model folder's safetensors name; 0 where there is none to read."""
    try:
        headers = [header_of(path) for path in sorted(Path(folder).glob("*.safetensors"))]
    except (OSError, ValueError):
        return 0
    return sum(math.prod(tensor.shape) for _, tensors in headers for tensor in tensors)
