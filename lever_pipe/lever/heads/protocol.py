"""Interface of a head, which scores a pool after some picks.

To add a head, add a module `lever/heads/NAME.py` whose `build` returns a `Head`; its name is then valid in
`selector.head`, and `tests/unit/lever/test_every_head.py` checks it. The code that encodes queries and candidates,
masks, decodes and trains refers to no head by name. A checkpoint stores a head's tensors under the head's own names,
next to the network's tensors, so the two must not share a name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from lever_pipe.base.rowwise import filled


class HeadSettings(NamedTuple):
    """Arguments of a head."""

    width: int  # H
    temperature: float
    steps: int = 0
    """Rows of step embeddings; 0 for none."""


class State(NamedTuple):
    """State of a head after some picks of G selections a query."""

    vectors: Tensor  # [B, G, H] unit vectors
    picks: tuple[Tensor, ...]  # [B, G] each: positions of the picks, first pick first


class Head(nn.Module):
    """Base class: cosines of candidates with the query's vector; a head overrides the parts in which it differs.

    It must have no dropout or other training behaviour: only its parts, not the head, are submodules of the network.
    """

    follows = True
    """Whether scores depend on the picks before; if not, the pool is ranked once."""
    stops = False
    """Whether a selection may end before its last shot: outcome K, after the K candidates."""

    def __init__(self, settings: HeadSettings) -> None:
        super().__init__()
        self.temperature = settings.temperature

    def initialise(self, generator: torch.Generator) -> None:
        """Fill the head's own tensors from `generator`."""

    def first(self, queries_BH: Tensor, candidates_BKH: Tensor) -> Tensor:
        """Return the logits `[B, K]` of the first pick, which is always a candidate."""
        # A batch of one pool would use a kernel that rounds differently, so it is filled up.
        scores_BK1 = filled(candidates_BKH, 2) @ filled(queries_BH, 2)[:, None].transpose(1, 2)
        return scores_BK1[: len(queries_BH)].squeeze(-1) / self.temperature

    def start(self, queries_BGH: Tensor) -> State:
        """Return the state before any pick."""
        return State(queries_BGH, ())

    def after(self, state: State, picks_BG: Tensor, candidates_BKH: Tensor) -> State:
        """Return the state after a further pick, one for each selection: positions in 0..K-1.

        K ends a selection; the state after an end is not meaningful.
        """
        # The end (K) has no vector; any candidate serves, because the state after an end is not used.
        rows_BG1 = picks_BG.clamp(max=candidates_BKH.shape[1] - 1)[..., None]
        picked_BGH = candidates_BKH.gather(1, rows_BG1.expand(-1, -1, candidates_BKH.shape[-1]))
        return State(self.moved(state.vectors, picked_BGH), (*state.picks, picks_BG))

    def logits(self, states: Sequence[State], candidates_BKH: Tensor, *, may_stop: bool = False) -> Tensor:
        """Return the logits `[B, G, S, K]` of S states, without a mask over earlier picks.

        With `may_stop` a head that `stops` has one more column, `[B, G, S, K + 1]`.
        """
        del may_stop
        seen_BGSH = torch.stack([self.seen(state) for state in states], dim=2)
        return self.scores(seen_BGSH.flatten(1, 2), candidates_BKH).reshape(*seen_BGSH.shape[:3], -1)

    def moved(self, vectors_BGH: Tensor, picked_BGH: Tensor) -> Tensor:
        """Return the state's vectors `[B, G, H]` after a pick."""
        del picked_BGH
        return vectors_BGH

    def seen(self, state: State) -> Tensor:
        """Return the vectors `[B, G, H]` that candidates are scored against."""
        return state.vectors

    def scores(self, vectors_BNH: Tensor, candidates_BKH: Tensor) -> Tensor:
        """Return `[B, N, K]`, by default cosines over the temperature."""
        return vectors_BNH @ candidates_BKH.transpose(1, 2) / self.temperature
