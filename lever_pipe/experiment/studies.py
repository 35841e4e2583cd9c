"""The whole experiment: what both studies share, and how it is read from a configuration file."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from lever_pipe.base.members import available
from lever_pipe.base.numerics import Mode
from lever_pipe.base.parsing import (
    MEMBER_REMEDY,
    read_section,
    require_none,
    require_plain,
    unknown_member,
)
from lever_pipe.base.sections import Distinct, Fault, FilePath, Section, at_most, cut, dotted, one_of, rule, shown
from lever_pipe.base.sections import Path as Place
from lever_pipe.experiment.agent_config import Intention
from lever_pipe.experiment.config import (
    AUTO,
    TRAIN_IDS,
    ArmSettings,
    Baselines,
    Beams,
    Data,
    Emulate,
    EncoderSettings,
    EvaluationSettings,
    LvlmSettings,
    Pools,
    Preset,
    Report,
    RlData,
    Selector,
    StoreSettings,
)
from lever_pipe.experiment.grid_config import Grid

MEMBERS: Mapping[tuple[str, ...], str] = {
    ("data", "reader"): "lever/datasets",
    ("encoder", "member"): "lever/encoders",
    ("pools", "sampler"): "lever/samplers",
    ("lvlm", "member"): "lvlms",
    ("intention", "tasks", "source"): "intention/sources",
    ("intention", "simulator", "kind"): "intention/simulators",
    ("intention", "model", "codec"): "intention/codecs",
}
"""Keys that name a module, and the folder that holds it."""
MEMBERS_OF_SELECTORS: Mapping[str, str] = {"network": "lever/networks", "head": "lever/heads"}
"""The same, of each preset's selector."""
OTHER_NAMES: Mapping[tuple[str, ...], tuple[str, ...]] = {("lvlm", "member"): (AUTO,)}
"""What a key may say besides."""
PROJECT = Path(__file__).resolve().parents[2]
OWN = (
    *(".ci", ".git", ".snakemake", ".venv", "benchmarks", "config", "docs", "envs", "lever_pipe", "profiles"),
    *("resources", "tests", "workflow"),
)
"""Folders of the project in which nothing is made."""


