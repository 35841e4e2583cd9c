"""Study `grid`: a comparison of selectors across data sets, pools and vision-language models.

A *setting* is a data set, a sampler and an LVLM. Every arm, baseline and user policy is evaluated in each setting that
is not excluded. Settings share artifacts, which are computed once: examples and embeddings of a data set, pools of a
sampler, answers of an LVLM.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Annotated, NamedTuple

from pydantic import Field

from lever_pipe.base.plugins import available, plugin_of
from lever_pipe.base.sections import (
    Counts,
    Distinct,
    Epoch,
    FilePath,
    KlBeta,
    Problem,
    Section,
    Seed,
    one_of,
    rule,
    some_of,
)
from lever_pipe.experiment.arms import ArmSettings
from lever_pipe.experiment.data import Data
from lever_pipe.experiment.lvlm import LvlmSettings
from lever_pipe.experiment.rl_data import RlData
from lever_pipe.experiment.selections import BASELINES, Baselines


class EvaluatedCell(Section):
    """A policy in a setting of the grid."""

    data: str
    sampler: str
    lvlm: str
    policy: str
    training_prompts: int
    """Most prompts that the LVLM answers before the policy can select."""


class CompareCellsConfig(Section):
    evaluated: tuple[EvaluatedCell, ...]
    """One for each of the `per_question`."""
    reference: str
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


class BuildGridConfig(Section):
    title: str
    samples: Counts
    shots: Counts
    missing: tuple[MissingCell, ...]
    models: dict[str, str]
    """LVLM of the grid -> its model."""
    data: dict[str, str]
    """Data set of the grid -> its name on the page."""


NAME = "[A-Za-z0-9_]{1,64}"
Name = Annotated[str, Field(pattern=f"^{NAME}$")]
UNTRAINED = (*BASELINES, "random_all", "bm25", "mmices", "mmr", "dpp", "vote")
"""All baselines. `random` and `random_all` are drawn `n_random_draws` times, the latter from all train examples instead
of the pool. `vote` shows the demonstrations of `similar_both` and answers with their most frequent answer, independent
of the LVLM."""


class GridSetting(NamedTuple):
    """One value of each of the three axes; policies are compared within a setting."""

    data: str
    sampler: str
    lvlm: str


class GridData(Data):
    """A data set of the grid, with own RL data where the grid compares several variants of them."""

    rl_data: RlData | None = None
    """Overrides of the experiment's `rl_data`; null for none. Two names with one data set and different RL data are two
    variants; the store provides the artifacts that they share."""


class GridArm(ArmSettings):
    """A trained selector of the grid; the last epoch of each of its runs is evaluated."""

    base_rce_epochs: Distinct[Epoch] = Field((5,), min_length=1, max_length=1)
    """Exactly one, because rows of the grid do not show it."""
    kl_betas: Distinct[KlBeta] = ()
    """KL_BETA of offline GRPO; empty for a selector without it."""


class GridBaselines(Baselines):
    """Policies without training, in each setting."""

    names: Distinct[str] = ("zero_shot", "random", "oracle")
    """Some of `UNTRAINED`."""

    @rule
    def _names_exist(self) -> Iterator[Problem]:
        yield from some_of(("names",), self.names, UNTRAINED, "Name one of them.", "the baselines")
        if "random" not in self.names:
            yield ("names",), f"must hold random, which every cell is compared with, got {list(self.names)}. Add it."


class OwnPolicy(Section):
    """A user's selector: a file of selections, or a module `lever/policies/NAME.py` outside the package."""

    selections: dict[Name, FilePath] = Field({})
    """By data set, a CSV file `policy,question_id,demonstrations`. Demonstrations are question ids of train examples,
    best first, separated by blanks. Empty where the module selects."""


class Exclusion(Section):
    """Cells that do not run; an empty axis means all of its values.

    Without `presets` the whole setting is excluded; with them its baselines and policies without training still run.
    """

    data: Distinct[str] = ()
    samplers: Distinct[str] = ()
    lvlms: Distinct[str] = ()
    presets: Distinct[str] = ()
    why: str = Field(min_length=1)
    """The reason on the grid's page, for example the cost of these cells."""

    def names(self, setting: GridSetting, preset: str) -> bool:
        """Return whether the exclusion covers a preset in a setting."""
        axes = (self.data, self.samplers, self.lvlms, self.presets)
        return all(value in choices or not choices for choices, value in zip(axes, (*setting, preset), strict=True))


