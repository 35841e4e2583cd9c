"""One ranking, whatever was chosen before (source: Lever-Plus v3, published code)."""

from __future__ import annotations

from lever_pipe.lever.heads.protocol import Head


class StaticHead(Head):
    """Cosines over the temperature; no tensor of its own."""

    follows = False


build = StaticHead
