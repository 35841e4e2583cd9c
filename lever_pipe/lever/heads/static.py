"""One ranking of the pool, independent of earlier picks (source: Lever-Plus v3, published code)."""

from __future__ import annotations

from lever_pipe.lever.heads.protocol import Head


class StaticHead(Head):
    """Cosines over the temperature, without own tensors."""

    follows = False


build = StaticHead
