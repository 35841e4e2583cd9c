"""A tiny random Qwen2.5-VL whose outputs react to images and positions, as a folder and as loaded parts."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_qwen2_5_vl
from PIL import Image
from stock_path import StockPath
from tiny_parts import WORDS

from lever_pipe.lvlms._decoding import DecodeOptions
from lever_pipe.lvlms._engine import Engine, build_engine
from lever_pipe.lvlms._family import Family
from lever_pipe.lvlms._requests import Segment, TokenPrompt, TokenRequest
from lever_pipe.lvlms._vision import VisionStore
from lever_pipe.lvlms.protocol import ImageSource
from lever_pipe.lvlms.qwen2_5_vl import load

SIZES = ((112, 84), (84, 112), (112, 112), (168, 56), (56, 140))  # width, height
SYSTEM = "<|im_start|>system\nAnswer with one or two words.<|im_end|>\n"


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny") / "model"
    tiny_qwen2_5_vl.save(path)
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

    @cached_property
    def stock(self) -> StockPath:
        return StockPath(self.parts, self.paths)

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
        **kw: Any,
    ) -> tuple[Engine, Counter[str]]:
        store, counters = self.vision()
        engine = build_engine(
            self.parts.language,
            store,
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
