"""Whether the pages of a GPU are to be trusted: found out by trying, because nothing else tells."""

from __future__ import annotations

import inspect
import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lever_pipe.base import seeding
from lever_pipe.lvlms._decoding import DecodeOptions
from lever_pipe.lvlms._engine import Engine
from lever_pipe.lvlms._executor import Executor
from lever_pipe.lvlms._layers import LanguageModel
from lever_pipe.lvlms._memory import SlotMemory
from lever_pipe.lvlms._packed import Memory, PackedExecutor
from lever_pipe.lvlms._padded import PaddedExecutor
from lever_pipe.lvlms._paged import Kernel, PagedMemory
from lever_pipe.lvlms._planner import Budget
from lever_pipe.lvlms._requests import Result, Segment, TokenPrompt, TokenRequest

log = logging.getLogger(__name__)

Lines = Sequence[Sequence[Sequence[float]]]  # log-probabilities of answers of results

# Small pages waste little on partly filled ones; the kernel that torch brings along takes multiples of 256 only.
PAGES = (16, 64, 256)


def choose_memory(
    language: LanguageModel,
    *,
    stored: int,
    spare: int,
    kernels: Mapping[str, Kernel] | None = None,
    pages: Sequence[int] = PAGES,
) -> Memory:
    """Return pages if a kernel on the model's device reads them rightly, else slots, and log which and why.

    Args:
        language: in evaluation mode, on its device.
        stored: tokens that the plan keeps at one time.
        spare: generated tokens a prompt that are stored, of all its beams together.
        kernels: by name; None for what torch offers on the model's device.
        pages: sizes to try, in order.
    """
    refusal = unusable(language) if kernels is None else None
    faults = [refusal] if refusal else []
    if kernels is None:
        kernels = {} if refusal else torch_kernels()
    for page in pages:
        for name, kernel in kernels.items():
            fault = self_test(language, page=page, kernel=kernel)
            if fault is None:
                before = f"; before it: {'; '.join(faults)}" if faults else ""
                log.info("keys and values in pages of %d tokens, read by %s%s", page, name, before)
                return PagedMemory(language, stored=stored, spare=spare, page=page, kernel=kernel, name=name)
            faults.append(f"{name} with pages of {page}: {fault}")
    log.info("keys and values by slot, not in pages: %s", "; ".join(faults))
    return SlotMemory(language, stored=stored, spare=spare)


def unusable(language: LanguageModel) -> str | None:
    """Return why torch cannot have a kernel for this model's pages; None if trying may succeed."""
    if language.device.type != "cuda":
        return f"a {language.device.type} device has no kernel for pages"
    if language.dtype not in (torch.float16, torch.bfloat16):
        return f"the kernel needs half precision, not {str(language.dtype).removeprefix('torch.')}"
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return "this torch has no varlen_attn"
    missing = {"block_table", "seqused_k", "num_splits"} - set(inspect.signature(varlen_attn).parameters)
    return f"this torch's varlen_attn has no {', '.join(sorted(missing))}" if missing else None


def torch_kernels() -> dict[str, Kernel]:
    """Return torch's kernels by name.

    Which one `varlen_attn` runs is torch's affair, and they differ: FlashAttention 2, which torch brings along, wants
    pages of multiples of 256 and insists on the sums of the key counts although nothing is read from them;
    FlashAttention 3, where installed and activated, refuses these sums beside a block table.
    """
    from torch.nn.attention.varlen import varlen_attn

    return {"varlen_attn": varlen_attn, "varlen_attn with key ends": with_key_ends(varlen_attn)}


def with_key_ends(kernel: Kernel) -> Kernel:
    """Return the kernel called with the sums of the key counts, int32 [N + 1], besides the counts."""

    def call(query: Tensor, key: Tensor, value: Tensor, cu_seq_q: Tensor, _: None, *most: int, **kwargs: Any) -> Any:
        ends = torch.nn.functional.pad(kwargs["seqused_k"].cumsum(0, dtype=torch.int32), (1, 0))
        return kernel(query, key, value, cu_seq_q, ends, *most, **kwargs)

    return call


# What the probes generate: enough for beams to change places, and to fill a page that a prompt leaves two tokens of.
PROBE_TOKENS = 5
# What attention's own rounding does where all else is equal: sums of fp32 products in another order; in half precision
# weights and sums of attention rounded elsewhere, through all layers, up to one step of a logit between 8 and 16.
FLOORS = {torch.float32: 1e-4, torch.float16: 2.0**-7, torch.bfloat16: 2.0**-4}


