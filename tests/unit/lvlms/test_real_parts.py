"""Prompts against what others made: the published chat templates, and the real tokenizers of their models."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from families import FOLDERS
from transformers import AutoTokenizer
from transformers.utils.chat_template_utils import render_jinja_template

from lever_pipe.base import members
from lever_pipe.base.records import Example, ExampleId
from lever_pipe.experiment.lvlm_config import PromptSettings
from lever_pipe.lvlms.asking.prompts import ChatTemplate, Prompt, Wording

Parts = Callable[[str], Path]
Templates = Callable[[str], ChatTemplate]
TOKENIZERS = {"qwen2_5_vl": "tokenizer-qwen2_5"}
"""Of each member that has a template and a tokenizer here."""
SYSTEMS = ("Answer with one or two words.", "", None)
SHOTS = range(5)
TEXTS = (
    ("Where was this taken?", "beach"),
    ("What kind of dog is this?", "golden retriever"),
    (" What's the {price} of\n2 caf\N{LATIN SMALL LETTER E WITH ACUTE}s (\N{EURO SIGN}12.50)?  ", " 12.50 "),
    ("\N{CJK UNIFIED IDEOGRAPH-72D7}? <br> I'll  guess...", "\N{DOG FACE} dog"),
    ("What is the man riding?", "skateboard"),
)


@pytest.fixture(params=sorted(TOKENIZERS))
def member(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session")
def template_of(tmp_path_factory: pytest.TempPathFactory, real_parts: Parts) -> Callable[[str], ChatTemplate]:
    """What writes prompts for a tiny folder of a member whose chat template is the published one."""

    @cache
    def found(member: str) -> ChatTemplate:
        folder = tmp_path_factory.mktemp(member) / "model"
        FOLDERS[member](folder)
        (folder / "chat_template.jinja").write_text(published(member, real_parts), encoding="utf-8")
        template: ChatTemplate = members.member("lvlms", member).load(folder, dtype="float32", device="cpu").template
        return template

    return found


def published(member: str, parts: Parts) -> str:
    return (parts("chat-templates") / f"{member}.jinja").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def tokenizer_of(real_parts: Parts) -> Callable[[str], Any]:
    return cache(lambda member: AutoTokenizer.from_pretrained(real_parts(TOKENIZERS[member]), local_files_only=True))


def prompts(layout: str, system: str | None) -> list[Prompt]:
    examples = [
        Example(
            example_id=ExampleId(i), question_id=i, image_id=i, image=f"{i}.png", image_digest=f"digest{i}",
            question=question, question_type="any", answers=(answer,), answer=answer,
        )
        for i, (question, answer) in enumerate(TEXTS)
    ]  # fmt: skip
    wording = Wording(PromptSettings(layout=layout, system=system))  # type: ignore[arg-type]
    return [wording.prompt(examples[-1 - shots % 3], examples[:shots]) for shots in SHOTS]


def by_published(member: str, prompt: Prompt, parts: Parts) -> str:
    chat = published(member, parts)
    (text,), _ = render_jinja_template([prompt.messages()], chat_template=chat, add_generation_prompt=True)
    return str(text)


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("layout", ["single_turn", "turns"])
def test_prompts_are_those_of_the_published_template(
    member: str, template_of: Templates, real_parts: Parts, layout: str, system: str | None
) -> None:
    template = template_of(member)
    for prompt in prompts(layout, system):
        text = template.render(prompt).text
        if system == "":  # a template that puts in a text of its own cannot be asked for none
            own = by_published(member, prompt, real_parts)
            inserted = own[: len(own) - len(text)]
            assert text == own[len(inserted) :]
            assert (template.system in inserted) if template.system else not inserted
        else:
            assert text == by_published(member, prompt, real_parts)


def test_the_published_qwen2_5_vl_template_has_a_system_text_of_its_own(real_parts: Parts) -> None:
    (prompt, *_) = prompts("turns", None)
    text = by_published("qwen2_5_vl", prompt, real_parts)
    assert text.startswith("<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n")


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("layout", ["single_turn", "turns"])
def test_segments_tokenised_apart_are_the_whole(
    member: str, template_of: Templates, tokenizer_of: Callable[[str], Any], layout: str, system: str | None
) -> None:
    """The answer that is scored behind a prompt is a piece of its own, too."""
    template, tokenizer = template_of(member), tokenizer_of(member)
    for prompt in prompts(layout, system):
        written = template.render(prompt)
        answers = [template.answer(answer.strip()) + template.end.strip() for _, answer in TEXTS]
        for pieces in ([s.text for s in written.segments], *([written.text, answer] for answer in answers)):
            apart = tokenizer(pieces, add_special_tokens=False).input_ids
            whole = tokenizer("".join(pieces), add_special_tokens=False).input_ids
            assert [token for piece in apart for token in piece] == whole


def test_special_tokens_of_the_template_are_single_tokens(
    member: str, template_of: Templates, tokenizer_of: Callable[[str], Any]
) -> None:
    template, tokenizer = template_of(member), tokenizer_of(member)
    for word in ("<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>"):
        assert len(tokenizer(word, add_special_tokens=False).input_ids) == 1
    assert tokenizer(template.image, add_special_tokens=False).input_ids == [151652, 151655, 151653]
    assert tokenizer("<|im_end|><|endoftext|>").input_ids == [151645, 151643]  # the two ends of the published settings
