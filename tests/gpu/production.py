"""Stage (a) shaped work, with random weights: what a device takes for it depends on shapes, not on what was learned."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from transformers import GenerationConfig, Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from lever_pipe.base.seeding import ambient_stream, generator
from lever_pipe.lvlms._decoding import DecodeOptions
from lever_pipe.lvlms._engine import build_engine
from lever_pipe.lvlms._flop import flop_per_second
from lever_pipe.lvlms._requests import Segment, TokenPrompt, TokenRequest
from lever_pipe.lvlms.qwen2_5_vl import family_of

PAD, START, END, VISION_START, VISION_END, IMAGE = range(6)
N_SPECIAL = 6
EOS = (END,)


@dataclass(frozen=True)
class Size:
    """Dimensions of the model and of the work."""

    hidden: int = 2048
    layers: int = 36
    heads: int = 16
    inner: int = 11_008
    vocabulary: int = 151_936
    vision_depth: int = 32
    vision_hidden: int = 1280
    vision_inner: int = 3420
    image: tuple[int, int] = (640, 480)  # 391 visual tokens
    n_queries: int = 8
    n_sequences: int = 20
    n_pool: int = 64


PRODUCTION = Size()
TINY = Size(64, 3, 4, 96, 320, 4, 32, 48, (112, 84), 2, 5, 8)


@dataclass(frozen=True)
class Measured:
    """Seconds of the engine, of the limit of its counted work, and of the stock path for as many prompts."""

    seconds: float
    limit: float
    stock: float
    counters: Counter[str]


def make_parts(size: Size, *, device: str, dtype: torch.dtype) -> Any:
    """Return a model with random weights and an image processor, without a tokenizer."""
    half = size.hidden // size.heads // 2
    sections = [half // 4, (half - half // 4) // 2, half - half // 4 - (half - half // 4) // 2]
    config = Qwen2_5_VLConfig(
        text_config={
            "hidden_size": size.hidden,
            "num_hidden_layers": size.layers,
            "num_attention_heads": size.heads,
            "num_key_value_heads": 2,
            "intermediate_size": size.inner,
            "vocab_size": size.vocabulary,
            "max_position_embeddings": 32_768,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": sections},
            "pad_token_id": PAD,
            "bos_token_id": PAD,
            "eos_token_id": END,
            "tie_word_embeddings": True,
        },
        vision_config={
            "depth": size.vision_depth,
            "hidden_size": size.vision_hidden,
            "intermediate_size": size.vision_inner,
            "num_heads": 16 if size.vision_hidden > 100 else 2,
            "out_hidden_size": size.hidden,
            "fullatt_block_indexes": [i for i in range(size.vision_depth) if i % 8 == 7] or [size.vision_depth - 1],
            "window_size": 112,
        },
        image_token_id=IMAGE,
        video_token_id=PAD,
        vision_start_token_id=VISION_START,
        vision_end_token_id=VISION_END,
        tie_word_embeddings=True,
    )
    config._attn_implementation = "sdpa"
    with ambient_stream(0, "gpu", "weights"), torch.device(device):
        model = Qwen2_5_VLForConditionalGeneration._from_config(config, dtype=dtype)
    model.eval().requires_grad_(False)
    model.generation_config = GenerationConfig(eos_token_id=END, pad_token_id=PAD)
    processor = Qwen2VLImageProcessorPil(min_pixels=56 * 56, max_pixels=28 * 28 * 1280)
    return family_of(Path(), model, _PadOnly(), processor)


class _PadOnly:
    """All that the stock path asks of a tokenizer."""

    pad_token_id = PAD
    eos_token_id = END


def make_requests(size: Size) -> list[TokenRequest]:
    """Return two-shot prompts out of a pool a query, each with four given answers."""
    rng = generator(0, "gpu", "requests")

    def text(count: int) -> tuple[int, ...]:
        return tuple(rng.integers(N_SPECIAL, size.vocabulary, count).tolist())

    system = Segment((START, *text(150), END))
    answers = tuple((*text(2), END) for _ in range(4))
    requests = []
    for query in range(size.n_queries):
        pool = [_turn(f"{query}-{i}", text(30)) for i in range(size.n_pool)]
        asked = _turn(f"{query}-query", text(20))
        for _ in range(size.n_sequences):
            one, two = (pool[int(i)] for i in rng.choice(size.n_pool, 2, replace=False))
            requests.append(TokenRequest(TokenPrompt((system, one, two, asked)), answers))
    return requests


def _turn(image: str, words: tuple[int, ...]) -> Segment:
    return Segment((VISION_START, IMAGE, VISION_END, *words, END), (image,))


class _Images:
    """Images that belong to names."""

    def __init__(self, size: Size) -> None:
        self._size = size.image

    def open(self, name: str) -> Image.Image:
        low = generator(0, "gpu", "image", name).integers(0, 255, (6, 8, 3), dtype=np.uint8)
        return Image.fromarray(low).resize(self._size, Image.Resampling.BICUBIC)

    def size(self, _: str) -> tuple[int, int]:
        return self._size


def measure(size: Size, *, device: str, dtype: torch.dtype, n_stock: int) -> Measured:
    """Return what the engine takes for the work, and what the stock path takes, from `n_stock` of its prompts."""
    parts, requests = make_parts(size, device=device, dtype=dtype), make_requests(size)
    options = DecodeOptions(EOS, 5)
    counters: Counter[str] = Counter()

    images = _Images(size)

    def run(part: list[TokenRequest]) -> None:
        vision = parts.vision(images, capacity=2**34, counters=counters)  # type: ignore[arg-type]
        engine = build_engine(
            parts.language,
            vision,
            executor="packed",
            options=options,
            wave_tokens=32_768,
            kv_tokens=200_000,
            counters=counters,
        )
        engine.run(part)

    run(requests[: size.n_sequences])  # kernels are chosen, memory is taken
    counters.clear()
    seconds = _timed(device, lambda: run(requests))
    prompts = [request.prompt for request in requests[:: max(1, len(requests) // n_stock)][:n_stock]]
    plain = _timed(device, lambda: parts.stock_tokens(prompts, open_image=images.open, options=options, batch_size=1))
    reachable = flop_per_second(torch.device(device), dtype) if device.startswith("cuda") else float("nan")
    return Measured(seconds, counters["flop"] / reachable, plain / len(prompts) * len(requests), counters)


def _timed(device: str, work: Any) -> float:
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    begin = time.perf_counter()
    work()
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    return time.perf_counter() - begin
