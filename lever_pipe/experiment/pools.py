"""Pools of candidates."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from lever_pipe.base.plugins import plugin_of
from lever_pipe.base.records import Normalisation, Split
from lever_pipe.base.sections import Section, Seed
from lever_pipe.experiment.examples import EncoderSettings


class Pools(Section):
    """The K train examples offered to each query."""

    encoder: EncoderSettings | None = None
    """The encoder that measures similarity; null for the selector's encoder. The published pools have ViT-L/14."""

    sampler: Annotated[str, plugin_of("lever/samplers")] = "uniform"
    """A plugin of `lever_pipe/lever/samplers`; `uniform` is the published RandSampler."""
    size: int = Field(64, ge=2, le=4096)
    seed: Seed = 42
    exclude_same_image: bool = True
    """Never offer an example of the query's own image."""


class SamplePoolsConfig(Section):
    PLUGINS = ("lever.samplers.{pools.sampler}",)
    split: Split
    pools: Pools
    n_rl_queries: int
    rl_seed: Seed


class MeasurePoolsConfig(Section):
    normalise_references: Normalisation = "when_they_disagree"
