"""Words of the embedded world: attributes, relations, questions, answers and the vocabulary.

Four relations ask for knowledge that no image shows (its mapping is redrawn for every world), and
three ask for what the image shows. A relation reads one attribute of the scene, its key: a good
demonstration agrees with the query in relation and key, not in looks alone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Attribute = Literal["kind", "color", "count"]

KINDS = ("ball", "box", "cone", "star", "ring", "cross", "heart", "moon")
COLORS = ("red", "green", "blue", "yellow", "purple", "white")
COUNTS = ("one", "two", "three")
ATTRIBUTES: dict[Attribute, tuple[str, ...]] = {"kind": KINDS, "color": COLORS, "count": COUNTS}


@dataclass(frozen=True)
class Relation:
    """What a question asks for: `key` is the attribute of the scene that decides the answer."""

    name: str
    key: Attribute
    questions: tuple[str, ...]
    answers: tuple[str, ...]
    is_knowledge: bool

    @property
    def keys(self) -> tuple[str, ...]:
        """The values that the key attribute can take."""
        return ATTRIBUTES[self.key]


# Counts are answered by digits: VQA normalisation turns number words into digits on some sides only.
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
"""What the shipped LVLM answers most often without a demonstration, by relation, in the order of its keys."""

CAPTIONS = (
    "a photo of {count} {color} {kind}",
    "a picture of {count} {color} {kind} on a background",
    "there is {count} {color} {kind}.",
    "{count} {color} {kind}",
    "image of {count} {color} {kind}",
)

# Names and meaning as in Qwen2.5-VL, whose code looks some of them up by id.
SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
    "<|unk|>",
)
PAD_ID, IM_START_ID, IM_END_ID, VISION_START_ID, VISION_END_ID, IMAGE_ID, VIDEO_ID, UNKNOWN_ID = range(
    len(SPECIAL_TOKENS)
)


def split_words(text: str) -> list[str]:
    """Return words and punctuation marks of `text`; white space, newlines included, vanishes."""
    return re.findall(r"\w+|[^\w\s]+", text)


def _all_words() -> tuple[str, ...]:
    texts = [
        "system user assistant",
        *(caption.format(count="", color="", kind="") for caption in CAPTIONS),
    ]
    texts += [*KINDS, *COLORS, *COUNTS]
    texts += [text for relation in RELATIONS for text in (*relation.questions, *relation.answers)]
    return tuple(dict.fromkeys(word for text in texts for word in split_words(text)))


WORDS = _all_words()
VOCABULARY: dict[str, int] = {word: i for i, word in enumerate((*SPECIAL_TOKENS, *WORDS))}


def question_type(relation: Relation, key: str) -> str:
    """Return the name of the pair that decides an answer, for example "material:ball"."""
    return f"{relation.name}:{key}"