class Experiment(Section):
    """The whole configuration: what both studies share, study `lever`, and study `intention` under its name."""

    results: FilePath = "results"
    """Folder of all outputs."""
    store: StoreSettings | None = StoreSettings()
    """null for a run that keeps and takes nothing beyond `results`."""
    numerics: Mode = "same_everywhere"
    """Which instructions CPUs compute with: the same bits on every Intel CPU with AVX2, or the widest; execution, not
    identity, but answers and stored work of two paths never mix."""
    forked_jobs: bool = True
    """Whether jobs of this machine are forks of one process that has imported what they need; execution."""
    studies: Distinct[Literal["lever", "intention", "grid"]] = Field(("lever", "intention"), min_length=1)
    """Which studies run and stand in the report."""
    data: Data = Data()
    encoder: EncoderSettings = EncoderSettings()
    pools: Pools = Pools()
    lvlm: LvlmSettings = LvlmSettings()
    rl_data: RlData = RlData()
    beams: Beams = Beams()
    presets: dict[str, Preset] = Field({"published": Preset()})
    arms: tuple[ArmSettings, ...] = Field((ArmSettings(preset="published"),), min_length=1)
    """The first arm fills the documents' tables; further arms get tables of their own."""
    baselines: Baselines = Baselines()
    evaluation: EvaluationSettings = EvaluationSettings()
    emulate: Emulate | None = Emulate()
    """null for a run without emulated faults."""
    intention: Intention = Intention()
    """Study `intention`."""
    grid: Grid = Grid()
    """Study `grid`: selectors, samplers, data sets and LVLMs beside each other."""
    report: Report = Report()

    @property
    def data_sets(self) -> dict[str, Data]:
        """The data sets of the configured studies, by the key that says them."""
        own = {"data": self.data} if "lever" in self.studies else {}
        grid = self.grid.data if "grid" in self.studies else {}
        return own | {f"grid.data.{name}": data for name, data in grid.items()}

    @rule
    def _folders_are_their_own(self) -> Iterator[Fault]:
        """Refuse to write where the project, or something else than a folder, lies."""
        folders = {
            ("results",): getattr(self, "results", None),
            ("store", "folder"): getattr(self.store, "folder", None),
        }
        named = {place: Path(text) for place, text in folders.items() if text is not None}
        for place, path in named.items():
            fault = _taken(path, may_be_home=place == ("store", "folder"))
            if fault:
                yield place, f"must name a folder for it alone, got {shown(folders[place])}, {fault}. Name another."
        if len(named) == 2 and len({os.path.realpath(path) for path in named.values()}) == 1:
            yield ("store", "folder"), f"must differ from results={self.results!r}, got the same. Name another."

    @rule
    def _address_holds_no_secret(self) -> Iterator[Fault]:
        execution = self.intention.execution
        served = {("served", name): connection for name, connection in execution.served.items()}
        for key, connection in ({("connection",): execution.connection} | served).items():
            if "@" in connection.base_url or "?" in connection.base_url:
                place = ("intention", "execution", *key)
                remedy = f"Export the key in the variable that {dotted(place)}.api_key_variable names."
                said = "must hold no name, password or query, got one that does (not shown)"
                yield (*place, "base_url"), f"{said}. {remedy}"

    @rule
    def _start_policy_is_of_another_run(self) -> Iterator[Fault]:
        folder, own = self.intention.model.folder, f"{self.results}/intention"
        if folder and Path(os.path.realpath(folder)).is_relative_to(os.path.realpath(own)):
            bound = f"must not lie in {own}, whose policies this run writes"
            yield ("intention", "model", "folder"), f"{bound}, got {shown(folder)}. Copy it, or name other results."

    @rule
    def _presets_name_folders(self) -> Iterator[Fault]:
        for name in self.presets:
            if not re.fullmatch("[A-Za-z0-9_]{1,64}", name):
                bound = "must be named by 1 to 64 letters, digits and _ (a folder)"
                yield ("presets", cut(name)), f"{bound}, got {shown(name)}. Rename it."

    @rule
    def _arms_name_presets(self) -> Iterator[Fault]:
        for place, name in self._presets_of_arms():
            yield from one_of(place, name, sorted(self.presets), "Name one of them or add the preset.")

    @rule
    def _arms_differ(self) -> Iterator[Fault]:
        seen = set()
        for place, name in self._presets_of_arms():
            if name in seen:
                yield place, f"must differ from the presets of earlier arms, got {name!r}. Merge the arms."
            seen.add(name)

    def _placed_arms(self) -> Iterator[tuple[Place, ArmSettings]]:
        yield from ((("arms", index), arm) for index, arm in enumerate(self.arms))
        if "grid" in self.studies:
            yield from ((("grid", "arms", index), arm) for index, arm in enumerate(self.grid.arms))

    def _all_arms(self) -> list[ArmSettings]:
        return [arm for _, arm in self._placed_arms()]

    def _presets_of_arms(self) -> Iterator[tuple[Place, str]]:
        for index, arm in enumerate(self.arms):
            if hasattr(arm, "preset"):
                yield ("arms", index, "preset"), arm.preset

    @rule
    def _grid_is_whole(self) -> Iterator[Fault]:
        if "grid" not in self.studies:
            return
        for name, axis in (("data", self.grid.data), ("samplers", self.grid.samplers), ("lvlms", self.grid.lvlms)):
            if not axis:
                yield ("grid", name), "must name at least one value where study `grid` runs, got none. Add one."
        if self.grid.baselines.names == ("random",) and not self.grid.arms and not self.grid.policies:
            yield ("grid", "arms"), "must name an arm where random is the only baseline, got none. Add what to compare."
        for index, arm in enumerate(self.grid.arms):
            place = ("grid", "arms", index, "preset")
            yield from one_of(place, arm.preset, sorted(self.presets), "Name one of them or add the preset.")
        for name, data in self.grid.data.items():
            largest, bound = max(self.evaluation.samples), f"grid.data.{name}.n_eval"
            yield from at_most(("evaluation", "samples"), largest, bound, data.n_eval)

    @rule
    def _variants_of_rl_data_share_their_jobs(self) -> Iterator[Fault]:
        """Which jobs there are is said once for all corners."""
        for name, data in self.grid.data.items() if "grid" in self.studies else ():
            for key in ("n_shards", "import_from", "import_format", "rescore") if data.rl_data else ():
                own, common = getattr(data.rl_data, key), getattr(self.rl_data, key)
                if own != common:
                    bound = f"must be that of the experiment, rl_data.{key}={common}"
                    yield ("grid", "data", name, "rl_data", key), f"{bound}, got {own}. Drop it."

    @rule
    def _samples_are_evaluated(self) -> list[Fault]:
        place, do = ("evaluation", "samples"), "Drop it or raise data.n_eval."
        return at_most(place, max(self.evaluation.samples), "data.n_eval", self.data.n_eval, do)

    @rule
    def _shots_fit_into_pools(self) -> list[Fault]:
        return at_most(("evaluation", "shots"), max(self.evaluation.shots), "pools.size", self.pools.size)

    @rule
    def _proposed_shots_fit_into_pools(self) -> list[Fault]:
        return at_most(("rl_data", "shots"), self.rl_data.shots, "pools.size", self.pools.size)

    @rule
    def _beams_are_within_their_pools(self) -> Iterator[Fault]:
        if not any(getattr(arm, "sft_epochs", 0) for arm in self._all_arms()):
            return
        yield from at_most(("beams", "anchors"), self.beams.anchors, "rl_data.n_queries", self.rl_data.n_queries)
        yield from at_most(("beams", "shots"), self.beams.shots, "pools.size", self.pools.size)

    @rule
    def _train_ids_learn_beams_alone(self) -> Iterator[Fault]:
        for place, arm in self._placed_arms():
            preset = self.presets.get(getattr(arm, "preset", ""))
            if preset is None or not hasattr(arm, "sft_epochs") or preset.selector.network != TRAIN_IDS:
                continue
            bound = f"with selector.network: train_ids of preset {arm.preset!r}"
            if not arm.sft_epochs:
                yield (*place, "sft_epochs"), f"must be at least 1 {bound}, got 0. Raise it."
            if arm.long_epochs:
                yield (*place, "long_epochs"), f"must be 0 {bound}, got {arm.long_epochs}. Drop them."
            if arm.on_policy is not None:
                yield (*place, "on_policy"), f"must be null {bound}, got runs. Drop them."
            if place == ("arms", 0):
                do = "Put an arm with a pointer in front of it."
                said = f"must have RCE and GRPO, as the documents' tables do, {bound}, got none. {do}"
                yield (*place, "preset"), said

    @rule
    def _rce_starts_from_an_sft_epoch_that_is_trained(self) -> Iterator[Fault]:
        for where, arm in self._placed_arms():
            preset = self.presets.get(getattr(arm, "preset", ""))
            if preset is not None and hasattr(arm, "sft_epochs"):
                place, bound = ("presets", arm.preset, "rce_from_sft_epoch"), f"{dotted(where)}.sft_epochs"
                do = "Lower it or train more epochs."
                yield from at_most(place, preset.rce_from_sft_epoch, bound, arm.sft_epochs, do)

    @rule
    def _step_embeddings_are_trained(self) -> Iterator[Fault]:
        """A step without an embedding could not be scored, and one that no selection reaches keeps random numbers."""
        most, name = max(self.evaluation.shots), "evaluation.shots"
        for preset in sorted({arm.preset for arm in self._all_arms() if hasattr(arm, "preset")} & self.presets.keys()):
            steps, place = self.presets[preset].selector.steps, ("presets", preset, "selector", "steps")
            drawn = max(self.rl_data.shots, *self.presets[preset].on_policy.shots)
            if steps and not max(most, drawn) <= steps:
                bound = f"must be 0 or at least {max(most, drawn)}, the most shots that are evaluated or trained"
                yield place, f"{bound}, got {steps}. Raise it, or write steps: 0."
            elif steps and self.rl_data.shots < most:
                bound = f"must be 0 where rl_data.shots={self.rl_data.shots} is below the largest of {name}, {most}"
                yield place, f"{bound}, got {steps}. Later rows would not be trained: raise rl_data.shots."

    @rule
    def _drawn_shots_fit_into_pools(self) -> Iterator[Fault]:
        for name in sorted(
            {arm.preset for arm in self._all_arms() if getattr(arm, "on_policy", None)} & self.presets.keys()
        ):
            place, largest = ("presets", name, "on_policy", "shots"), max(self.presets[name].on_policy.shots)
            yield from at_most(place, largest, "pools.size", self.pools.size)

    @rule
    def _world_has_rl_queries(self) -> list[Fault]:
        worlds = {key: data.world for key, data in self._generated().items()}
        found = [
            at_most(("rl_data", "n_queries"), self.rl_data.n_queries, f"{key}.world.n_train", world.n_train)
            for key, world in worlds.items()
        ]
        return [fault for faults in found for fault in faults]

    @rule
    def _world_fills_pools(self) -> Iterator[Fault]:
        for key, data in self._generated().items():
            n_train, size = data.world.n_train, self.pools.size
            if size >= n_train:
                bound = f"must be below {key}.world.n_train={n_train}, as no query is in its own pool"
                yield ("pools", "size"), f"{bound}, got {size}. Lower it or raise {key}.world.n_train."

    def _generated(self) -> dict[str, Data]:
        """Return the data sets that are generated; the experiment's own is checked whether or not its study runs."""
        return {key: data for key, data in {"data": self.data, **self.data_sets}.items() if data.source == "world"}

    @rule
    def _imported_rl_data_are_of_one_data_set(self) -> Iterator[Fault]:
        if self.rl_data.import_from and len(self.data_sets) > 1:
            named = ", ".join(self.data_sets)
            bound = f"must be empty with several data sets ({named}), since a file's queries are those of one"
            yield ("rl_data", "import_from"), f"{bound}, got {shown(self.rl_data.import_from)}. Run one data set."

    @rule
    def _emulation_has_its_preset(self) -> Iterator[Fault]:
        place, emulate = ("emulate", "preset"), self.emulate
        if emulate is None:
            return
        yield from one_of(place, emulate.preset, sorted(self.presets), "Name one of them, or write emulate: null.")
        if emulate.preset not in self.presets:
            return
        preset = self.presets[emulate.preset]
        if not preset.grpo.freeze_projections:
            remedy = "Only then are the trained tensors those that the published evaluation lost"
            yield place, f"must name a preset with grpo.freeze_projections, got {emulate.preset!r}. {remedy}."
        if preset.selector.network != Selector().network:
            bound = f"must name a preset with selector.network: {Selector().network}"
            yield place, f"{bound}, got {emulate.preset!r}. Published runs had it."
        if preset.selector.head != "static":
            yield (
                place,
                f"must name a preset with selector.head: static, got {emulate.preset!r}. Published runs had it.",
            )
        if preset.selector.dropout == preset.selector.attention_dropout == 0:
            yield place, f"must name a preset with dropout, got {emulate.preset!r}. Without it that arm shows nothing."


