"""The whole experiment: settings that the studies share, rules across sections, and validation."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from lever_pipe.base.numerics import Mode
from lever_pipe.base.parsing import parse_model, refusal
from lever_pipe.base.sections import (
    Distinct,
    FilePath,
    Problem,
    Section,
    at_most,
    displayed,
    dotted,
    one_of,
    repeated,
    rule,
    some_of,
)
from lever_pipe.base.sections import Path as Location
from lever_pipe.experiment.agent_training import AgentArm
from lever_pipe.experiment.arms import ArmSettings, Preset
from lever_pipe.experiment.beams import Beams
from lever_pipe.experiment.configuration import laid_over
from lever_pipe.experiment.data import Data
from lever_pipe.experiment.emulation import Emulate
from lever_pipe.experiment.evaluation import EvaluationSettings
from lever_pipe.experiment.examples import EncoderSettings
from lever_pipe.experiment.grid import Grid, Name
from lever_pipe.experiment.intention import Intention
from lever_pipe.experiment.lvlm import LvlmSettings
from lever_pipe.experiment.pools import Pools
from lever_pipe.experiment.rl_data import RlData
from lever_pipe.experiment.selections import Baselines
from lever_pipe.experiment.selector import Selector
from lever_pipe.experiment.sweep_cells import expanded, problems_of
from lever_pipe.experiment.sweeps import Sweep, swept

PROJECT = Path(__file__).resolve().parents[2]
OWN = (
    *(".ci", ".git", ".snakemake", ".venv", "benchmarks", "config", "docs", "envs", "lever_pipe", "profiles"),
    *("resources", "tests", "workflow"),
)
"""Folders of the project that must not contain outputs."""


class StoreSettings(Section):
    """The store of finished jobs outside `results`, to restore them without computing; changes no number."""

    folder: FilePath = Field(".lever_pipe/store", min_length=1)
    """Stored jobs and the ledger of LVLM answers; several working directories and users may share one. `~` works."""
    max_gb: float = Field(20.0, gt=0)
    """Most gigabytes of stored jobs; beyond it the least recently used ones are deleted."""


class Report(Section):
    """Title, language and checks of the report; changes no number of the study."""

    title: str = ""
    """Title of the main page; empty for a title with the studies' names."""
    language: Literal["en", "zh"] = "en"
    guard: Literal["footnote", "strict"] = "footnote"
    """Handling of a row that differs from its neighbors in more than the compared factor."""


