"""The grid: which selectors stand beside each other, on which data sets, with which pools and vision-language models.

A *setting* is a data set, a sampler and an LVLM; every arm, baseline and policy of a user's own is evaluated in each
setting that no exclusion names. What settings share is made once: examples and embeddings of a data set, pools of a
sampler, answers of an LVLM.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Annotated, NamedTuple

from pydantic import Field

from lever_pipe.base.plugins import available, plugin_of
from lever_pipe.base.sections import Distinct, FilePath, Problem, Section, one_of, rule, some_of
from lever_pipe.experiment.config import ArmSettings, Epoch, KlBeta
from lever_pipe.experiment.data_config import Data
from lever_pipe.experiment.evaluation_config import BASELINES, Baselines
from lever_pipe.experiment.lvlm_config import LvlmSettings
from lever_pipe.experiment.rl_data_config import RlData

NAME = "[A-Za-z0-9_]{1,64}"
Name = Annotated[str, Field(pattern=f"^{NAME}$")]
UNTRAINED = (*BASELINES, "random_all", "bm25", "mmices", "mmr", "dpp", "vote")
"""Baselines that exist; `random` and `random_all` are drawn `n_random_draws` times, the latter out of all train
examples instead of the pool. `vote` shows what `similar_both` does, and answers with the most frequent
answer shown, whatever the LVLM says."""


class GridSetting(NamedTuple):
    """Where policies are compared: a value of each of the three axes."""

    data: str
    sampler: str
    lvlm: str


class GridData(Data):
    """A data set of the grid, with RL data of its own where several ways of making them are compared."""

    rl_data: RlData | None = None
    """Read after the experiment's `rl_data`; null for that itself. Two names with one data set and different RL data
    are two variants; the store gives the second one what both share."""


class GridArm(ArmSettings):
    """A trained selector of the grid: of each of its runs the last epoch is evaluated."""

    base_rce_epochs: Distinct[Epoch] = Field((5,), min_length=1, max_length=1)
    """One, as a row of the grid names none."""
    kl_betas: Distinct[KlBeta] = ()
    """Of offline GRPO; none for a selector without it."""


class GridBaselines(Baselines):
    """Policies without training, in each setting."""

    names: Distinct[str] = ("zero_shot", "random", "oracle")
    """Out of `UNTRAINED`."""

    @rule
    def _names_exist(self) -> Iterator[Problem]:
        yield from some_of(("names",), self.names, UNTRAINED, "Name one of them.", "the baselines")
        if "random" not in self.names:
            yield ("names",), f"must hold random, which every cell is compared with, got {list(self.names)}. Add it."


class OwnPolicy(Section):
    """A user's own selector: a file of selections, or a module `lever/policies/NAME.py` beside the package."""

    selections: dict[Name, FilePath] = Field({})
    """By data set, a CSV file `policy,question_id,demonstrations`, the last ones question ids of train examples with
    blanks between them, best first; empty where the module selects."""


class Exclusion(Section):
    """Cells that do not run; an axis of which no value is named means all of them.

    Without `presets` a setting does not run at all; with them its baselines and policies without training do.
    """

    data: Distinct[str] = ()
    samplers: Distinct[str] = ()
    lvlms: Distinct[str] = ()
    presets: Distinct[str] = ()
    why: str = Field(min_length=1)
    """What the grid's page says in their place, for example what they would cost."""

    def names(self, setting: GridSetting, preset: str) -> bool:
        """Return whether it names a preset in a setting."""
        axes = (self.data, self.samplers, self.lvlms, self.presets)
        return all(value in choices or not choices for choices, value in zip(axes, (*setting, preset), strict=True))


class Grid(Section):
    """Axes of the grid, and what is evaluated in every setting; all else is as in the whole experiment."""

    data: dict[Name, GridData] = Field({})
    """Data sets by name. Each lies over the experiment's `data`: it says what differs."""
    samplers: Distinct[Annotated[str, plugin_of("lever/samplers")]] = ()
    """Plugins of `lever_pipe/lever/samplers`."""
    lvlms: dict[Name, LvlmSettings] = Field({})
    """Vision-language models by name, each read after the experiment's `lvlm`."""
    arms: tuple[GridArm, ...] = ()
    reference: str = ""
    """Preset of the arm that the other arms are compared with, objective by objective."""
    baselines: GridBaselines = GridBaselines()
    policies: dict[Name, OwnPolicy] = Field({})
    """Selectors of a user's own."""
    exclude: tuple[Exclusion, ...] = ()
    transfer: Distinct[str] = ()
    """Data sets, and LVLMs, between which selectors are carried over: those trained on one data set are evaluated on
    the others, those that learned from one LVLM's answers with the others', too."""

    first_items: int = Field(0, ge=0, le=64)
    """Evaluate each pointer as the published runs were, too: every query is offered so many train items, the first
    ones (published: 2), so that no sampler can matter; 0 for not."""

    @property
    def combinations(self) -> list[GridSetting]:
        """Every combination of the three axes, in their order."""
        return [GridSetting(*values) for values in product(self.data, self.samplers, self.lvlms)]

    @property
    def settings(self) -> list[GridSetting]:
        """Those that no exclusion leaves out as a whole."""
        left_out = [entry for entry in self.exclude if not entry.presets]
        return [setting for setting in self.combinations if not any(entry.names(setting, "") for entry in left_out)]

    def excluded(self, setting: GridSetting, preset: str) -> str:
        """Return why an arm does not run in a setting; nothing where it does."""
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
