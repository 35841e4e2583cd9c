"""CLIP features of a tiny random model, against plain calls of the stock class."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing
from transformers import CLIPConfig, CLIPImageProcessorPil, CLIPModel, PreTrainedTokenizerFast

from lever_pipe.lever.encoders import clip

POSITIONS, WIDTH = 8, 16
# </s> is not token 2: transformers would then fall back to a legacy rule, the largest token id.
WORDS = ["<pad>", "<s>", "<unk>", "</s>", *"abcdefghij"]
PAD, START, END = 0, 1, 3


def save_tokenizer(folder: Path) -> None:
    model = Tokenizer(WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    model.pre_tokenizer = Whitespace()
    model.post_processor = TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", START), ("</s>", END)])
    PreTrainedTokenizerFast(
        tokenizer_object=model, pad_token="<pad>", bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    ).save_pretrained(folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("clip")
    layer = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    text = layer | {
        "vocab_size": len(WORDS),
        "max_position_embeddings": POSITIONS,
        "pad_token_id": PAD,
        "bos_token_id": START,
        "eos_token_id": END,
    }
    config = CLIPConfig(
        text_config=text, vision_config=layer | {"image_size": 16, "patch_size": 8}, projection_dim=WIDTH
    )
    torch.manual_seed(0)
    CLIPModel(config).save_pretrained(path)
    save_tokenizer(path)
    size = {"shortest_edge": 16}
    CLIPImageProcessorPil(size=size, crop_size={"height": 16, "width": 16}).save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def encoder(folder: Path) -> clip.ClipEncoder:
    return clip.load(folder, device="cpu", batch_size=2)


@pytest.fixture
def pictures(tmp_path: Path) -> list[Path]:
    rng = np.random.default_rng(0)
    paths = [tmp_path / f"{i}.png" for i in range(3)]
    for path in paths:
        Image.fromarray(rng.integers(0, 256, (20, 24, 3), dtype=np.uint8)).save(path)
    return paths


def token_ids(text: str) -> list[int]:
    """Return start, words and end, by hand."""
    return [START, *(WORDS.index(word) for word in text.split()), END]


def test_texts_equal_plain_calls_of_the_stock_model(folder: Path, encoder: clip.ClipEncoder) -> None:
    texts = ["a b c", "d", "e f", "a b c"]
    model = CLIPModel.from_pretrained(folder).eval()
    with torch.no_grad():
        rows = [model.get_text_features(input_ids=torch.tensor([token_ids(t)])).pooler_output[0] for t in texts]
    expected = torch.stack([row / row.norm() for row in rows]).numpy()
    found = encoder.texts(texts)
    assert found.shape == (4, WIDTH)
    assert found.dtype == np.float32
    # Padding and batching move the last bits of float32; different texts differ by more than 1e-2.
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
    assert np.abs(found[0] - found[1]).max() > 1e-2


def test_images_equal_plain_calls_of_the_stock_model(
    folder: Path, encoder: clip.ClipEncoder, pictures: list[Path]
) -> None:
    model = CLIPModel.from_pretrained(folder).eval()
    processor = CLIPImageProcessorPil.from_pretrained(folder)
    rows = []
    for path in pictures:
        pixels = processor(images=Image.open(path).convert("RGB"), return_tensors="pt")["pixel_values"]
        with torch.no_grad():
            rows.append(model.get_image_features(pixel_values=pixels).pooler_output[0])
    expected = torch.stack([row / row.norm() for row in rows]).numpy()
    # Batching moves the last bits of float32.
    np.testing.assert_allclose(encoder.images(pictures), expected, rtol=0, atol=1e-5)


def test_long_texts_are_cut_at_the_positions_of_the_model(encoder: clip.ClipEncoder) -> None:
    # The 8 positions are start, 6 words and end; the rest cannot matter.
    long, cut = "a b c d e f g h i j", "a b c d e f"
    np.testing.assert_array_equal(encoder.texts([long]), encoder.texts([cut]))


def test_position_buffers_of_older_exports_are_accepted(folder: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(folder, tmp_path / "older")) / "model.safetensors"
    extra = {"text_model.embeddings.position_ids": torch.arange(POSITIONS)[None]}
    save_file(load_file(path) | extra, path, metadata={"format": "pt"})
    clip.load(path.parent, device="cpu", batch_size=2)
