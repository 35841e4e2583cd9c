"""The compared modes of answering: plain, one prompt at a time, and plugins of `lvlms`."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from benchmarks.subjects import Subject
from lever_pipe.base import plugins
from lever_pipe.experiment.job_runtime import LvlmExecution, Runtime, VllmSettings
from lever_pipe.lvlms.asking.answering import LedgerLvlm
from lever_pipe.lvlms.asking.prompts import Prompt
from lever_pipe.lvlms.protocol import LvlmReply, LvlmRequest

IMAGE_TOKEN = "<|image_pad|>"
OF_VLLM = VllmSettings(memory_share=0.1, eager=True, image_cache_gb=0.1)


@dataclass(frozen=True)
class Outcome:
    """The result of one request.

    Attributes:
        tokens: the generated answer with the end of the turn.
        token_log_probs: log-probability of each of these tokens.
        answer_log_probs: of each given answer, summed over its tokens and the end of the turn.
    """

    tokens: tuple[int, ...]
    token_log_probs: tuple[float, ...]
    answer_log_probs: tuple[float, ...]


@dataclass(frozen=True)
class Work:
    """The computed work; unlike seconds, the same on every machine.

    Attributes:
        images: passes of one image through the vision tower.
        prompts: prompts computed.
        tokens: prompt tokens that the language model processed.
        forwards: passes of the language model.
    """

    images: int = 0
    prompts: int = 0
    tokens: int = 0
    forwards: int = 0


class Answerer(Protocol):
    """One mode of answering with empty caches. Only `run` is timed."""

    def run(self, requests: Sequence[LvlmRequest]) -> None:
        """Answer all requests."""
        ...

    def outcomes(self) -> list[Outcome]:
        """Return one outcome a request."""
        ...

    @property
    def work(self) -> Work:
        """Work of `run`."""
        ...


@dataclass(frozen=True)
class Mode:
    """A named mode of answering, with its description on the page."""

    name: str
    meaning: str
    make: Callable[[Subject], Answerer]


class Plain:
    """`generate` for every prompt, then a forward for each given answer: pixels each time, without sharing."""

    def __init__(self, subject: Subject) -> None:
        self._parts = subject.parts
        self._images = subject.images
        self._n_new = subject.settings.decode.max_new_tokens
        self._merge = subject.parts.model.config.vision_config.spatial_merge_size**2
        self._outcomes: list[Outcome] = []
        self._work = Work()

    @property
    def work(self) -> Work:
        """Work of `run`."""
        return self._work

    def outcomes(self) -> list[Outcome]:
        """Return one outcome a request."""
        return self._outcomes

    @torch.inference_mode()
    def run(self, requests: Sequence[LvlmRequest]) -> None:
        """Answer all requests, one after another."""
        for request in requests:
            tokens, log_probs = self._generate(request.prompt)
            scores = tuple(self._score(request.prompt, answer) for answer in request.answers)
            self._outcomes.append(Outcome(tokens, log_probs, scores))

    def _generate(self, prompt: Prompt) -> tuple[tuple[int, ...], tuple[float, ...]]:
        inputs = self._inputs(prompt)
        length = inputs["input_ids"].shape[1]
        found = self._parts.model.generate(
            **inputs,
            do_sample=False,
            max_new_tokens=self._n_new,
            return_dict_in_generate=True,
            output_logits=True,
        )
        tokens = found.sequences[0, length:].tolist()
        lines = torch.cat(found.logits).log_softmax(-1)
        self._count(prompt, length, forwards=len(tokens))
        return tuple(tokens), tuple(lines[range(len(tokens)), tokens].tolist())

    def _score(self, prompt: Prompt, answer: str) -> float:
        inputs = self._inputs(prompt)
        length = inputs["input_ids"].shape[1]
        tokens = [*self._ids(answer), self._parts.eos]
        more = torch.tensor([tokens])
        for name, filler in (("input_ids", more), ("attention_mask", more * 0 + 1), ("mm_token_type_ids", more * 0)):
            inputs[name] = torch.cat([inputs[name], filler], dim=1)
        lines = self._parts.model(**inputs).logits[0, length - 1 : -1].log_softmax(-1)
        self._count(prompt, length, forwards=1)
        return float(lines[range(len(tokens)), tokens].sum())

    def _inputs(self, prompt: Prompt) -> dict[str, Tensor]:
        """Return the outputs of the model's own processor: pixels, and the text with all tokens of every image."""
        images = [self._images.open(digest) for digest in prompt.images]
        pixels = dict(self._parts.image_processor(images=images, return_tensors="pt"))
        counts = iter((pixels["image_grid_thw"].prod(-1) // self._merge).tolist())
        text = "".join(segment.text for segment in self._parts.render(prompt))
        ids = torch.tensor([self._ids(re.sub(re.escape(IMAGE_TOKEN), lambda m: m[0] * next(counts), text))])
        image_token = self._parts.model.config.image_token_id
        return {
            "input_ids": ids,
            "attention_mask": torch.ones_like(ids),
            "mm_token_type_ids": (ids == image_token).long(),
            **pixels,
        }

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self._parts.tokenizer(text, add_special_tokens=False).input_ids
        return ids

    def _count(self, prompt: Prompt, length: int, forwards: int) -> None:
        done = self._work
        self._work = Work(
            images=done.images + len(prompt.images),
            prompts=done.prompts + 1,
            tokens=done.tokens + length,
            forwards=done.forwards + forwards,
        )


class ByEngine:
    """A plugin of `lvlms` with an empty ledger in memory.

    Args:
        subject: the subject with the model.
        engine: the name of the plugin.
        shares: whether prompts keep their segments; prompts of a single segment share no beginning.
    """

    def __init__(self, subject: Subject, engine: str = "qwen2_5_vl", *, shares: bool = True) -> None:
        self._shares = shares
        self._requests: Sequence[LvlmRequest] = ()
        self._replies: list[LvlmReply] = []
        settings = subject.settings.model_copy(update={"engine": engine})
        runtime = Runtime(lvlm=LvlmExecution(vllm=OF_VLLM))
        self._engine = LedgerLvlm(_family(engine, subject.parts.folder), settings, subject.images, runtime)
        # vLLM opens a model once a process, so its caches must be emptied for each mode.
        if engine == "vllm":
            _forget(self._engine.family)

    @property
    def work(self) -> Work:
        """Work of `run`."""
        counters = self._engine.counters
        names = ("images_encoded", "prompts_distinct", "tokens_prefilled", "forwards")
        return Work(*(int(counters[name]) for name in names))

    def run(self, requests: Sequence[LvlmRequest]) -> None:
        """Answer all requests in one call."""
        alone = [replace(request, prompt=_in_one_segment(request.prompt)) for request in requests]
        self._requests = requests if self._shares else alone
        self._replies = self._engine.run(self._requests)

    def outcomes(self) -> list[Outcome]:
        """Return one outcome a request, with the tokens of its ledger row."""
        found = []
        for request, reply in zip(self._engine.tokenize(self._requests), self._replies, strict=True):
            row = self._engine.ledger.get(self._engine.key(request.prompt))
            assert row is not None
            found.append(Outcome(tuple(row["tokens"]), tuple(row["token_log_probs"]), reply.answer_log_probs))
        return found


@cache
def _family(engine: str, folder: Path) -> Any:
    return plugins.plugin("lvlms", engine).load(folder, dtype="float32", device="cpu")


def _forget(family: Any) -> None:
    """Empty vLLM's caches of prompts, images and features; the model stays loaded."""
    from lever_pipe.lvlms import vllm

    llm = vllm.opened(family.folder, family.dtype, family.context, OF_VLLM)
    llm.reset_prefix_cache()
    llm.reset_mm_cache()
    llm.llm_engine.reset_encoder_cache()


def _in_one_segment(prompt: Prompt) -> Prompt:
    return replace(prompt, blocks=(tuple(turn for block in prompt.blocks for turn in block),))


def _by(engine: str) -> Callable[[Subject], Answerer]:
    return lambda subject: ByEngine(subject, engine)


PLAIN = Mode(
    "plain",
    "`generate` and a forward for each given answer, processor and pixels each time, batch 1",
    Plain,
)
HF = Mode("hf", "engine `hf`: `generate` for 8 prompts at a time, a forward for a prompt's given answers", _by("hf"))
PACKED = Mode(
    "packed",
    "engine `qwen2_5_vl`: rows without padding, common prefixes computed once",
    _by("qwen2_5_vl"),
)
ALONE = Mode(
    "packed, no shared prefixes",
    "the same without shared prefixes; equal prompts are answered once, images encoded once",
    lambda subject: ByEngine(subject, shares=False),
)
VLLM = Mode(
    "vllm",
    "engine `vllm`, `eager`, 256 prompts a call; forwards are calls, a given answer is a separate prompt",
    _by("vllm"),
)
MODES = (PLAIN, HF, PACKED, ALONE, *([VLLM] if find_spec("vllm") else []))
