"""The vocabulary of the embedded world: slots, categories and the slots that matter for each category."""

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
"""Possible subjects of a question; one word each, because synonyms made the world too hard for a small policy."""

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
"""Category -> its relevant slots, most important first."""

CATEGORIES = tuple(RELEVANT)
IMPORTANCES: tuple[Literal[1, 2, 3], ...] = (3, 2, 2, 2, 1)
"""Importances of a category's slots, in the same order."""

VALUES = ("low", "high", "soon", "later", "small", "large", "simple", "fancy")

IRRELEVANT = "no need"
"""The user's answer if every slot in a question is irrelevant or already stated in the request."""
REPEATED = "asked"
"""The user's answer if every slot in the question was uncovered before."""
NO_SLOT = "what"
"""The user's answer if the question contains no slot."""


def inquiry(*slots: str) -> str:
    """Return the question about these slots."""
    return "what about " + " and ".join(slots)
