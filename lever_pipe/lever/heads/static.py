"""One ranking, whatever was chosen before (source: Lever-Plus v3, published code)."""

from __future__ import annotations

from lever_pipe.lever.heads.protocol import Head, HeadSettings


class StaticHead(Head):
    """Cosines over the temperature; no tensor of its own."""

    follows = False


def build(settings: HeadSettings) -> Head:
    """Return the head."""
    return StaticHead(settings)
