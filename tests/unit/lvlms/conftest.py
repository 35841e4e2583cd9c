"""A tiny random Qwen2.5-VL whose outputs react to images and positions, as a folder and as loaded parts."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from lever_pipe.lvlms._decoding import DecodeOptions
from lever_pipe.lvlms._engine import Engine, build_engine
from lever_pipe.lvlms._family import Family
from lever_pipe.lvlms._requests import Segment, TokenPrompt, TokenRequest
from lever_pipe.lvlms._vision import VisionStore
from lever_pipe.lvlms.protocol import ImageSource
from lever_pipe.lvlms.qwen2_5_vl import load

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>")
WORDS = (
    *("what", "color", "is", "the", "cat", "dog", "bus", "train", "man", "table", "red", "blue", "green"),
    *("two", "one", "kind", "of", "food", "sport", "where"),
)
SIZES = ((112, 84), (84, 112), (112, 112), (168, 56), (56, 140))  # width, height
SYSTEM = "<|im_start|>system\nAnswer with one or two words.<|im_end|>\n"


def make_tokenizer() -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        [" ".join(WORDS), "\n".join(WORDS)],
        trainers.BpeTrainer(vocab_size=320, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False),
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=list(SPECIALS),
        padding_side="left",
    )


def make_model(tokenizer: PreTrainedTokenizerFast) -> Qwen2_5_VLForConditionalGeneration:
    pad, _, end, start, stop, image = tokenizer.convert_tokens_to_ids(list(SPECIALS))
    rotary = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}
    config = Qwen2_5_VLConfig(
        text_config={
            "hidden_size": 64,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "intermediate_size": 96,
            "vocab_size": len(tokenizer),
            "max_position_embeddings": 4096,
            "rope_parameters": rotary,
            "bos_token_id": pad,
            "eos_token_id": end,
            "pad_token_id": pad,
            "tie_word_embeddings": True,
        },
        vision_config={
            "depth": 2,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_heads": 2,
            "out_hidden_size": 64,
            "fullatt_block_indexes": [1],
            "window_size": 56,
        },
        image_token_id=image,
        video_token_id=pad,
        vision_start_token_id=start,
        vision_end_token_id=stop,
        tie_word_embeddings=True,
    )
    model = Qwen2_5_VLForConditionalGeneration(config)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(0, 0.05, generator=generator)
            elif parameter.ndim >= 2:
                # Far above the usual 0.02, else no output would react to an image or a position.
                parameter.normal_(0, 0.15 if "embed_tokens" in name else 0.25, generator=generator)
    return model


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny") / "model"
    tokenizer = make_tokenizer()
    make_model(tokenizer).save_pretrained(path)
    tokenizer.save_pretrained(path)
    Qwen2VLImageProcessorPil(min_pixels=56 * 56, max_pixels=112 * 112).save_pretrained(path)
    return path


@pytest.fixture(scope="session")
def parts(folder: Path) -> Family:
    return load(folder, dtype="float32", device="cpu")


@pytest.fixture(scope="session")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Image files of several shapes by digest; the names sort in the order of making."""
    root, found = tmp_path_factory.mktemp("images"), {}
    for number in range(10):
        rng = np.random.default_rng(number)
        low = Image.fromarray(rng.integers(0, 255, (5, 5, 3), dtype=np.uint8))
        path = root / f"{number}.png"
        low.resize(SIZES[number % len(SIZES)], Image.Resampling.BICUBIC).save(path)
        found[hashlib.sha256(path.read_bytes()).hexdigest()] = path
    return found


@dataclass
class Bench:
    """Builds prompts and engines over the tiny model."""

    parts: Family
    paths: dict[str, Path]

    def ids(self, text: str) -> tuple[int, ...]:
        return tuple(self.parts.tokenizer(text, add_special_tokens=False).input_ids)

    def turn(self, image: int, question: str, answer: str | None) -> Segment:
        shown = f"<|vision_start|><|image_pad|><|vision_end|>{question}"
        text = f"<|im_start|>user\n{shown}<|im_end|>\n<|im_start|>assistant\n"
        ending = "" if answer is None else f"{answer}<|im_end|>\n"
        return Segment(self.ids(text + ending), (list(self.paths)[image],))

    def prompt(self, demonstrations: tuple[int, ...], query: int) -> TokenPrompt:
        def words(seed: int, count: int) -> str:
            return " ".join(random.Random(seed).choices(WORDS, k=count))

        shown = [self.turn(d, words(d, 2 + d % 3), words(50 + d, 1 + d % 2)) for d in demonstrations]
        return TokenPrompt((Segment(self.ids(SYSTEM)), *shown, self.turn(query, words(90 + query, 3), None)))

    def answers(self) -> tuple[tuple[int, ...], ...]:
        """One token, several, equal first tokens; each with the end of the turn; one without."""
        end = self.parts.eos
        return (*(((*self.ids(a), end)) for a in ("red", "red cat", "two dog", "")), self.ids("blue"))

    def prompts(self) -> list[TokenPrompt]:
        """0 to 4 demonstrations, all image shapes, a duplicate, prompts that begin alike."""
        chosen = [((), 9), ((0,), 9), ((0, 1), 9), ((0, 1, 2), 8), ((0, 1, 2, 3), 9), ((3, 2, 1, 0), 9), ((4, 4), 7)]
        chosen += [((), 5), ((5,), 6), ((6, 2), 8), ((1, 0), 9), ((0, 1), 9)]
        return [self.prompt(*c) for c in chosen]

    def vision(self, capacity: int = 2**30) -> tuple[VisionStore, Counter[str]]:
        counters: Counter[str] = Counter()
        source = ImageSource(self.paths)
        return self.parts.vision(source, capacity=capacity, counters=counters), counters

    def engine(
        self,
        *,
        beams: int = 1,
        eos: tuple[int, ...] | None = None,
        wave_tokens: int = 700,
        kv_tokens: int = 4000,
        tokens: int = 6,
        executor: str = "packed",
        **kw: Any,
    ) -> tuple[Engine, Counter[str]]:
        store, counters = self.vision()
        engine = build_engine(
            self.parts.language,
            store,
            executor=executor,
            options=self.options(beams=beams, eos=eos, tokens=tokens, **kw),
            wave_tokens=wave_tokens,
            kv_tokens=kv_tokens,
            counters=counters,
        )
        return engine, counters

    def options(
        self,
        *,
        beams: int = 1,
        eos: tuple[int, ...] | None = None,
        tokens: int = 6,
        length_penalty: float = 0.0,
        repetition_penalty: float = 1.0,
    ) -> DecodeOptions:
        return DecodeOptions(eos or (self.parts.eos,), tokens, beams, length_penalty, repetition_penalty)

    def requests(self) -> list[TokenRequest]:
        return [TokenRequest(prompt, self.answers()) for prompt in self.prompts()]

    @property
    def open(self) -> Callable[[str], Any]:
        return ImageSource(self.paths).open


@pytest.fixture(scope="session")
def bench(parts: Family, paths: dict[str, Path]) -> Bench:
    return Bench(parts, paths)