def parse_experiment(values: Mapping[str, Any], *, source: str = "config.yaml") -> Experiment:
    """Return the validated experiment.

    Raises:
        ConfigError: any fault, unknown members included; all of them, each with dotted path, value seen, what is
            expected and a remedy.
    """
    require_plain(values, source=source)
    experiment, lines = read_section(Experiment, _with_grid_laid_over(values))
    require_none([*lines, *_unknown_members(experiment)], source)
    return experiment


def _with_grid_laid_over(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the values with each data set and LVLM of the grid laid over the experiment's own."""
    grid = values.get("grid") if isinstance(values, Mapping) else None
    if not isinstance(grid, Mapping):
        return values
    whole = dict(grid)
    for axis, section in (("data", "data"), ("lvlms", "lvlm")):
        named = grid.get(axis)
        if isinstance(named, Mapping):
            whole[axis] = {name: _laid_over(values.get(section, {}), of) for name, of in named.items()}
            if section == "data":
                whole[axis] = {name: _with_own_rl_data(of, values) for name, of in whole[axis].items()}
    return {**values, "grid": whole}


def _with_own_rl_data(data: Any, values: Mapping[str, Any]) -> Any:
    if not isinstance(data, Mapping) or not isinstance(data.get("rl_data"), Mapping):
        return data
    return {**data, "rl_data": _laid_over(values.get("rl_data", {}), data["rl_data"])}


def _laid_over(below: Any, above: Any) -> Any:
    if not isinstance(below, Mapping) or not isinstance(above, Mapping):
        return above
    return {**below, **{key: _laid_over(below.get(key), value) for key, value in above.items()}}


def _unknown_members(experiment: Experiment) -> list[str]:
    lines: list[str] = []
    for path, kind in [*MEMBERS.items(), *_members_of_presets(experiment)]:
        name: Any = experiment
        for key in path:
            name = name.get(key) if isinstance(name, dict) else getattr(name, key, None)
        if isinstance(name, str) and name not in (*available(kind), *OTHER_NAMES.get(path, ())):
            seen = unknown_member(kind, name)
            lines.append(f"{dotted(path)}: must be a module of lever_pipe/{kind}, got {seen}. {MEMBER_REMEDY}")
    own = getattr(getattr(experiment, "grid", None), "policies", {})
    for name in [name for name, of in own.items() if not of.selections and name not in available("lever/policies")]:
        do = "Name a file of selections, or put the module into a folder that LEVER_PIPE_MEMBERS names."
        lines.append(f"grid.policies.{name}: must be a module lever/policies/{name}.py, got none. {do}")
    for index, name in enumerate(getattr(getattr(experiment, "grid", None), "samplers", ())):
        if name not in available("lever/samplers"):
            seen = unknown_member("lever/samplers", name)
            lines.append(
                f"grid.samplers[{index}]: must be a module of lever_pipe/lever/samplers, got {seen}. {MEMBER_REMEDY}"
            )
    return lines


def _members_of_presets(experiment: Experiment) -> Iterator[tuple[tuple[str, ...], str]]:
    for preset in getattr(experiment, "presets", {}):
        for key, kind in MEMBERS_OF_SELECTORS.items():
            yield ("presets", preset, "selector", key), kind


def _taken(path: Path, *, may_be_home: bool) -> str:
    """Return what stands in the place of a folder that the workflow is to fill; nothing if it may."""
    if str(path).startswith("~") and not may_be_home:
        return "which no shell expands here"
    if not str(path).strip():
        return "which is blank"
    path = Path(os.path.expanduser(path))  # noqa: PTH111 - a home that nobody has is told elsewhere
    found = Path(os.path.realpath(path))  # a link to itself ends nowhere
    try:
        other = next((each for each in (path, *path.parents) if os.path.lexists(each) and not each.is_dir()), None)
    except OSError as fault:
        return f"which cannot be one ({fault.strerror})"
    if other is not None:
        return f"where {other} is a file"
    if any(folder.is_relative_to(found) for folder in (PROJECT, Path.cwd())):
        return "which holds the project"
    own = next((each for each in OWN if found.is_relative_to((PROJECT / each).resolve())), None)
    return f"which is of the project ({own})" if own else ""
