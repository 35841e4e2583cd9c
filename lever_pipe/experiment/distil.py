"""Distillation of the annotations' best candidates."""

from __future__ import annotations

from pydantic import Field

from lever_pipe.base.records import Normalisation
from lever_pipe.base.sections import Section
from lever_pipe.experiment.selector import TrainingFromBaseConfig


class Distil(Section):
    """Supervised learning of the annotations' best candidates (`baseline/oracle`), as an upper bound."""

    learning_rate: float = Field(1e-3, gt=0, le=1)
    batch_queries: int = Field(16, ge=1)
    passes: int = Field(4, ge=1, le=64)
    """Number of passes of an epoch over the train queries."""
    weight_decay: float = Field(0.01, ge=0, le=1)


class TrainDistilEpochConfig(TrainingFromBaseConfig):
    normalise_references: Normalisation = "when_they_disagree"
    distil: Distil
