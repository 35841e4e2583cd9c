"""Configurations of the stages that evaluate selectors, collect their results, and emulate the published evaluation."""

from __future__ import annotations

from lever_pipe.base.policy_names import PolicyName
from lever_pipe.experiment.collected import (
    CollectLineageConfig,
    CollectResultsConfig,
    CollectSamplesConfig,
    ComparePoliciesConfig,
    MeasureDriftConfig,
)
from lever_pipe.experiment.emulation import (
    HEAD,
    POOL,
    Emulate,
    EmulateSelectionsConfig,
    EmulateUntouchedConfig,
    ScoreEmulationConfig,
)
from lever_pipe.experiment.evaluation import ScoreAnswersConfig
from lever_pipe.experiment.lvlm import AnswerControlsConfig, AnswerPromptsConfig
from lever_pipe.experiment.plans import policies
from lever_pipe.experiment.plans.grid import Wildcards, policies_of_batch
from lever_pipe.experiment.plans.models import lvlm_config, lvlm_name, with_parameters
from lever_pipe.experiment.selections import (
    EmulateFirstItemsConfig,
    SelectBaselineConfig,
    SelectDemonstrationsConfig,
    SelectOwnConfig,
)
from lever_pipe.experiment.selector import Selector
from lever_pipe.experiment.studies import Experiment


def select_demonstrations(experiment: Experiment, wildcards: Wildcards) -> SelectDemonstrationsConfig:
    selector = _selector_of(experiment, wildcards["selected"])
    return SelectDemonstrationsConfig(selector=selector, shots=max(experiment.evaluation.shots))


def select_baseline(experiment: Experiment, wildcards: Wildcards) -> SelectBaselineConfig:
    return SelectBaselineConfig(
        normalise_references=experiment.evaluation.normalise_references,
        baseline=wildcards["baseline"],
        shots=max(experiment.evaluation.shots),
        seed=experiment.baselines.seed,
    )


def select_own(experiment: Experiment, wildcards: Wildcards) -> SelectOwnConfig:
    own = wildcards["own"]
    module = "" if experiment.grid.policies[own].selections else own
    return SelectOwnConfig(own=own, module=module, shots=max(experiment.evaluation.shots))


def answer_prompts(experiment: Experiment, _: Wildcards) -> AnswerPromptsConfig:
    return AnswerPromptsConfig(lvlm=lvlm_config(experiment.lvlm), shots=experiment.evaluation.shots)


def score_answers(experiment: Experiment, wildcards: Wildcards) -> ScoreAnswersConfig:
    return ScoreAnswersConfig.of(experiment.evaluation, policies=policies_of_batch(experiment, wildcards))


def collect_results(experiment: Experiment, _: Wildcards) -> CollectResultsConfig:
    presets = [arm.preset for arm in experiment.arms]
    return CollectResultsConfig(
        main_preset=presets[0],
        presets=presets,
        train_shares=[experiment.presets[preset].train_share for preset in presets],
    )


def collect_samples(experiment: Experiment, _: Wildcards) -> CollectSamplesConfig:
    return CollectSamplesConfig.of(
        experiment.evaluation,
        answers=experiment.data.answers,
        main_preset=experiment.arms[0].preset,
        policies=policies.sampled(experiment),
        world=experiment.data.world if experiment.data.source == "world" else None,
    )


def answer_controls(experiment: Experiment, _: Wildcards) -> AnswerControlsConfig:
    evaluation = experiment.evaluation
    return AnswerControlsConfig(
        normalise_references=evaluation.normalise_references,
        lvlm=lvlm_config(experiment.lvlm),
        policies=policies.controlled(experiment),
        questions=max(evaluation.samples),
        shots=max(evaluation.shots),
    )


def collect_lineage(experiment: Experiment, _: Wildcards) -> CollectLineageConfig:
    batches = policies.batches(experiment)
    return CollectLineageConfig(
        presets=[arm.preset for arm in experiment.arms],
        batch_sizes=[len(policies.policies_of(experiment, batch)) for batch in batches],
        scale=_scale(experiment),
    )


def measure_drift(experiment: Experiment, _: Wildcards) -> MeasureDriftConfig:
    return MeasureDriftConfig(
        policies=policies.evaluated(experiment),
        starts=policies.starts(experiment),
        selectors={arm.preset: experiment.presets[arm.preset].selector for arm in experiment.arms},
        shots=experiment.evaluation.shots,
    )


def compare_policies(experiment: Experiment, _: Wildcards) -> ComparePoliciesConfig:
    return ComparePoliciesConfig.of(
        experiment.evaluation,
        main_preset=experiment.arms[0].preset,
        data=experiment.data.source,
        policies=policies.evaluated(experiment),
        sweeps=experiment.sweeps,
    )


def emulate_untouched(experiment: Experiment, _: Wildcards) -> EmulateUntouchedConfig:
    emulate = _emulated(experiment)
    return EmulateUntouchedConfig.of(
        experiment.presets[emulate.preset],
        preset=emulate.preset,
        base_rce_epoch=emulate.base_rce_epoch,
        seed=emulate.seed,
    )


def emulate_selections(experiment: Experiment, wildcards: Wildcards) -> EmulateSelectionsConfig:
    emulate, arm = _emulated(experiment), wildcards["arm"]
    return EmulateSelectionsConfig(
        arm=arm,
        selector=experiment.presets[emulate.preset].selector,
        shots=max(experiment.evaluation.shots),
        head_seed=emulate.head_seed if arm == HEAD else None,
        pool_items=emulate.pool_items if arm == POOL else None,
    )


def emulate_first_items(experiment: Experiment, wildcards: Wildcards) -> EmulateFirstItemsConfig:
    selector = _selector_of(experiment, wildcards["trained"])
    shots = max(experiment.evaluation.shots)
    return EmulateFirstItemsConfig(selector=selector, shots=shots, items=wildcards["offered"])


def score_emulation(experiment: Experiment, _: Wildcards) -> ScoreEmulationConfig:
    return ScoreEmulationConfig.of(experiment.evaluation, policies=_emulated(experiment).policies())


def _emulated(experiment: Experiment) -> Emulate:
    if experiment.emulate is None:
        raise KeyError("emulate")
    return experiment.emulate


def _selector_of(experiment: Experiment, policy: str) -> Selector:
    return experiment.presets[PolicyName.parse(policy).preset].selector


def _scale(experiment: Experiment) -> str:
    """Return the names of LVLM and data, with the number of parameters if the model folder exists."""
    is_world = experiment.data.source == "world"
    subject = "embedded world" if is_world else f"{lvlm_name(experiment.lvlm)} on {experiment.data.reader}"
    return with_parameters(subject, experiment.lvlm.model)
