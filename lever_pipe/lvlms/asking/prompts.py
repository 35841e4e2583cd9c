"""The text that a question with its demonstrations becomes, cut into segments at special tokens.

Every segment begins with a special token, which a tokenizer never merges over, so segments may be tokenized one by one
and shared between prompts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from lever_pipe.base.errors import DataError
from lever_pipe.base.records import Example, ExampleId
from lever_pipe.experiment.config import PromptSettings


@dataclass(frozen=True)
class TextSegment:
    """A run of the prompt that begins at a special token; one image digest for each image placeholder in the text."""

    text: str
    images: tuple[str, ...] = ()


@dataclass(frozen=True)
class TextPrompt:
    """A whole prompt, ending where the answer begins."""

    segments: tuple[TextSegment, ...]

    @property
    def text(self) -> str:
        """The prompt as one string, an image as one placeholder."""
        return "".join(segment.text for segment in self.segments)

    @property
    def images(self) -> tuple[str, ...]:
        """The image digests in the order in which the prompt shows them."""
        return tuple(digest for segment in self.segments for digest in segment.images)


@dataclass(frozen=True)
class ChatTemplate:
    """How a family of LVLMs writes turns and images.

    Attributes:
        begin: of a turn, with `{role}`; it begins with a special token.
        end: of a turn.
        image: what stands for an image; it begins with a special token.
        control: pattern of texts that the tokenizer reads as special tokens.
    """

    begin: str
    end: str
    image: str
    control: str

    def turn(self, role: str, text: str = "", *, is_open: bool = False) -> str:
        """Return a turn, without its end where it goes on."""
        return self.begin.format(role=role) + text + ("" if is_open else self.end)


@dataclass(frozen=True)
class Wording:
    """How examples become text: the configured style in the template of a family.

    The layout `single_turn` puts all images and texts into one user turn and words a demonstration by `demonstration`;
    `turns` gives each demonstration a user turn worded by `query` and an assistant turn that holds the answer alone.
    """

    style: PromptSettings
    template: ChatTemplate

    def prompt(self, query: Example, demonstrations: Sequence[Example]) -> TextPrompt:
        """Return the prompt that shows `demonstrations` in their order and then asks `query`.

        Raises:
            DataError: a question or an answer contains a control token such as `<|im_end|>`.
        """
        return TextPrompt((*self.opening(), *map(self.shown, demonstrations), self.asked(query)))

    def opening(self) -> tuple[TextSegment, ...]:
        """Return what stands before the first demonstration: one segment or none."""
        text = self.template.turn("system", self.style.system) if self.style.system else ""
        text += self.template.turn("user", is_open=True) if self._in_one_turn else ""
        return (TextSegment(text),) if text else ()

    def shown(self, demonstration: Example) -> TextSegment:
        """Return a demonstration with its answer.

        Raises:
            DataError: its question or answer contains a control token.
        """
        if self._in_one_turn:
            text = self.template.image + self._fill(self.style.demonstration, demonstration)
        else:
            answer = self._fill("{answer}", demonstration)
            text = self._question_turn(demonstration) + self.template.turn("assistant", answer)
        return TextSegment(text, (demonstration.image_digest,))

    def asked(self, query: Example) -> TextSegment:
        """Return what is asked, up to where the answer begins.

        Raises:
            DataError: its question or answer contains a control token.
        """
        if self._in_one_turn:
            text = self.template.image + self._fill(self.style.query, query) + self.template.end
        else:
            text = self._question_turn(query)
        return TextSegment(text + self.template.turn("assistant", is_open=True), (query.image_digest,))

    @property
    def _in_one_turn(self) -> bool:
        return self.style.layout == "single_turn"

    def _question_turn(self, example: Example) -> str:
        return self.template.turn("user", self.template.image + self._fill(self.style.query, example))

    def _fill(self, template: str, example: Example) -> str:
        for key, value in (("question", example.question), ("answer", example.answer)):
            token = re.search(self.template.control, value)
            if token:
                raise DataError(
                    f"question {example.question_id}: expected a {key} of plain text",
                    found=f"the control token {token.group()}",
                    do="Remove it from the data; it would cut the prompt.",
                )
        return template.format(question=example.question, answer=example.answer).strip()


class Prompter:
    """Prompts of queries with demonstrations from the train split; each example becomes text once in a role."""

    def __init__(self, wording: Wording, train: Sequence[Example]) -> None:
        self._wording = wording
        self._train = train
        self._opening = wording.opening()
        self._shown: dict[ExampleId, TextSegment] = {}
        self._asked: dict[tuple[str, str, str], TextSegment] = {}  # by all that a query's segment is made of

    def __call__(self, query: Example, demonstrations: Sequence[ExampleId]) -> TextPrompt:
        """Return the prompt with the demonstrations in the given order, the first one farthest from the query."""
        for i in demonstrations:
            if i not in self._shown:
                self._shown[i] = self._wording.shown(self._train[i])
        made_of = (query.question, query.answer, query.image_digest)
        if made_of not in self._asked:
            self._asked[made_of] = self._wording.asked(query)
        return TextPrompt((*self._opening, *(self._shown[i] for i in demonstrations), self._asked[made_of]))
