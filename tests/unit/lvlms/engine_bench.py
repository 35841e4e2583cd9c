"""Prompts and engines over a tiny Qwen2.5-VL, and the model library's answers to the same prompts."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from builders import example
from tiny_folders import WORDS

from lever_pipe.experiment.lvlm import AnswerSettings, Decode, PromptSettings
from lever_pipe.lvlms import hf
from lever_pipe.lvlms._engine import PackedEngine
from lever_pipe.lvlms._requests import Result, Segment, TokenPrompt, TokenRequest, merge_requests
from lever_pipe.lvlms._vision import VisionStore
from lever_pipe.lvlms.asking.prompts import Prompt, Wording
from lever_pipe.lvlms.protocol import DecodeOptions, ImageSource
from lever_pipe.lvlms.qwen2_5_vl import Qwen

SYSTEM = "<|im_start|>system\nAnswer with one or two words.<|im_end|>\n"
# Sums of fp32 products in another order, through three layers: 1e-5 is seen, a wrong position moves 0.1 or more.
ATOL = 1e-4


QUESTIONS = ("what color is the cat", "where is the bus", "two dog", "what kind of food", "is the man")
ANSWERS = ("red", "red cat", "two", "table", "train")
DISPLAYED = ((), (0,), (1, 0), (0, 1, 2), (3, 2, 1, 0), (0, 1))


def prompts_of(paths: Mapping[str, Path], layout: str = "turns", system: str | None = "answer") -> list[Prompt]:
    """Return prompts with 0 to 4 demonstrations, images of several shapes, and beginnings that they share."""
    examples = [
        example(i, image_digest=digest, question=QUESTIONS[i % 5], answer=ANSWERS[i % 5])
        for i, digest in enumerate(paths)
    ]
    wording = Wording(PromptSettings(layout=layout, system=system))  # type: ignore[arg-type]
    return [
        wording.prompt(examples[5 + n % 2], [examples[i] for i in displayed]) for n, displayed in enumerate(DISPLAYED)
    ]


def settings(
    engine: str, *, dtype: str = "float32", wave: int = 900, kv: int = 20_000, **decode: Any
) -> AnswerSettings:
    """Return settings for tiny models; greedy without a penalty, unless `decode` overrides it."""
    search = Decode(**{"num_beams": 1, "repetition_penalty": 1.0, **decode})
    chosen = AnswerSettings(engine=engine, dtype=dtype, decode=search)  # type: ignore[arg-type]
    return chosen.model_copy(update={"wave_tokens": wave, "kv_tokens": kv})  # below the minimum of a configuration


def results(engine: PackedEngine, requests: Sequence[TokenRequest]) -> list[Result]:
    """Return one result per request, in order; given answers are those of all requests for the prompt, sorted."""
    by_prompt = {request.prompt: result for request, result in engine.run(merge_requests(requests))}
    return [by_prompt[request.prompt] for request in requests]


class Library:
    """The stock class of a folder; its answer to a prompt depends on nothing else, and is cached."""

    def __init__(self, folder: Path, paths: Mapping[str, Path]) -> None:
        self.family = hf.load(folder, dtype="float32", device="cpu")
        self._images = ImageSource(paths)
        self.answer, self.scores = cache(self.answer), cache(self.scores)

    def _engine(self, options: DecodeOptions = DecodeOptions((), 1)) -> hf.StockEngine:
        return hf.StockEngine(self.family, self._images, options)

    def answer(self, prompt: TokenPrompt, options: DecodeOptions) -> tuple[tuple[int, ...], float | None]:
        """Return the tokens of a prompt, asked alone, and the score of their beam."""
        return self._engine(options).generate([prompt])[0]

    def tokens(self, prompts: Sequence[TokenPrompt], options: DecodeOptions) -> list[tuple[int, ...]]:
        """Return the tokens of each prompt, asked alone."""
        return [self.answer(prompt, options)[0] for prompt in prompts]

    def scores(self, prompt: TokenPrompt, answer: tuple[int, ...]) -> list[float]:
        """Return the log-probabilities of an answer's tokens by one full forward on pixels."""
        return list(self._engine().scores(prompt, [answer])[0])

    def inputs(self, prompt: TokenPrompt) -> dict[str, torch.Tensor]:
        """Return what the model's forward takes of one prompt."""
        return self._engine().inputs([prompt], reserved=0)


@dataclass
class Bench:
    """Builds prompts and engines over the tiny model."""

    parts: Qwen
    paths: dict[str, Path]
    library: Library

    def ids(self, text: str) -> tuple[int, ...]:
        return tuple(self.parts.tokenizer(text, add_special_tokens=False).input_ids)

    def segment(self, text: str, *images: str) -> Segment:
        return Segment(self.ids(text), images, text)

    def turn(self, image: int, question: str, answer: str | None) -> Segment:
        displayed = f"<|vision_start|><|image_pad|><|vision_end|>{question}"
        text = f"<|im_start|>user\n{displayed}<|im_end|>\n<|im_start|>assistant\n"
        ending = "" if answer is None else f"{answer}<|im_end|>\n"
        return self.segment(text + ending, list(self.paths)[image])

    def prompt(self, demonstrations: tuple[int, ...], query: int) -> TokenPrompt:
        def words(seed: int, count: int) -> str:
            return " ".join(random.Random(seed).choices(WORDS, k=count))

        displayed = [self.turn(d, words(d, 2 + d % 3), words(50 + d, 1 + d % 2)) for d in demonstrations]
        return TokenPrompt((self.segment(SYSTEM), *displayed, self.turn(query, words(90 + query, 3), None)))

    def answers(self) -> tuple[tuple[int, ...], ...]:
        """One token, several, equal first tokens; each with the end of the turn; one without. Sorted, as if merged."""
        ended = [(*self.ids(a), self.parts.eos) for a in ("red", "red cat", "two dog", "")]
        return tuple(sorted([*ended, self.ids("blue")]))

    def prompts(self) -> list[TokenPrompt]:
        """0 to 4 demonstrations, all image shapes, a duplicate, prompts with a common start."""
        chosen = [((), 9), ((0,), 9), ((0, 1), 9), ((0, 1, 2), 8), ((0, 1, 2, 3), 9), ((3, 2, 1, 0), 9), ((4, 4), 7)]
        chosen += [((), 5), ((5,), 6), ((6, 2), 8), ((1, 0), 9), ((0, 1), 9)]
        return [self.prompt(*c) for c in chosen]

    def requests(self) -> list[TokenRequest]:
        return [TokenRequest(prompt, self.answers()) for prompt in self.prompts()]

    def options(self, *, eos: tuple[int, ...] | None = None, beams: int = 1, tokens: int = 6, **more: Any) -> Any:
        return DecodeOptions(eos or (self.parts.eos,), tokens, beams, never=(self.parts.image_token,), **more)

    def vision(self, capacity: int = 2**30) -> VisionStore:
        parts = self.parts
        return VisionStore(parts.model, parts.image_processor, ImageSource(self.paths), capacity=capacity)

    def engine(self, *, wave_tokens: int = 700, kv_tokens: int = 4000, **options: Any) -> PackedEngine:
        return PackedEngine(self.parts.model, self.vision(), self.options(**options), wave_tokens, kv_tokens)

    def answered(self, requests: Sequence[TokenRequest], **options: Any) -> list[Result]:
        """Return the answers of a fresh engine."""
        return results(self.engine(**options), requests)
