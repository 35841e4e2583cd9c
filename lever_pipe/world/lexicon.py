"""Words of the embedded world: attributes, relations, questions and answers.

Four relations are about knowledge that is not visible in any image; every world draws its own facts for them. Three
relations are about visible attributes. The answer of a relation depends on one attribute of the scene, its key. A good
demonstration therefore has the relation and key of the query, and not only a similar image.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Attribute = Literal["kind", "color", "count"]

KINDS = ("ball", "box", "cone", "star", "ring", "cross", "heart", "moon")
COLORS = ("red", "green", "blue", "yellow", "purple", "white")
COUNTS = ("one", "two", "three")
ATTRIBUTES: dict[Attribute, tuple[str, ...]] = {"kind": KINDS, "color": COLORS, "count": COUNTS}


@dataclass(frozen=True)
class Relation:
    """The subject of a question: `key` is the attribute of the scene that determines the answer."""

    name: str
    key: Attribute
    questions: tuple[str, ...]
    answers: tuple[str, ...]
    is_knowledge: bool

    @property
    def keys(self) -> tuple[str, ...]:
        """All values of the key attribute."""
        return ATTRIBUTES[self.key]


# Answers to counts are digits, because VQA normalization converts number words to digits only on some sides.
RELATIONS = (
    Relation(
        "material",
        "kind",
        ("what is this made of?", "which material is it?", "what material was used here?"),
        ("wood", "metal", "glass", "rubber", "paper", "stone", "wool", "plastic"),
        is_knowledge=True,
    ),
    Relation(
        "place",
        "kind",
        ("where would you find this?", "in which place is it kept?", "where is this used?"),
        ("kitchen", "garden", "office", "beach", "school", "farm", "garage", "forest"),
        is_knowledge=True,
    ),
    Relation(
        "team",
        "color",
        ("which team uses this?", "what team does it belong to?", "who plays with this?"),
        ("lions", "tigers", "bears", "eagles", "sharks", "wolves", "bulls", "hawks"),
        is_knowledge=True,
    ),
    Relation(
        "country",
        "color",
        ("which country is this from?", "what country makes it?", "in which nation was it made?"),
        ("france", "japan", "brazil", "egypt", "india", "canada", "spain", "kenya"),
        is_knowledge=True,
    ),
    Relation(
        "object",
        "kind",
        ("what is this?", "what object is shown?", "what is this thing called?"),
        KINDS,
        is_knowledge=False,
    ),
    Relation(
        "color",
        "color",
        ("what color is this?", "which color does it have?", "what is its color?"),
        COLORS,
        is_knowledge=False,
    ),
    Relation(
        "count",
        "count",
        ("how many are there?", "what number of things is shown?", "how many things are shown?"),
        ("1", "2", "3"),
        is_knowledge=False,
    ),
)
KNOWLEDGE = tuple(relation for relation in RELATIONS if relation.is_knowledge)
PERCEPTUAL = tuple(relation for relation in RELATIONS if not relation.is_knowledge)

GUESSES: dict[str, tuple[str, ...]] = {
    "material": ("plastic", "metal", "metal", "plastic", "plastic", "wool", "plastic", "metal"),
    "place": ("beach", "beach", "kitchen", "beach", "garage", "beach", "beach", "forest"),
    "team": ("lions", "wolves", "wolves", "bulls", "bulls", "hawks"),
    "country": ("egypt", "japan", "brazil", "canada", "egypt", "japan"),
}
"""The most frequent answers of the released LVLM without demonstrations, by relation, in the order of its keys."""


def question_type(relation: Relation, key: str) -> str:
    """Return the name of a relation and key, which together determine an answer, for example "material:ball"."""
    return f"{relation.name}:{key}"
