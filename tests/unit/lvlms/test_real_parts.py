"""Prompts against what others made: the published chat templates, and the real tokenizers of their models."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from builders import example
from transformers import AutoTokenizer
from transformers.utils.chat_template_utils import render_jinja_template

from lever_pipe.experiment.lvlm import PromptSettings
from lever_pipe.lvlms.asking.prompts import Prompt, Wording
from lever_pipe.lvlms.qwen2_5_vl import END, SYSTEM, render

Parts = Callable[[str], Path]
ENGINE, TOKENIZER = "qwen2_5_vl", "tokenizer-qwen2_5"
SYSTEMS = ("Answer with one or two words.", "", None)
SHOTS = range(5)
TEXTS = (
    ("Where was this taken?", "beach"),
    ("What kind of dog is this?", "golden retriever"),
    (" What's the {price} of\n2 caf\N{LATIN SMALL LETTER E WITH ACUTE}s (\N{EURO SIGN}12.50)?  ", " 12.50 "),
    ("\N{CJK UNIFIED IDEOGRAPH-72D7}? <br> I'll  guess...", "\N{DOG FACE} dog"),
    ("What is the man riding?", "skateboard"),
)


@pytest.fixture(scope="module")
def tokenizer(real_parts: Parts) -> Any:
    return AutoTokenizer.from_pretrained(real_parts(TOKENIZER), local_files_only=True)


def prompts(layout: str, system: str | None) -> list[Prompt]:
    examples = [example(i, question=question, answer=answer) for i, (question, answer) in enumerate(TEXTS)]
    wording = Wording(PromptSettings(layout=layout, system=system))  # type: ignore[arg-type]
    return [wording.prompt(examples[-1 - shots % 3], examples[:shots]) for shots in SHOTS]


def text_of(prompt: Prompt) -> str:
    return "".join(segment.text for segment in render(prompt))


def by_published(prompt: Prompt, parts: Parts) -> str:
    chat = (parts("chat-templates") / f"{ENGINE}.jinja").read_text(encoding="utf-8")
    (text,), _ = render_jinja_template([prompt.messages()], chat_template=chat, add_generation_prompt=True)
    return str(text)


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("layout", ["single_turn", "turns"])
def test_prompts_are_those_of_the_published_template(real_parts: Parts, layout: str, system: str | None) -> None:
    for prompt in prompts(layout, system):
        text, own = text_of(prompt), by_published(prompt, real_parts)
        if system == "":  # the template inserts its own text if none is given
            assert own == f"<|im_start|>system\n{SYSTEM}<|im_end|>\n{text}"
        else:
            assert text == own


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("layout", ["single_turn", "turns"])
def test_segments_tokenised_apart_are_the_whole(tokenizer: Any, layout: str, system: str | None) -> None:
    """The scored answer after a prompt is a separate piece, too."""
    for prompt in prompts(layout, system):
        answers = [answer.strip() + END for _, answer in TEXTS]
        for pieces in ([s.text for s in render(prompt)], *([text_of(prompt), answer] for answer in answers)):
            apart = tokenizer(pieces, add_special_tokens=False).input_ids
            whole = tokenizer("".join(pieces), add_special_tokens=False).input_ids
            assert [token for piece in apart for token in piece] == whole
