"""Study `grid`: its settings, the experiment of each setting, and the configurations of its stages.

Paths name a setting by three wildcards: `data` is `lever` for the documents' study and `grid/data~NAME` for a data set
of the grid; `sampler` is `/sampler~NAME` and `lvlm` `/lvlm~NAME`, both empty in the documents' study. All settings of a
data set share the files below `{data}`; all LVLMs share the files below `{data}{sampler}`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from lever_pipe.base.policy_names import FIRST_ITEMS, OWN, TRANSFER, PolicyName, values_in
from lever_pipe.experiment.data import Data
from lever_pipe.experiment.grid import (
    BuildGridConfig,
    CompareCellsConfig,
    EvaluatedCell,
    Grid,
    GridSetting,
    MissingCell,
)
from lever_pipe.experiment.plans import policies
from lever_pipe.experiment.plans.models import lvlm_name, with_parameters
from lever_pipe.experiment.studies import Experiment

Wildcards = Mapping[str, Any]
"""A job's wildcards by name, as text; the configuration models parse numbers."""
DOCUMENTS = {"data": "lever", "sampler": "", "lvlm": ""}
"""The wildcards of a setting, with their values for the documents' study."""
RAW = "raw"
"""The wildcard of a generated data set."""


def folders_of(setting: GridSetting) -> dict[str, str]:
    """Return the wildcards of a setting."""
    return {
        "data": f"grid/data~{setting.data}",
        "sampler": f"/sampler~{setting.sampler}",
        "lvlm": f"/lvlm~{setting.lvlm}",
    }


def at(experiment: Experiment, wildcards: Wildcards) -> Experiment:
    """Return the experiment for a job of a setting; for the documents' study, the experiment itself.

    Several settings may share a job. Then its wildcards replace parts of the experiment, and the other parts stay.
    """
    names = values_in("".join(wildcards.get(name, "") for name in (RAW, *DOCUMENTS)))
    if "data" not in names:
        return experiment
    grid, data = experiment.grid, names["data"]
    update: dict[str, object] = {"data": grid.data[data], "baselines": grid.baselines}
    if grid.data[data].rl_data is not None:
        update["rl_data"] = grid.data[data].rl_data
    if "sampler" in names:
        update["pools"] = experiment.pools.model_copy(update={"sampler": names["sampler"]})
    if "lvlm" in names:  # only now is the setting complete, so that its exclusions apply
        setting = GridSetting(data, names["sampler"], names["lvlm"])
        policies = {name: p for name, p in grid.policies.items() if not p.selections or data in p.selections}
        update |= {
            "lvlm": grid.lvlms[setting.lvlm],
            "arms": tuple(arm for arm in grid.arms if not grid.excluded(setting, arm.preset)),
            "grid": grid.model_copy(update={"policies": policies}),
        }
    return experiment.model_copy(update=update)


def raw_of(wildcards: Wildcards) -> str:
    """Return the folder of a generated data set, the wildcard `raw`."""
    data = wildcards.get("data", DOCUMENTS["data"])
    return "world" if data == DOCUMENTS["data"] else f"{data}/world"


def setting_of(wildcards: Wildcards) -> GridSetting:
    """Return the setting of the grid for these wildcards."""
    names = values_in("".join(wildcards[name] for name in DOCUMENTS))
    return GridSetting(names["data"], names["sampler"], names["lvlm"])


def home_of(grid: Grid, setting: GridSetting, origin: str) -> GridSetting:
    """Return the training setting of a policy in `setting`; `origin` is its other data set or LVLM, or empty."""
    return setting._replace(**{"data" if origin in grid.data else "lvlm": origin}) if origin else setting


def trained_at(experiment: Experiment, wildcards: Wildcards) -> tuple[dict[str, str], str]:
    """Return the wildcards of the training setting of an evaluated policy (`selected`), and its name there."""
    name = PolicyName.parse(wildcards["selected"])
    if not name.origin:
        return {key: wildcards[key] for key in DOCUMENTS}, str(name)
    return folders_of(home_of(experiment.grid, setting_of(wildcards), name.origin)), str(name.home)