class Grid(Section):
    """Axes of the grid, and the policies of every setting; all else is as in the whole experiment."""

    data: dict[Name, GridData] = Field({})
    """Data sets by name, each with its overrides of the experiment's `data`."""
    samplers: Distinct[Annotated[str, plugin_of("lever/samplers")]] = ()
    """Plugins of `lever_pipe/lever/samplers`."""
    lvlms: dict[Name, LvlmSettings] = Field({})
    """Vision-language models by name, each with its overrides of the experiment's `lvlm`."""
    arms: tuple[GridArm, ...] = ()
    reference: str = ""
    """Preset of the arm that the other arms are compared with, objective by objective."""
    baselines: GridBaselines = GridBaselines()
    policies: dict[Name, OwnPolicy] = Field({})
    """The user's selectors."""
    exclude: tuple[Exclusion, ...] = ()
    transfer: Distinct[str] = ()
    """Data sets and LVLMs for transfer. A selector trained on one of the data sets is also evaluated on the others; a
    selector trained on one LVLM's answers is also evaluated with the others."""

    first_items: int = Field(0, ge=0, le=64)
    """Also evaluate each pointer network as the published runs did: every query gets the same pool, this many first
    train items (published: 2), so that the sampler has no effect; 0 to skip."""

    @property
    def combinations(self) -> list[GridSetting]:
        """Every combination of the three axes, in their order."""
        return [GridSetting(*values) for values in product(self.data, self.samplers, self.lvlms)]

    @property
    def settings(self) -> list[GridSetting]:
        """The settings that are not excluded as a whole."""
        left_out = [entry for entry in self.exclude if not entry.presets]  # empty `presets` match any name, also ""
        return [setting for setting in self.combinations if not any(entry.names(setting, "") for entry in left_out)]

    def excluded(self, setting: GridSetting, preset: str) -> str:
        """Return the reason why an arm does not run in a setting; empty if it runs."""
        return next((entry.why for entry in self.exclude if entry.names(setting, preset)), "")

    @rule
    def _reference_is_an_arm(self) -> Iterator[Problem]:
        if self.arms or self.reference:
            presets = [arm.preset for arm in self.arms]
            yield from one_of(("reference",), self.reference, presets, "Name one of them.", "the arms' presets")

    @rule
    def _exclusions_name_values(self) -> Iterator[Problem]:
        axes = {
            "data": list(self.data),
            "samplers": list(self.samplers),
            "lvlms": list(self.lvlms),
            "presets": [arm.preset for arm in self.arms],
        }
        for index, exclusion in enumerate(self.exclude):
            for axis, values in axes.items():
                location, named = ("exclude", index, axis), getattr(exclusion, axis)
                yield from some_of(location, named, values, "Name one of them.", f"the grid's {axis}")

    @rule
    def _transfer_is_between_data_sets_or_lvlms(self) -> Iterator[Problem]:
        names = (*self.data, *self.lvlms)
        yield from some_of(("transfer",), self.transfer, names, "Name one of them.", "grid.data and grid.lvlms")
        for name in set(self.transfer) & self.data.keys() & self.lvlms.keys():
            yield ("transfer",), f"must name a data set or an LVLM, got {name!r}, which both are called. Rename one."

    @rule
    def _policies_can_select(self) -> Iterator[Problem]:
        modules = available("lever/policies")
        for name in (name for name, policy in self.policies.items() if not policy.selections):
            if name not in modules:
                do = "Name a file of selections, or put the module into a folder that LEVER_PIPE_PLUGINS names."
                yield ("policies", name), f"must be a module lever/policies/{name}.py, got none. {do}"

    @rule
    def _selections_are_of_data_sets(self) -> Iterator[Problem]:
        for name, policy in self.policies.items():
            for data in policy.selections:
                location = ("policies", name, "selections", data)
                yield from one_of(location, data, tuple(self.data), "Name one of them.", "grid.data")
