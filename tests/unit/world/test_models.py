"""Architectures, tokenizers and folders."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoImageProcessor, AutoTokenizer, CLIPModel

from lever_pipe.world.architectures import (
    build_clip,
    build_reader,
    clip_tokenizer,
    reader_tokenizer,
    save_clip,
    save_reader,
)
from lever_pipe.world.lexicon import RELATIONS, VOCABULARY, split_words

QUESTIONS = [text for relation in RELATIONS for text in relation.questions]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    save_reader(build_reader(0), root / "lvlm")
    save_clip(build_clip(0), root / "clip")
    return root


def test_the_tokenizer_knows_every_word_and_agrees_with_the_lexicon() -> None:
    tokenizer = reader_tokenizer()
    for text in QUESTIONS:
        assert tokenizer(text)["input_ids"] == [VOCABULARY[word] for word in split_words(text)]
    for relation in RELATIONS:
        for answer in relation.answers:
            assert tokenizer.decode(tokenizer(answer)["input_ids"]) == answer


def test_clip_pools_at_its_end_token(folder: Path) -> None:
    # With end id 2 transformers pools at the highest word id instead; then words after it in
    # vocabulary order would not matter and padding would.
    model = CLIPModel.from_pretrained(folder / "clip").eval()
    assert model.config.text_config.eos_token_id == clip_tokenizer().eos_token_id != 2
    tokenizer = clip_tokenizer()
    short = tokenizer(["one red ball"], return_tensors="pt")
    padded = tokenizer(["one red ball", "a photo of one red ball"], padding=True, return_tensors="pt")
    with torch.no_grad():
        output = model.text_model(**short)
        alone, second = output.pooler_output, model.text_model(**padded).pooler_output[:1]
    torch.testing.assert_close(alone, output.last_hidden_state[:, -1])
    torch.testing.assert_close(alone, second, atol=1e-5, rtol=0)  # other batch shapes, other sum order


def test_folders_load_through_the_auto_classes(folder: Path) -> None:
    image = Image.fromarray(np.zeros((56, 56, 3), dtype=np.uint8))
    shapes = {"lvlm": (16, 1176), "clip": (1, 3, 56, 56)}
    for name, shape in shapes.items():
        tokenizer = AutoTokenizer.from_pretrained(folder / name)
        assert tokenizer.unk_token_id not in tokenizer(QUESTIONS[0])["input_ids"]
        processor = AutoImageProcessor.from_pretrained(folder / name)
        pixels = processor(images=[image], return_tensors="pt")["pixel_values"]
        assert pixels.shape == shape
        # Black is -1 after normalisation with mean and deviation one half.
        assert torch.equal(pixels, -torch.ones(shape))
    assert AutoTokenizer.from_pretrained(folder / "lvlm").padding_side == "left"
