"""A question with its demonstrations as turns of texts and images.

A prompt is neutral: it names no token of any model. A family makes of it a text in segments, each of which begins or
ends at a special token, over which a tokenizer never merges; so segments may be tokenized one by one and shared between
prompts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal

from lever_pipe.base.records import Example, ExampleId
from lever_pipe.experiment.lvlm_config import PromptSettings

Role = Literal["system", "user", "assistant"]


@dataclass(frozen=True)
class ImagePart:
    """An image in a prompt, by its digest."""

    digest: str


Part = str | ImagePart


@dataclass(frozen=True)
class Turn:
    """What one side says, or goes on to say: texts and images in order."""

    role: Role
    parts: tuple[Part, ...]


Block = tuple[Turn, ...]
"""Turns that prompts share as a whole: what is said at first, a demonstration, what is asked."""


@dataclass(frozen=True)
class Prompt:
    """Blocks in order, ending where the assistant answers; a turn of the role of the one before goes on in it.

    Attributes:
        blocks: none of them empty.
        default_system: whether a template may put its own system turn before a prompt that has none.
    """

    blocks: tuple[Block, ...]
    default_system: bool = False

    @property
    def turns(self) -> tuple[Turn, ...]:
        """Return whole turns, no two neighbours of one role."""
        by_role = groupby((turn for block in self.blocks for turn in block), key=lambda turn: turn.role)
        return tuple(Turn(role, tuple(part for turn in turns for part in turn.parts)) for role, turns in by_role)

    @property
    def images(self) -> tuple[str, ...]:
        """Return the image digests in the order in which the prompt shows them."""
        parts = (part for block in self.blocks for turn in block for part in turn.parts)
        return tuple(part.digest for part in parts if isinstance(part, ImagePart))

    @property
    def texts(self) -> tuple[str, ...]:
        """Return the texts in order."""
        return tuple(p for block in self.blocks for turn in block for p in turn.parts if isinstance(p, str))

    def messages(self) -> list[dict[str, Any]]:
        """Return the turns as a model folder's own chat template takes them."""
        return [{"role": turn.role, "content": list(map(_content, turn.parts))} for turn in self.turns]


def _content(part: Part) -> dict[str, str]:
    return {"type": "image"} if isinstance(part, ImagePart) else {"type": "text", "text": part}


@dataclass(frozen=True)
class TextSegment:
    """A run of the prompt that begins at a special token or behind one; a digest for each image placeholder in it."""

    text: str
    images: tuple[str, ...] = ()


@dataclass(frozen=True)
class Wording:
    """How examples become turns in the configured style.

    The layout `single_turn` puts all images and texts into one user turn and words a demonstration by `demonstration`;
    `turns` gives each demonstration a user turn worded by `query` and an assistant turn that holds the answer alone.
    """

    style: PromptSettings

    def prompt(self, query: Example, demonstrations: Sequence[Example]) -> Prompt:
        """Return the prompt that shows `demonstrations` in their order and then asks `query`."""
        return self.joined([self.example_block(example) for example in demonstrations], self.question_block(query))

    def joined(self, demonstrations: Sequence[Block], question: Block) -> Prompt:
        """Return the prompt of these demonstrations and this question."""
        opening: tuple[Block, ...] = ((Turn("system", (self.style.system,)),),) if self.style.system else ()
        return Prompt((*opening, *demonstrations, question), default_system=self.style.system is None)

    def example_block(self, demonstration: Example) -> Block:
        """Return a demonstration with its answer."""
        if self.style.layout == "single_turn":
            return (_says("user", demonstration, self.style.demonstration),)
        answer = Turn("assistant", (_filled("{answer}", demonstration),))
        return _says("user", demonstration, self.style.query), answer

    def question_block(self, query: Example) -> Block:
        """Return what is asked."""
        return (_says("user", query, self.style.query),)


def _says(role: Role, example: Example, template: str) -> Turn:
    return Turn(role, (ImagePart(example.image_digest), _filled(template, example)))


def _filled(template: str, example: Example) -> str:
    return template.format(question=example.question, answer=example.answer).strip()


class Prompter:
    """Prompts of queries with demonstrations from the train split; each example becomes a block once in a role."""

    def __init__(self, wording: Wording, train: Sequence[Example]) -> None:
        self._wording = wording
        self._train = train
        self._demonstrations: dict[ExampleId, Block] = {}
        self._questions: dict[tuple[str, str, str], Block] = {}  # by all that a query's block is made of

    def __call__(self, query: Example, demonstrations: Sequence[ExampleId]) -> Prompt:
        """Return the prompt with the demonstrations in the given order, the first one farthest from the query."""
        for i in demonstrations:
            if i not in self._demonstrations:
                self._demonstrations[i] = self._wording.example_block(self._train[i])
        made_of = (query.question, query.answer, query.image_digest)
        if made_of not in self._questions:
            self._questions[made_of] = self._wording.question_block(query)
        return self._wording.joined([self._demonstrations[i] for i in demonstrations], self._questions[made_of])
