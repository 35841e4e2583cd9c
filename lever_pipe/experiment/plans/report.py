"""Configurations of the stages that build the report of both studies."""

from __future__ import annotations

from typing import Any

from lever_pipe.experiment.agent_tasks import WRITTEN_TASKS
from lever_pipe.experiment.collected import InputsAlone
from lever_pipe.experiment.plans.agents import filled_arms
from lever_pipe.experiment.plans.grid import Wildcards, data_name
from lever_pipe.experiment.plans.models import identity_of_model, is_embedded, lvlm_name, parameters_of
from lever_pipe.experiment.report import BuildReportConfig, PlotFiguresConfig, ShownAgents, ShownStudy
from lever_pipe.experiment.studies import Experiment


def collect_evidence(_: Experiment, __: Wildcards) -> InputsAlone:
    return InputsAlone()


def plot_figures(experiment: Experiment, _: Wildcards) -> PlotFiguresConfig:
    return PlotFiguresConfig(**_run(experiment))


def build_report(experiment: Experiment, _: Wildcards) -> BuildReportConfig:
    report = experiment.report
    return BuildReportConfig(
        **_run(experiment),
        guard=report.guard,
        presets={arm.preset: experiment.presets[arm.preset] for arm in experiment.written_arms},
        emulate=experiment.emulate if "lever" in experiment.studies else None,
        title=report.title,
        language=report.language,
    )


def _run(experiment: Experiment) -> dict[str, Any]:
    """Return the values of `PlotFiguresConfig`."""
    return {
        "studies": shown_studies(experiment),
        "main_preset": experiment.arms[0].preset,
        "arms": experiment.written_arms,
        "sweeps": experiment.sweeps,
        "agents": shown_agents(experiment),
    }


def shown_studies(experiment: Experiment) -> list[ShownStudy]:
    """Return the studies of the report."""
    intention = experiment.intention
    data, folder = experiment.data, experiment.lvlm.model
    lever = {"is_world": data.source == "world", "model": lvlm_name(experiment.lvlm)}
    if data.source == "files":
        lever |= {"data": data_name(data), "parameters": parameters_of(folder) if is_embedded(folder) else 0}
    source = intention.tasks.source
    tasks = {"synthetic": "", WRITTEN_TASKS: intention.tasks.files.test}.get(source, source)
    agents = {"is_world": intention.is_world, "model": intention.model_name, "data": tasks}
    facts = {"lever": lever, "intention": agents}
    return [ShownStudy.model_validate({"name": name, **facts[name]}) for name in experiment.studies if name in facts]


def shown_agents(experiment: Experiment) -> ShownAgents | None:
    """Return the report's facts about study `intention`; None if it does not run."""
    if "intention" not in experiment.studies:
        return None
    intention = experiment.intention
    names = ("reference_arm", "document_arm", "evaluation", "sweeps", "grpo", "scale")
    values = {name: getattr(intention, name) for name in names}
    if intention.is_world and intention.model.folder and not intention.is_taught:
        values["start"] = f"{intention.model_name} ({identity_of_model(intention.model.folder)})"
    return ShownAgents(arms=filled_arms(intention), **values)
