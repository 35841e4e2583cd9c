"""Policies that select: trained selectors, baselines, and selectors of a user."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from lever_pipe.base.sections import Section, Seed
from lever_pipe.experiment.identities import Planned, Wildcard, identity_of
from lever_pipe.experiment.selector import Selector
from lever_pipe.experiment.shared_fields import SELECTOR, MostShots, References


@identity_of("select_demonstrations", *SELECTOR)
class SelectDemonstrationsConfig(Section):
    selector: Annotated[Selector, Planned("selector")]
    shots: MostShots


@identity_of("select_baseline", section="baselines")
class SelectBaselineConfig(Section):
    normalise_references: References = "when_they_disagree"
    baseline: Annotated[str, Wildcard("baseline")]
    shots: MostShots
    seed: Seed


@identity_of("select_own")
class SelectOwnConfig(Section):
    own: Annotated[str, Wildcard("own")]
    module: Annotated[str, Planned("own_module")]
    """Plugin of `lever/policies` that selects; empty if a file contains the selections."""
    shots: MostShots


@identity_of("emulate_first_items", *SELECTOR)
class EmulateFirstItemsConfig(SelectDemonstrationsConfig):
    items: Annotated[int, Wildcard("offered")]
    """Size of the common pool, the first train items, that replaces each query's pool."""


BASELINES = ("zero_shot", "random", "similar_image", "similar_question", "similar_both", "oracle")
"""Policies without training that every report shows."""


class Baselines(Section):
    """Policies without training, at the same shot and sample counts."""

    n_random_draws: int = Field(3, ge=1, le=100)
    seed: Seed = 42
