"""The words of the embedded world: what a user may want, and what counts for which request."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

SLOTS = (
    "budget",
    "date",
    "duration",
    "place",
    "size",
    "style",
    "level",
    "goal",
    "tool",
    "people",
    "format",
    "deadline",
)
"""What a question can ask for; one word each, because synonyms made the world too hard for a small policy."""

RELEVANT: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "travel": ("budget", "date", "duration", "people", "place"),
        "cooking": ("people", "tool", "style", "date", "level"),
        "fitness": ("goal", "level", "duration", "tool", "deadline"),
        "coding": ("format", "goal", "deadline", "tool", "level"),
        "music": ("level", "style", "goal", "tool", "format"),
        "event": ("date", "budget", "people", "place", "style"),
    }
)
"""Category -> the slots that matter for it, most important first."""

CATEGORIES = tuple(RELEVANT)
IMPORTANCES: tuple[Literal[1, 2, 3], ...] = (3, 2, 2, 2, 1)
"""Of a category's slots, in their order."""

VALUES = ("low", "high", "soon", "later", "small", "large", "simple", "fancy")

IRRELEVANT = "no need"
"""The user's answer when every slot that a question names is irrelevant or was stated in the request."""
REPEATED = "asked"
"""When every slot that it names was uncovered before."""
NO_SLOT = "what"
"""When it names none."""


def inquiry(*slots: str) -> str:
    """Return the question that asks for these slots."""
    return "what about " + " and ".join(slots)
