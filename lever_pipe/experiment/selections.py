"""Policies that select: trained selectors, baselines, and selectors of a user."""

from __future__ import annotations

from pydantic import Field

from lever_pipe.base.records import Normalisation
from lever_pipe.base.sections import Section, Seed
from lever_pipe.experiment.selector import SELECTOR, Selector


class SelectDemonstrationsConfig(Section):
    PLUGINS = SELECTOR
    selector: Selector
    shots: int


class SelectBaselineConfig(Section):
    normalise_references: Normalisation = "when_they_disagree"
    baseline: str
    shots: int
    seed: Seed


class SelectOwnConfig(Section):
    own: str
    module: str
    """Plugin of `lever/policies` that selects; empty if a file contains the selections."""
    shots: int


class EmulateFirstItemsConfig(SelectDemonstrationsConfig):
    items: int
    """Size of the common pool, the first train items, that replaces each query's pool."""


BASELINES = ("zero_shot", "random", "similar_image", "similar_question", "similar_both", "oracle")
"""Policies without training that every report shows."""


class Baselines(Section):
    """Policies without training, at the same shot and sample counts."""

    n_random_draws: int = Field(3, ge=1, le=100)
    seed: Seed = 42