def self_test(language: LanguageModel, *, page: int, kernel: Kernel) -> str | None:
    """Return what is wrong with a kernel at a page size on the model's device; None if nothing is.

    Given answers are scored, others generated by greedy and by beam search, all in pages. Then the padded executor
    scores all of them, and so does the packed one on slots. These two are right, so how far they are apart is what
    rounding does to this model in its dtype; pages may be about as far from them. Generated tokens are not compared:
    where two are nearly equal, rounding decides.
    """
    probes = _probes(language, page)
    try:
        runs = [_run(language, probes, page=page, beams=beams, kernel=kernel) for beams in (1, 3)]
    except torch.OutOfMemoryError:
        raise  # says nothing about the kernel
    except (RuntimeError, TypeError, ValueError) as fault:
        return f"{type(fault).__name__}: {str(fault).partition(chr(10))[0]}"
    found = list(zip(*runs, strict=True))
    asked = [
        TokenRequest(
            probe.prompt, tuple(answer for r in results for answer in (*probe.answers, r.tokens)), generate=False
        )
        for probe, results in zip(probes, found, strict=True)
    ]
    paged = [(*r.scores, r.token_log_probs) for results in found for r in results]
    padded = [r.scores for r in _run(language, asked, page=page, padded=True)]
    slots = [r.scores for r in _run(language, asked, page=page)]
    off, fair = (_worst_gap(values, padded, len(probes)) for values in (paged, slots))
    if off <= 2 * fair + FLOORS[language.dtype]:
        return None
    return (
        f"log-probabilities of a prompt are off by {off:.2g} (root mean square), of which rounding explains {fair:.2g}"
    )


def _probes(language: LanguageModel, page: int) -> list[TokenRequest]:
    """Return prompts that share beginnings and end at all places of a page; only tokens, no images."""
    rng = seeding.generator(0, "paged self-test")
    vocabulary, image = language.vocabulary, language.image_token

    def draw(count: int) -> tuple[int, ...]:
        return tuple(int(token) for token in rng.integers(vocabulary, size=2 * count + 8) if token != image)[:count]

    beyond, rest, few, long, nearly = (Segment(draw(n)) for n in (page + 3, page - 3, 5, 5 * page // 2 + 1, page - 2))
    answers = tuple(draw(n) for n in (1, 2, 7))
    prompts = [(few,), (nearly,), (beyond, few), (beyond, rest), (beyond, rest, few), (beyond, rest, long)]
    return [TokenRequest(TokenPrompt(segments), answers) for segments in [*prompts, (beyond, nearly)]]


def _run(
    language: LanguageModel,
    requests: Sequence[TokenRequest],
    *,
    page: int,
    beams: int = 1,
    kernel: Kernel | None = None,
    padded: bool = False,
) -> list[Result]:
    """Return results by pages if there is a kernel, else by slots or padded; several waves and chunks."""
    budget = Budget(4 * page + 64, 8 * page + 256, context=2**31, new_tokens=PROBE_TOKENS, beams=beams)
    common: dict[str, Any] = {"options": DecodeOptions((), PROBE_TOKENS, beams), "counters": Counter()}
    sizes: dict[str, Any] = {"stored": budget.stored, "spare": budget.spare}
    images: Any = _NoImages()
    executor: Executor
    if padded:
        executor = PaddedExecutor(language, images, **common)
    else:
        memory = PagedMemory(language, **sizes, page=page, kernel=kernel) if kernel else SlotMemory(language, **sizes)
        executor = PackedExecutor(language, images, memory=memory, **common)
    return Engine(language, images, executor=executor, budget=budget, counters=Counter()).run(requests)


class _NoImages:
    """Stands in for a vision store where no prompt has images."""

    def prepare(self, digests: Iterable[str]) -> None:
        """Encode nothing."""


def _worst_gap(ours: Lines, theirs: Lines, n_prompts: int) -> float:
    """Return the root mean square difference of the prompt where it is largest: a misread page may touch one only."""
    one, other = (np.concatenate([line for lines in values for line in lines]) for values in (ours, theirs))
    return float(np.sqrt(np.square(one - other).reshape(n_prompts, -1).mean(axis=1)).max())
