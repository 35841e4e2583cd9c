from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from builders import example

from lever_pipe.base.records import Example
from lever_pipe.experiment.lvlm import PromptSettings
from lever_pipe.lvlms.asking.prompts import Block, Prompt, TextSegment, Wording
from lever_pipe.lvlms.qwen2_5_vl import render

ROOT = Path(__file__).parents[3]
GOLDEN = ROOT / "tests" / "golden" / "prompts"
WORLD = ROOT / "resources" / "world" / "lvlm"
SHOTS = (0, 1, 2, 4)
LAYOUTS = ("single_turn", "turns")


def worded(number: int, question: str, answer: str) -> Example:
    return example(number, question=question, answer=answer)


QUERY = worded(9, "What is the man riding?", "skateboard")
DEMONSTRATIONS = (
    worded(1, "Where was this taken?", "beach"),
    worded(2, "What kind of dog is this?", "golden retriever"),
    worded(3, "How many {braces} are there?", "2"),
    worded(4, " Which brand is it? ", " nike "),
)


def style(layout: str, **changes: Any) -> PromptSettings:
    return PromptSettings(layout=layout, **changes)  # type: ignore[arg-type]


def neutral(layout: str, shots: int, **changes: Any) -> Prompt:
    return Wording(style(layout, **changes)).prompt(QUERY, DEMONSTRATIONS[:shots])


def prompt(layout: str, shots: int, **changes: Any) -> tuple[TextSegment, ...]:
    return render(neutral(layout, shots, **changes))


def text_of(layout: str, shots: int, **changes: Any) -> str:
    return "".join(segment.text for segment in prompt(layout, shots, **changes))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shots", SHOTS)
def test_text_is_the_golden_one(layout: str, shots: int) -> None:
    golden = GOLDEN / f"{layout}-{shots}-shots.txt"
    assert text_of(layout, shots) == golden.read_text(encoding="utf-8")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_segments_begin_at_special_tokens_and_carry_their_images(layout: str) -> None:
    built = prompt(layout, 4)
    assert all(segment.text.startswith("<|") for segment in built)
    assert all(len(s.images) == s.text.count("<|image_pad|>") for s in built)
    displayed = ("digest1", "digest2", "digest3", "digest4", "digest9")
    assert tuple(digest for segment in built for digest in segment.images) == displayed
    assert neutral(layout, 4).images == displayed


@pytest.mark.skipif(not WORLD.is_dir(), reason="the embedded world's model is not there")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("system", ["", "answer with a word"])
def test_tokens_equal_the_world_tokenizers_chat_template(layout: str, system: str) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(WORLD, local_files_only=True)
    messages = neutral(layout, 4, system=system).messages()
    whole = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    pieces = [tokenizer(s.text, add_special_tokens=False).input_ids for s in prompt(layout, 4, system=system)]
    expected = tokenizer(whole, add_special_tokens=False).input_ids
    assert [token for piece in pieces for token in piece] == expected


@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_example_becomes_a_block_once_in_a_role(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    worded: list[tuple[str, int]] = []
    train = [*DEMONSTRATIONS, QUERY]
    chosen = ((4, (0, 1)), (4, (1, 0, 2)), (0, (4, 1)), (4, ()))
    expected = [
        Wording(style(layout)).prompt(train[query], [train[i] for i in displayed]) for query, displayed in chosen
    ]
    for role in ("_demonstration", "_query"):
        word = getattr(Wording, role)

        def counted(self: Wording, one: Example, role: str = role, word: Any = word) -> Block:
            worded.append((role, one.example_id))
            return word(self, one)

        monkeypatch.setattr(Wording, role, counted)
    wording = Wording(style(layout))
    assert [wording.prompt(train[query], [train[i] for i in displayed]) for query, displayed in chosen] == expected
    assert sorted(worded) == [*(("_demonstration", i) for i in (1, 2, 3, 9)), ("_query", 1), ("_query", 9)]
    alike = QUERY.model_copy(update={"image_digest": DEMONSTRATIONS[0].image_digest})
    assert wording.prompt(alike, ()).images == (alike.image_digest,) != wording.prompt(QUERY, ()).images
