"""Derive study `grid` from the experiment: its settings, and the experiment of each setting.

Paths name a setting by three wildcards: `data` is `lever` for the documents' study and `grid/data~NAME` for a data set
of the grid; `sampler` is `/sampler~NAME` and `lvlm` `/lvlm~NAME`, both empty in the documents' study. All settings of a
data set share the files below `{data}`; all LVLMs share the files below `{data}{sampler}`.
"""

from __future__ import annotations

from collections.abc import Mapping

from lever_pipe.base.policy_names import PolicyName, values_in
from lever_pipe.experiment.grid import EvaluatedCell, Grid, GridSetting
from lever_pipe.experiment.studies import Experiment

Wildcards = Mapping[str, str]
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


def batch_of(cell: EvaluatedCell) -> str:
    """Return the folder of the answers of a cell's batch, relative to the results."""
    setting = "".join(folders_of(GridSetting(cell.data, cell.sampler, cell.lvlm)).values())
    return f"{setting}/answers/{PolicyName.parse(cell.policy).batch}"
