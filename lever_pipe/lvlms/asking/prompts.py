"""The text that a question with its demonstrations becomes, cut into segments at special tokens.

The text follows the ChatML format of Qwen2.5-VL. Every segment begins with a special token, which a tokenizer never
merges over, so segments may be tokenized one by one and shared between prompts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from string import Formatter
from typing import Literal

from lever_pipe.base.errors import ConfigError, DataError
from lever_pipe.base.records import Example

IMAGE = "<|vision_start|><|image_pad|><|vision_end|>"
USER = "<|im_start|>user\n"
ASSISTANT = "<|im_start|>assistant\n"
END = "<|im_end|>\n"
_CONTROL_TOKEN = re.compile(r"<\|[a-z_]+\|>")


@dataclass(frozen=True)
class PromptStyle:
    """How questions and answers are worded and arranged.

    `single_turn` puts all images and texts into one user turn and words a demonstration by `demonstration`; `turns`
    gives each demonstration a user turn worded by `query` and an assistant turn that holds the answer alone.
    """

    layout: Literal["single_turn", "turns"]
    system: str  # empty for no system turn
    demonstration: str  # template with {question} and {answer}
    query: str  # template with {question}

    def __post_init__(self) -> None:
        _require_fields("prompt.demonstration", self.demonstration, {"question", "answer"})
        _require_fields("prompt.query", self.query, {"question"})


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


def build_prompt(query: Example, demonstrations: Sequence[Example], style: PromptStyle) -> TextPrompt:
    """Return the prompt that shows `demonstrations` in their order and then asks `query`.

    Raises:
        DataError: a question or an answer contains a control token such as `<|im_end|>`.
    """
    return TextPrompt((*opening(style), *(shown(d, style) for d in demonstrations), asked(query, style)))


def opening(style: PromptStyle) -> tuple[TextSegment, ...]:
    """Return what stands before the first demonstration: one segment or none."""
    text = _system_turn(style) + (USER if style.layout == "single_turn" else "")
    return (TextSegment(text),) if text else ()


def shown(demonstration: Example, style: PromptStyle) -> TextSegment:
    """Return a demonstration with its answer.

    Raises:
        DataError: its question or answer contains a control token.
    """
    if style.layout == "single_turn":
        text = IMAGE + _fill(style.demonstration, demonstration)
    else:
        text = _question_turn(demonstration, style) + ASSISTANT + _fill("{answer}", demonstration) + END
    return TextSegment(text, (demonstration.image_digest,))


def asked(query: Example, style: PromptStyle) -> TextSegment:
    """Return what is asked, up to where the answer begins.

    Raises:
        DataError: its question or answer contains a control token.
    """
    if style.layout == "single_turn":
        text = IMAGE + _fill(style.query, query) + END
    else:
        text = _question_turn(query, style)
    return TextSegment(text + ASSISTANT, (query.image_digest,))


def _system_turn(style: PromptStyle) -> str:
    return f"<|im_start|>system\n{style.system}{END}" if style.system else ""


def _question_turn(example: Example, style: PromptStyle) -> str:
    return USER + IMAGE + _fill(style.query, example) + END


def _fill(template: str, example: Example) -> str:
    for key, value in (("question", example.question), ("answer", example.answer)):
        token = _CONTROL_TOKEN.search(value)
        if token:
            raise DataError(
                f"question {example.question_id}: expected a {key} of plain text",
                found=f"the control token {token.group()}",
                do="Remove it from the data; it would cut the prompt.",
            )
    return template.format(question=example.question, answer=example.answer).strip()


def _require_fields(name: str, template: str, fields: set[str]) -> None:
    try:
        found = {field for _, field, _, _ in Formatter().parse(template) if field is not None}
    except ValueError as fault:
        found = {str(fault)}
    if found != fields:
        raise ConfigError(
            f"{name} must hold exactly the fields {sorted(fields)}",
            found=repr(template),
            do="Write {question} and {answer} where the example's texts go.",
        )