class Experiment(Section):
    """The whole configuration: shared settings, study `lever`, and the sections of studies `intention` and `grid`."""

    results: FilePath = "results"
    """Folder of all outputs."""
    store: StoreSettings | None = StoreSettings()
    """null for a run without a store."""
    numerics: Mode = "portable"
    """CPU instructions: the same bits on every Intel CPU with AVX2, or the widest instructions. Execution, not
    identity, but answers and stored jobs of the two paths never mix."""
    rerun_on_library_versions: bool = True
    """Whether a new version of torch, transformers or tokenizers reruns the jobs that use it, so that no table mixes
    versions; false allows mixed versions. Execution, not identity."""
    forked_jobs: bool = True
    """Whether jobs of this machine are forks of one process with all imports done; execution, not identity."""
    studies: Distinct[Literal["lever", "intention", "grid"]] = Field(("lever", "intention"), min_length=1)
    """Studies that run and appear in the report."""
    data: Data = Data()
    encoder: EncoderSettings = EncoderSettings()
    pools: Pools = Pools()
    lvlm: LvlmSettings = LvlmSettings()
    rl_data: RlData = RlData()
    beams: Beams = Beams()
    presets: dict[Name, Preset] = Field({"published": Preset()})
    arms: tuple[ArmSettings, ...] = Field((ArmSettings(preset="published"),), min_length=1)
    """The first arm fills the documents' tables; further arms get separate tables."""
    sweeps: tuple[Sweep, ...] = ()
    """Further presets and arms, in separate tables."""
    baselines: Baselines = Baselines()
    evaluation: EvaluationSettings = EvaluationSettings()
    emulate: Emulate | None = Emulate()
    """null for a run without emulated bugs."""
    intention: Intention = Intention()
    """Study `intention`."""
    grid: Grid = Grid()
    """Study `grid`: a comparison across selectors, samplers, data sets and LVLMs."""
    report: Report = Report()

    @property
    def written_arms(self) -> tuple[ArmSettings, ...]:
        """Return the arms without those of sweeps."""
        cells = swept(self.sweeps)
        return tuple(arm for arm in self.arms if arm.preset not in cells)

    @property
    def data_sets(self) -> dict[str, Data]:
        """The data sets of the configured studies, by configuration key."""
        main = {"data": self.data} if "lever" in self.studies else {}
        grid = self.grid.data if "grid" in self.studies else {}
        return main | {f"grid.data.{name}": data for name, data in grid.items()}

    def _placed_rl_data(self) -> Iterator[tuple[Location, RlData]]:
        """Yield the RL data of the experiment and of the grid's data sets, with their locations."""
        yield ("rl_data",), self.rl_data
        for name, data in self.grid.data.items() if "grid" in self.studies else ():
            if data.rl_data is not None:
                yield ("grid", "data", name, "rl_data"), data.rl_data

    @rule
    def _folders_are_their_own(self) -> Iterator[Problem]:
        """Refuse output folders that contain the project or are among its own, paths of files, and equal folders."""
        folders: dict[Location, str] = {("results",): self.results}
        if self.store is not None:
            folders["store", "folder"] = self.store.folder
        if re.search("[<>]", self.results):
            yield ("results",), f"must hold neither < nor >, which Snakemake reads, got {self.results}. Rename it."
        for location, text in folders.items():
            if problem := _taken(text, is_store=len(location) > 1):
                yield location, f"must name a folder for it alone, got {displayed(text)}, {problem}. Name another."
        if len({os.path.realpath(text) for text in folders.values()}) < len(folders):
            yield ("store", "folder"), f"must differ from results={self.results!r}, got the same. Name another."

    def _placed_arms(self) -> Iterator[tuple[Location, ArmSettings]]:
        """Yield the arms of studies `lever` and `grid` with their locations."""
        yield from ((("arms", index), arm) for index, arm in enumerate(self.arms))
        if "grid" in self.studies:
            yield from ((("grid", "arms", index), arm) for index, arm in enumerate(self.grid.arms))

    def _trained(self) -> Iterator[tuple[Location, ArmSettings, Preset]]:
        """Yield these arms with their presets; another rule reports arms with unknown presets."""
        for location, arm in self._placed_arms():
            if arm.preset in self.presets:
                yield location, arm, self.presets[arm.preset]

    @rule
    def _arms_name_presets(self) -> Iterator[Problem]:
        for location, arm in self._placed_arms():
            do = "Name one of them or add the preset."
            yield from one_of((*location, "preset"), arm.preset, sorted(self.presets), do)
        yield from repeated(("arms",), "preset", [arm.preset for arm in self.arms])
        if "grid" in self.studies:
            yield from repeated(("grid", "arms"), "preset", [arm.preset for arm in self.grid.arms])

    @rule
    def _replays_have_draws(self) -> Iterator[Problem]:
        """Require for `grpo.replays` the on-policy run, and selections of one length like the stored ones."""
        for location, arm, preset in self._trained():
            if not preset.grpo.replays:
                continue
            runs, on_policy = arm.on_policy, preset.on_policy
            if runs is None or 0.0 not in runs.kl_betas or {*runs.seeds} != {*arm.seeds}:
                problem = (
                    "must have runs of KL_BETA 0 for each seed of the arm, as presets.{}.grpo.replays says, got {}"
                )
                found = "none" if runs is None else f"betas {list(runs.kl_betas)}, seeds {list(runs.seeds)}"
                yield (*location, "on_policy"), f"{problem.format(arm.preset, found)}. Add them."
            else:
                last = max(arm.grpo_epochs, arm.long_epochs)
                yield from at_most((*location, "grpo_epochs"), last, "on_policy.epochs", runs.epochs)
            if len(on_policy.shots) > 1 or preset.selector.head == "stop":
                shots = ("presets", arm.preset, "on_policy", "shots")
                yield shots, f"must be one length with grpo.replays: true, got {list(on_policy.shots)}. Name one."

    @rule
    def _families_are_of_arms(self) -> Iterator[Problem]:
        presets_known = [arm.preset for arm in self.written_arms]
        for name, presets in self.evaluation.families.items():
            location, do = ("evaluation", "families", name), "Name one of them or add an arm."
            yield from some_of(location, presets, presets_known, do, "the arms' presets")

    @rule
    def _sweeps_are_over_keys_of_arms(self) -> Iterator[Problem]:
        yield from problems_of(self.sweeps, [arm.preset for arm in self.arms], ArmSettings, Preset)
        for location, text in problems_of(self.intention.sweeps, [arm.name for arm in self.intention.arms], AgentArm):
            yield ("intention", *location), text

    @rule
    def _grid_is_whole(self) -> Iterator[Problem]:
        if "grid" not in self.studies:
            return
        for name, axis in (("data", self.grid.data), ("samplers", self.grid.samplers), ("lvlms", self.grid.lvlms)):
            if not axis:
                yield ("grid", name), "must name at least one value where study `grid` runs, got none. Add one."

    @rule
    def _variants_of_rl_data_share_their_jobs(self) -> Iterator[Problem]:
        """Refuse variants that need other jobs: the set of jobs is the same for all settings."""
        for location, rl_data in self._placed_rl_data():
            for key in ("n_shards", "import_from", "import_format", "rescore"):
                value, common = getattr(rl_data, key), getattr(self.rl_data, key)
                if value != common:
                    bound = f"must be that of the experiment, rl_data.{key}={common}"
                    yield (*location, key), f"{bound}, got {value}. Drop it."

    @rule
    def _samples_are_evaluated(self) -> Iterator[Problem]:
        """Refuse sample counts above a data set's size, including `data` even if study `lever` does not run."""
        for key, data in {"data": self.data, **self.data_sets}.items():
            yield from at_most(("evaluation", "samples"), max(self.evaluation.samples), f"{key}.n_eval", data.n_eval)

    @rule
    def _shots_fit_into_pools(self) -> Iterator[Problem]:
        shots: dict[Location, int] = {("evaluation", "shots"): max(self.evaluation.shots)}
        shots |= {(*location, "shots"): rl_data.shots for location, rl_data in self._placed_rl_data()}
        for _, arm, preset in self._trained():
            if arm.sft_epochs:
                shots["beams", "shots"] = self.beams.shots
            if arm.on_policy:
                shots["presets", arm.preset, "on_policy", "shots"] = max(preset.on_policy.shots)
        for location, most in shots.items():
            yield from at_most(location, most, "pools.size", self.pools.size)

    @rule
    def _anchors_are_rl_queries(self) -> Iterator[Problem]:
        for location, rl_data in (
            self._placed_rl_data() if any(arm.sft_epochs for _, arm in self._placed_arms()) else ()
        ):
            bound = dotted((*location, "n_queries"))
            yield from at_most(("beams", "anchors"), self.beams.anchors, bound, rl_data.n_queries)

    @rule
    def _step_embeddings_are_trained(self) -> Iterator[Problem]:
        """Require an embedding for every step, because a step without one cannot be scored."""
        stored = [rl_data.shots for _, rl_data in self._placed_rl_data()]
        for _, arm, preset in self._trained():
            steps, location = preset.selector.steps, ("presets", arm.preset, "selector", "steps")
            needed = max(*self.evaluation.shots, *stored, *preset.on_policy.shots)
            if 0 < steps < needed:
                bound = f"must be 0 or at least {needed}, the most shots that are evaluated or trained"
                yield location, f"{bound}, got {steps}. Raise it, or write steps: 0."

    @rule
    def _worlds_are_large_enough(self) -> Iterator[Problem]:
        for key, data in {"data": self.data, **self.data_sets}.items():
            if data.source == "world":
                yield from self.too_large_for(key, f"{key}.world.n_train", data.world.n_train)

    def too_large_for(self, key: str, bound: str, n_train: int) -> Iterator[Problem]:
        """Yield the keys that need more train examples than a data set has.

        Args:
            key: configuration key of the data set.
            bound: name of its number of train examples, for messages.
            n_train: its number of train examples.
        """
        # The experiment's own RL data have the key (): data sets without own RL data use them.
        by_key = {location[:-1]: (location, rl_data) for location, rl_data in self._placed_rl_data()}
        location, rl_data = by_key.get(tuple(key.split(".")), by_key[()])
        if not rl_data.import_from:
            yield from at_most((*location, "n_queries"), rl_data.n_queries, bound, n_train)
        if self.pools.size >= n_train:
            problem = f"must be below {bound}={n_train}, as no query is in its own pool, got {self.pools.size}"
            yield ("pools", "size"), f"{problem}. Lower it or raise {bound}."

    @rule
    def _emulation_has_its_preset(self) -> Iterator[Problem]:
        location, emulate = ("emulate", "preset"), self.emulate
        if emulate is None:
            return
        yield from one_of(location, emulate.preset, sorted(self.presets), "Name one of them, or write emulate: null.")
        if emulate.preset not in self.presets:
            return
        preset = self.presets[emulate.preset]
        as_published = {
            "grpo.freeze_projections": preset.grpo.freeze_projections,
            f"selector.network: {Selector().network}": preset.selector.network == Selector().network,
            "selector.head: static": preset.selector.head == "static",
            "dropout": preset.selector.dropout + preset.selector.attention_dropout > 0,
        }
        for setting, is_so in as_published.items():
            if not is_so:
                yield location, f"must name a preset with {setting}, got {emulate.preset!r}. Published runs had it."