def answers_of(cell: EvaluatedCell) -> str:
    """Return the folder of the answers of a cell's batch, relative to the results."""
    setting = "".join(folders_of(GridSetting(cell.data, cell.sampler, cell.lvlm)).values())
    return f"{setting}/answers/{PolicyName.parse(cell.policy).batch}"


def transferred(experiment: Experiment, setting: GridSetting) -> list[str]:
    """Return the selectors of other data sets and LVLMs that a setting evaluates, without those excluded in it."""
    grid = experiment.grid
    presets = experiment.presets.keys() - {arm.preset for arm in grid.arms if grid.excluded(setting, arm.preset)}
    names = []
    for here, axis in ((setting.data, grid.data), (setting.lvlm, grid.lvlms)):
        for origin in grid.transfer if here in grid.transfer else ():
            if origin in axis and origin != here:
                home = at(experiment, folders_of(home_of(grid, setting, origin)))
                names += [replace(PolicyName.parse(name), origin=origin) for name in policies.evaluated(home)]
    return [str(name) for name in names if name.preset in presets]


def policies_at(experiment: Experiment, setting: GridSetting) -> list[str]:
    """Return every policy that a setting of the grid evaluates."""
    here = at(experiment, folders_of(setting))
    others = [name for batch in (OWN, FIRST_ITEMS, TRANSFER) for name in _policies_in(experiment, setting, batch)]
    return [*policies.evaluated(here), *others]


def _policies_in(experiment: Experiment, setting: GridSetting, batch: str) -> list[str]:
    """Return the policies of one answer batch of a setting of the grid."""
    if batch == TRANSFER:
        return transferred(experiment, setting)
    here = at(experiment, folders_of(setting))
    if batch != FIRST_ITEMS:
        return policies.policies_of(here, batch)
    items, names = experiment.grid.first_items, map(PolicyName.parse, policies.evaluated(here))
    return [str(replace(name, items=items)) for name in names if items and name.preset in experiment.presets]


def policies_of_batch(experiment: Experiment, wildcards: Wildcards) -> list[str]:
    """Return the policies of a job's answer batch."""
    if wildcards.get("data", DOCUMENTS["data"]) == DOCUMENTS["data"]:
        return policies.policies_of(experiment, wildcards["batch"])
    return _policies_in(experiment, setting_of(wildcards), wildcards["batch"])


def evaluated_cells(experiment: Experiment) -> list[EvaluatedCell]:
    """Return every run of every policy in every setting of the grid."""
    cells = []
    for setting in experiment.grid.settings:
        for policy in policies_at(experiment, setting):
            home = home_of(experiment.grid, setting, PolicyName.parse(policy).origin)
            prompts = training_prompts(at(experiment, folders_of(home)), policy)
            cells.append(EvaluatedCell(**setting._asdict(), policy=policy, training_prompts=prompts))
    return cells


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
        MissingCell(**setting._asdict(), preset=arm.preset, why=why)
        for setting in grid.combinations
        for arm in grid.arms
        if (why := grid.excluded(setting, arm.preset))
    ]


def data_name(data: Data, name: str = "world") -> str:
    """Return the name of a data set; for files with the default name `world`, the path of their questions."""
    return data.files.eval_questions if data.source == "files" and name == "world" else name


def compare_cells(experiment: Experiment, _: Wildcards) -> CompareCellsConfig:
    cells, reference = evaluated_cells(experiment), experiment.grid.reference
    return CompareCellsConfig.of(experiment.evaluation, evaluated=cells, reference=reference)


def build_grid(experiment: Experiment, _: Wildcards) -> BuildGridConfig:
    grid = experiment.grid
    return BuildGridConfig(
        title=experiment.report.title,
        samples=experiment.evaluation.samples,
        shots=experiment.evaluation.shots,
        missing=missing_cells(experiment),
        models={name: with_parameters(lvlm_name(lvlm), lvlm.model) for name, lvlm in grid.lvlms.items()},
        data={name: data_name(data, name) for name, data in grid.data.items()},
    )
