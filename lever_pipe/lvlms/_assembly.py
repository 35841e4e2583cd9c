"""An engine of the configured parts."""

from __future__ import annotations

from collections import Counter
from typing import Any

from lever_pipe.lvlms._decoding import DecodeOptions
from lever_pipe.lvlms._engine import Engine
from lever_pipe.lvlms._memory import SlotMemory
from lever_pipe.lvlms._packed import Memory, PackedExecutor
from lever_pipe.lvlms._padded import PaddedExecutor
from lever_pipe.lvlms._planner import Budget
from lever_pipe.lvlms._vision import VisionStore


def build_engine(
    model: Any,
    vision: VisionStore,
    *,
    executor: str,
    options: DecodeOptions,
    wave_tokens: int,
    kv_tokens: int,
    counters: Counter[str],
) -> Engine:
    """Return an engine over a model.

    Args:
        model: a `Qwen2_5_VLForConditionalGeneration` in evaluation mode.
        vision: its image features.
        executor: `packed` or `padded`.
        options: how answers are searched.
        wave_tokens: tokens of one forward.
        kv_tokens: tokens whose keys and values are kept at one time.
        counters: receives the language model's work.
    """
    budget = Budget(
        wave=wave_tokens,
        stored=kv_tokens,
        context=model.config.text_config.max_position_embeddings,
        new_tokens=options.max_new_tokens,
        beams=options.num_beams,
    )
    if executor == "padded":
        run = PaddedExecutor(model, vision, options=options, counters=counters)
        return Engine(model, vision, executor=run, budget=budget, counters=counters, backend="padded")
    memory = _memory(model, budget)
    packed = PackedExecutor(model, vision, memory=memory, options=options, counters=counters)
    return Engine(model, vision, executor=packed, budget=budget, counters=counters, backend=f"packed, {memory.kind}")


def _memory(model: Any, budget: Budget) -> Memory:
    """Return pages where a kernel of the model's device reads them rightly, else slots."""
    if model.device.type == "cpu":
        return SlotMemory(model, stored=budget.stored, spare=budget.spare)
    from lever_pipe.lvlms._paged_choice import choose_memory

    return choose_memory(model, stored=budget.stored, spare=budget.spare)
