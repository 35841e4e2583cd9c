"""Stages that collect and compare what others have computed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from lever_pipe.base.records import AnswerText
from lever_pipe.base.sections import Counts, Names, Section, Seed
from lever_pipe.experiment.data import WorldData
from lever_pipe.experiment.evaluation import PrimaryCells, PrimaryFamily
from lever_pipe.experiment.identities import Planned, Setting, identity_of
from lever_pipe.experiment.selector import Selector
from lever_pipe.experiment.shared_fields import MainPreset, References
from lever_pipe.experiment.sweeps import Sweeps

Evaluated = Annotated[Names, Planned("evaluated")]


@identity_of("collect_evidence")
class InputsAlone(Section):
    """Identity of stages that depend on their inputs only."""


@identity_of("collect_results", section="evaluation")
class CollectResultsConfig(Section):
    main_preset: MainPreset
    presets: Annotated[Names, Planned("presets")]
    """Presets of the arms, in the arms' order."""
    train_shares: Annotated[tuple[float, ...], Planned("train_shares")]
    """One for each of these presets."""


@identity_of("collect_samples", section="evaluation")
class CollectSamplesConfig(Section):
    normalise_references: References = "when_they_disagree"
    answers: Annotated[AnswerText, Setting("data.answers")] = "stemmed"
    main_preset: MainPreset
    policies: Annotated[Names, Planned("sampled")]
    """One for each of the `answers` and of `per_question`."""
    samples: Counts
    shots: Counts
    world: Annotated[WorldData | None, Planned("world")]
    """None if data come from files."""


@identity_of("collect_lineage")
class CollectLineageConfig(Section):
    presets: Annotated[Names, Planned("presets")]
    """One for each of the `rewards`."""
    batch_sizes: Annotated[Counts, Planned("batch_sizes")]
    """Number of policies in each of the `answers`."""
    scale: Annotated[str, Planned("scale")]
    """The LVLM, its number of parameters, and its data."""


@identity_of("measure_drift", section="evaluation")
class MeasureDriftConfig(Section):
    policies: Evaluated
    starts: Annotated[Names, Planned("starts")]
    """Start selectors of policies that are not in `policies` themselves."""
    selectors: Annotated[Mapping[str, Selector], Planned("selectors")]
    """By preset."""
    shots: Counts


@identity_of("compare_policies", section="evaluation")
class ComparePoliciesConfig(Section):
    main_preset: MainPreset
    data: Annotated[str, Setting("data.source")]
    """`world` or `files`."""
    policies: Evaluated
    """The compared policies, in the order of their score files."""
    samples: Counts
    shots: Counts
    seed: Seed
    primary: PrimaryCells = PrimaryCells()
    families: dict[PrimaryFamily, Names] = Field({})
    sweeps: Sweeps = ()
    n_resamples: int = 10_000
    """Resamples of questions for an interval; the error of an end is then about 1.5 % of the half width."""
