"""Beams of demonstrations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from lever_pipe.base.sections import Section, Seed
from lever_pipe.experiment.lvlm import LVLM, LvlmConfig


class Beams(Section):
    """Beam data: demonstrations from a beam search, scored by the probability of the correct answer.

    Source: Lever-Plus v3, published code, with the answer's span found in the real token ids.
    """

    anchors: int = Field(800, ge=2)
    """RL queries of the search, drawn from the queries with a pool."""
    size: int = Field(5, ge=1, le=64)
    """Beams that each step keeps."""
    shots: int = Field(2, ge=1, le=8)
    rank: Literal["total", "last_gain"] = "total"
    """Ranking of beams: by the answer's probability with all their demonstrations, or by the gain of the last one
    (published). The latter prefers a bad first choice with a large second step."""
    newest: Literal["last", "first"] = "last"
    """Position of the latest choice in the prompt: nearest to the question, so that fewer shots are exactly the first
    choices, or before all others (published `left`)."""
    seed: Seed = 42

    def prompts(self, pool: int) -> Iterator[tuple[int, int]]:
        """Yield pairs of a number of shots and the number of its prompts, for pools of `pool` candidates."""
        width = 1
        for step in range(self.shots):
            yield step, self.anchors * width
            yield step + 1, self.anchors * width * (pool - step)
            width = min(self.size, width * (pool - step))


class SearchBeamsConfig(Beams):
    PLUGINS = (LVLM,)
    lvlm: LvlmConfig
