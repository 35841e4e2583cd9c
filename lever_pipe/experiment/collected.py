"""Stages that collect and compare what others have computed."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field

from lever_pipe.base.records import AnswerText, Normalisation
from lever_pipe.base.sections import Counts, Names, Section, Seed
from lever_pipe.experiment.data import WorldData
from lever_pipe.experiment.evaluation import PrimaryCells, PrimaryFamily
from lever_pipe.experiment.selector import Selector
from lever_pipe.experiment.sweeps import Sweeps


class InputsAlone(Section):
    """Identity of stages that depend on their inputs only."""


class CollectResultsConfig(Section):
    main_preset: str
    presets: Names
    """Presets of the arms, in the arms' order."""
    train_shares: tuple[float, ...]
    """One for each of these presets."""


class CollectSamplesConfig(Section):
    normalise_references: Normalisation = "when_they_disagree"
    answers: AnswerText = "stemmed"
    main_preset: str
    policies: Names
    """One for each of the `answers` and of `per_question`."""
    samples: Counts
    shots: Counts
    world: WorldData | None
    """None if data come from files."""


class CollectLineageConfig(Section):
    presets: Names
    """One for each of the `rewards`."""
    batch_sizes: Counts
    """Number of policies in each of the `answers`."""
    scale: str
    """The LVLM, its number of parameters, and its data."""


class MeasureDriftConfig(Section):
    policies: Names
    starts: Names
    """Start selectors of policies that are not in `policies` themselves."""
    selectors: Mapping[str, Selector]
    """By preset."""
    shots: Counts


class ComparePoliciesConfig(Section):
    main_preset: str
    data: str
    """`world` or `files`."""
    policies: Names
    """The compared policies, in the order of their score files."""
    samples: Counts
    shots: Counts
    seed: Seed
    primary: PrimaryCells = PrimaryCells()
    families: dict[PrimaryFamily, Names] = Field({})
    sweeps: Sweeps = ()
    n_resamples: int = 10_000
    """Resamples of questions for an interval; the error of an end is then about 1.5 % of the half width."""