def parse_experiment(values: Mapping[str, Any], *, source: str = "config.yaml") -> Experiment:
    """Return the validated experiment.

    Raises:
        ConfigError: all invalid values, or else all violated rules, each with its path, value and expected value.
    """
    experiment = parse_model(Experiment, _with_grid_laid_over(values), source=source)
    has_sweeps = experiment.sweeps or experiment.intention.sweeps
    return _with_arms_of_sweeps(experiment, source) if has_sweeps else experiment


def _with_arms_of_sweeps(experiment: Experiment, source: str) -> Experiment:
    """Return the experiment with an arm for each cell of its sweeps."""
    # Copies are not validated, so the rules run again on the result; their problems are reported like others.
    study, presets = experiment.intention, experiment.presets
    arms = {arm.preset: (arm, presets[arm.preset]) for arm in experiment.arms}
    sweeps, new_arms, lines = expanded("sweeps", experiment.sweeps, arms)
    swept = [arm.model_copy(update={"preset": name}) for name, (arm, _) in new_arms.items()]
    update: dict[str, Any] = {"sweeps": sweeps, "arms": (*experiment.arms, *swept)}
    update["presets"] = presets | {name: preset for name, (_, preset) in new_arms.items()}
    written = {arm.name: (study.filled(arm),) for arm in study.arms}
    sweeps, new_arms, more = expanded("intention.sweeps", study.sweeps, written, study.filled)
    agents = (*study.arms, *(arm.model_copy(update={"name": name}) for name, (arm,) in new_arms.items()))
    update["intention"] = study.model_copy(update={"sweeps": sweeps, "arms": agents})
    whole = experiment.model_copy(update=update)
    problems = [*whole.problems(), *((("intention", *location), text) for location, text in whole.intention.problems())]
    if lines := [*lines, *more] or [f"{dotted(location)}: {text}" for location, text in problems]:
        raise refusal(lines, source)
    return whole


