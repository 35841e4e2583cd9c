"""Prompts as turns of texts and images: a question with its demonstrations.

A prompt is independent of the model and contains no special tokens. A family converts it to text segments, each of
which begins or ends at a special token. Tokenizers never merge across special tokens, so segments may be tokenized
separately and shared between prompts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal

from lever_pipe.base.records import Example, ExampleId
from lever_pipe.experiment.lvlm import PromptSettings

Role = Literal["system", "user", "assistant"]


@dataclass(frozen=True)
class ImagePart:
    """An image in a prompt, by its digest."""

    digest: str


Part = str | ImagePart


@dataclass(frozen=True)
class Turn:
    """A turn, or the continuation of a turn, of one role: texts and images in order."""

    role: Role
    parts: tuple[Part, ...]


Block = tuple[Turn, ...]
"""Turns that prompts share as a unit: the opening, a demonstration, or the query."""


@dataclass(frozen=True)
class Prompt:
    """Blocks in order, up to the assistant's answer; a turn of the same role as the preceding one continues it.

    Attributes:
        blocks: none of them empty.
        default_system: whether a template may add its own system turn to a prompt that has none.
    """

    blocks: tuple[Block, ...]
    default_system: bool = False

    @property
    def turns(self) -> tuple[Turn, ...]:
        """Return merged turns, so that neighbours have different roles."""
        by_role = groupby((turn for block in self.blocks for turn in block), key=lambda turn: turn.role)
        return tuple(Turn(role, tuple(part for turn in turns for part in turn.parts)) for role, turns in by_role)

    @property
    def system(self) -> str | None:
        """Return the system text: empty for no system turn, None for the template's default."""
        opening = self.turns[0]
        if opening.role == "system":
            return "".join(map(str, opening.parts))
        return None if self.default_system else ""

    @property
    def images(self) -> tuple[str, ...]:
        """Return the image digests in the order of the prompt."""
        parts = (part for block in self.blocks for turn in block for part in turn.parts)
        return tuple(part.digest for part in parts if isinstance(part, ImagePart))

    @property
    def texts(self) -> tuple[str, ...]:
        """Return the texts in order."""
        return tuple(p for block in self.blocks for turn in block for p in turn.parts if isinstance(p, str))

    def messages(self) -> list[dict[str, Any]]:
        """Return the turns in the format of a model folder's own chat template."""
        return [{"role": turn.role, "content": list(map(_content, turn.parts))} for turn in self.turns]


def of_system(system: str | None) -> tuple[str, str]:
    """Return the requirement of a system text on a chat template, and the remedy if a template does not meet it."""
    if system:
        do = 'Set lvlm.prompt.system: "" and put the text into lvlm.prompt.query, or name another model.'
        return "a chat template that writes the system text of lvlm.prompt.system", do
    do = "Set lvlm.prompt.system to null for the template's own text, or to a text."
    return "a chat template that adds no system text", do


def _content(part: Part) -> dict[str, str]:
    return {"type": "image"} if isinstance(part, ImagePart) else {"type": "text", "text": part}


@dataclass(frozen=True)
class TextSegment:
    """A run of the prompt that begins at a special token or after one; a digest for each image placeholder in it."""

    text: str
    images: tuple[str, ...] = ()


class Wording:
    """Converts examples to turns in the configured style; each example's block is built once for each role.

    The layout `single_turn` puts all images and texts into one user turn and words a demonstration by `demonstration`;
    `turns` gives each demonstration a user turn worded by `query` and an assistant turn that contains only the answer.
    """

    def __init__(self, style: PromptSettings) -> None:
        self._style = style
        self._blocks: dict[tuple[bool, str, str, str], Block] = {}  # by all inputs of a block

    def prompt(self, query: Example, demonstrations: Iterable[Example]) -> Prompt:
        """Return the prompt with `demonstrations` in order, the first one farthest from `query`, then the query."""
        opening: tuple[Block, ...] = ((Turn("system", (self._style.system,)),),) if self._style.system else ()
        example_blocks = (self._block(example, is_query=False) for example in demonstrations)
        blocks = (*opening, *example_blocks, self._block(query, is_query=True))
        return Prompt(blocks, default_system=self._style.system is None)

    def _block(self, example: Example, *, is_query: bool) -> Block:
        key = (is_query, example.question, example.answer, example.image_digest)
        if key not in self._blocks:
            self._blocks[key] = self._query(example) if is_query else self._demonstration(example)
        return self._blocks[key]

    def _demonstration(self, demonstration: Example) -> Block:
        """Return a demonstration with its answer."""
        if self._style.layout == "single_turn":
            return (_turn("user", demonstration, self._style.demonstration),)
        answer = Turn("assistant", (_filled("{answer}", demonstration),))
        return _turn("user", demonstration, self._style.query), answer

    def _query(self, query: Example) -> Block:
        return (_turn("user", query, self._style.query),)


def _turn(role: Role, example: Example, template: str) -> Turn:
    return Turn(role, (ImagePart(example.image_digest), _filled(template, example)))


def _filled(template: str, example: Example) -> str:
    return template.format(question=example.question, answer=example.answer).strip()


PromptIds = tuple[ExampleId, tuple[ExampleId, ...]]
"""A query and its demonstrations, in prompt order."""
