"""Fields of several stages, with their sources."""

from __future__ import annotations

from typing import Annotated

from lever_pipe.base.records import Normalisation, Split
from lever_pipe.base.sections import Epoch, Seed
from lever_pipe.experiment.identities import Planned, Setting, Wildcard

OF_PRESET = "presets.{preset}"
"""A run's hyper-parameters."""
SELECTOR = ("lever.networks.{selector.network}", "lever.heads.{selector.head}")
OfSplit = Annotated[Split, Wildcard("split")]
OfSeed = Annotated[Seed, Wildcard("seed")]
OfEpoch = Annotated[Epoch, Wildcard("epoch")]
MainPreset = Annotated[str, Setting("arms.0.preset")]
References = Annotated[Normalisation, Setting("evaluation.normalise_references")]
MostShots = Annotated[int, Planned("most_shots")]
