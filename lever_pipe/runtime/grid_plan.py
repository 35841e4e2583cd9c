"""From the experiment to study `grid`: its settings, and what is made and evaluated in each.

Paths name a setting by three wildcards: `data` is `lever` for the documents' study and `grid/data~NAME` for a data set
of the grid; `sampler` is `/sampler~NAME` and `lvlm` `/lvlm~NAME`, both empty in the documents' study. What lies at
`{data}` is shared by all settings of a data set, what lies at `{data}{sampler}` by all LVLMs.
"""

from __future__ import annotations

from collections.abc import Mapping

from lever_pipe.base.policy_names import PolicyName, values_in
from lever_pipe.experiment.grid_config import Grid, GridSetting
from lever_pipe.experiment.stage_configs import EvaluatedCell
from lever_pipe.experiment.studies import Experiment

Wildcards = Mapping[str, str]
DOCUMENTS = {"data": "lever", "sampler": "", "lvlm": ""}
"""The wildcards that name a setting, as they are for the documents' study."""
RAW = "raw"
"""The wildcard that names a generated data set."""


def folders_of(setting: GridSetting) -> dict[str, str]:
    """Return the wildcards that name a setting."""
    return {
        "data": f"grid/data~{setting.data}",
        "sampler": f"/sampler~{setting.sampler}",
        "lvlm": f"/lvlm~{setting.lvlm}",
    }


def at(experiment: Experiment, wildcards: Wildcards) -> Experiment:
    """Return the experiment as a job of a setting sees it; of the documents' study it is the experiment itself.

    A job that several settings share sees what its wildcards name, and of the rest what the experiment says.
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
    if "lvlm" in names:
        setting = GridSetting(data, names["sampler"], names["lvlm"])
        policies = {name: p for name, p in grid.policies.items() if not p.selections or data in p.selections}
        update |= {
            "lvlm": grid.lvlms[setting.lvlm],
            "arms": tuple(arm for arm in grid.arms if not grid.excluded(setting, arm.preset)),
            "grid": grid.model_copy(update={"policies": policies}),
        }
    return experiment.model_copy(update=update)


def raw_of(wildcards: Wildcards) -> str:
    """Return where a generated data set lies, the wildcard `raw`."""
    data = wildcards.get("data", DOCUMENTS["data"])
    return "world" if data == DOCUMENTS["data"] else f"{data}/world"


def setting_of(wildcards: Wildcards) -> GridSetting:
    """Return the setting of the grid that wildcards name."""
    names = values_in("".join(wildcards[name] for name in DOCUMENTS))
    return GridSetting(names["data"], names["sampler"], names["lvlm"])


def home_of(grid: Grid, setting: GridSetting, origin: str) -> GridSetting:
    """Return the setting in which a policy was trained that comes to this one from a data set or an LVLM, or none."""
    return setting._replace(**{"data" if origin in grid.data else "lvlm": origin}) if origin else setting


def trained_at(experiment: Experiment, wildcards: Wildcards) -> tuple[dict[str, str], str]:
    """Return the setting in which an evaluated policy (`selected`) was trained, as wildcards, and its name there."""
    name = PolicyName.parse(wildcards["selected"])
    if not name.origin:
        return {key: wildcards[key] for key in DOCUMENTS}, str(name)
    return folders_of(home_of(experiment.grid, setting_of(wildcards), name.origin)), str(name.home)


def batch_of(cell: EvaluatedCell) -> str:
    """Return the folder of the answers of a policy's batch in its setting, below the results."""
    setting = "".join(folders_of(GridSetting(cell.data, cell.sampler, cell.lvlm)).values())
    return f"{setting}/answers/{PolicyName.parse(cell.policy).batch}"