def _with_grid_laid_over(values: Any) -> Any:
    """Return the values with the experiment's settings filled in for each data set and LVLM of the grid."""
    grid = values.get("grid") if isinstance(values, Mapping) else None
    if not isinstance(grid, Mapping):
        return values
    whole = dict(grid)
    for axis, key in (("data", "data"), ("lvlms", "lvlm")):
        if isinstance(grid.get(axis), Mapping):
            whole[axis] = {name: laid_over(values.get(key), settings) for name, settings in grid[axis].items()}
            for settings in whole[axis].values():
                if isinstance(settings, dict) and isinstance(settings.get("rl_data"), Mapping):
                    settings["rl_data"] = laid_over(values.get("rl_data"), settings["rl_data"])
    return {**values, "grid": whole}


def _taken(text: str, *, is_store: bool) -> str:
    """Return the reason why the workflow must not use a folder; empty if it may."""
    if not text.strip():
        return "which is blank"
    path = Path(os.path.expanduser(text) if is_store else text)  # noqa: PTH111 - keeps an unknown `~user`
    if str(path).startswith("~"):
        return "whose home folder does not exist, or which only a shell expands"
    if file := next((part for part in (path, *path.parents) if os.path.lexists(part) and not part.is_dir()), None):
        return f"where {file} is a file"
    path = Path(os.path.realpath(path))  # realpath, as Path.resolve fails on a link to itself
    if any(part.is_relative_to(path) for part in (PROJECT, Path.cwd())):
        return "which contains the project"
    part = next((part for part in OWN if path.is_relative_to((PROJECT / part).resolve())), None)
    return f"which belongs to the project ({part})" if part else ""
