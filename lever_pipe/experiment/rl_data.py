"""Trajectories: proposal, scoring, import and selection."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from lever_pipe.base.records import Normalisation
from lever_pipe.base.sections import Distinct, FilePath, Problem, Section, Seed, Share, at_most, rule
from lever_pipe.experiment.lvlm import LVLM, LvlmConfig


class ProposalSettings(Section):
    """Proposal of trajectories."""

    seed: Seed = 42
    shots: int = Field(2, ge=1, le=8)
    n_beams: int = Field(5, ge=0, le=64)
    temperatures: Distinct[Annotated[float, Field(gt=0, le=100)]] = (1.0, 1.3)
    n_samples_per_temperature: int = Field(2, ge=0, le=64)
    disjoint_samples: bool = False
    """Whether to cut the samples of one temperature from a single drawn ranking, so that they do not overlap."""
    n_retrieval: int = Field(5, ge=0, le=64)
    n_random: int = Field(1, ge=0, le=64)
    similarity_scale: float = Field(1.5, gt=0, le=1000)
    """Logit per standard deviation of similarity within the pool, for the policy that proposes beams and samples."""

    @property
    def per_query(self) -> int:
        """The largest number of a query's trajectories, without those of a diversity budget."""
        samples = len(self.temperatures) * self.n_samples_per_temperature
        return self.n_beams + samples + self.n_retrieval + self.n_random


class ProposeTrajectoriesConfig(ProposalSettings):
    """Identity of `propose_trajectories`."""


class GenerateRlDataConfig(Section):
    PLUGINS = (LVLM,)
    normalise_references: Normalisation = "when_they_disagree"
    lvlm: LvlmConfig
    shard: int
    n_shards: int
    shots: int
    diversity_budget: int
    seed: Seed


class Balance(Section):
    """Bounds, inclusive, on the share of positive trajectories of a selected query (source: Lever-Plus, VQAv2)."""

    low: Share = 0.4
    high: Share = 0.6

    @rule
    def _bounds_are_in_order(self) -> list[Problem]:
        return at_most(("low",), self.low, "high", self.high, "Exchange or change them.")


class MergeRlDataConfig(Section):
    balance: Balance | None = None


ImportFormat = Literal["a", "g"]


class ImportRlDataConfig(Section):
    balance: Balance | None = None
    """None if the LVLM scores again: `merge_rl_data` then balances by the new scores."""

    import_format: ImportFormat
    pool_size: int
    """K, the size of each pool."""
    pool_seed: Seed
    exclude_same_image: bool


class RlData(ProposalSettings):
    """Proposal, scoring, import and selection of the stored trajectories."""

    import_from: FilePath = ""
    """An existing file of the original to use instead of generating; empty to generate."""
    import_format: ImportFormat = "g"
    """Format of that file, never guessed: `g` is k64 v3, `a` a generator's `rl_data_{Sampler}_{model}.json`."""
    rescore: bool = False
    """Whether the LVLM scores each imported selection again; `rl_data/imported.jsonl` keeps the old scores."""
    n_queries: int = Field(800, ge=2)
    """Train examples that serve as RL queries."""
    n_shards: int = Field(4, ge=1, le=512)
    diversity_budget: int = Field(0, ge=0, le=256)
    """Extra uniformly drawn selections for every query with equal accuracies in its group (0: none)."""
    balance: Balance | None = None
    """Filter of queries by their share of positive trajectories; null keeps all, `{}` has the published bounds."""

    @rule
    def _something_is_proposed(self) -> Iterator[Problem]:
        n_samples = len(self.temperatures) * self.n_samples_per_temperature
        if not (self.import_from or self.n_beams or n_samples or self.n_retrieval or self.n_random):
            seen = "n_beams=0, n_retrieval=0, n_random=0 and no sample of any temperature"
            yield (), f"must propose some selection, got {seen}. Raise one of them."

    @rule
    def _what_is_rescored_was_imported(self) -> Iterator[Problem]:
        if self.rescore and not self.import_from:
            yield ("rescore",), "must be false without import_from, got True. Name the file, or drop it."
        if self.rescore and self.diversity_budget:
            yield ("diversity_budget",), f"must be 0 with rescore, got {self.diversity_budget}. Drop one of them."

    @property
    def is_answered(self) -> bool:
        """Whether the LVLM scores the selections."""
        return self.rescore or not self.import_from

    @rule
    def _no_shard_is_empty(self) -> list[Problem]:
        n_most = self.n_shards if self.import_from else self.n_queries
        return at_most(("n_shards",), self.n_shards, "rl_data.n_queries", n_most)
