"""Any vision-language model that vLLM supports, in this process; vLLM does batches, prefix cache and several GPUs.

Prompts are passed as tokens with one placeholder an image, in the order of a tree, so that neighbours share beginnings.
A greedy answer is one call. Beams are searched by the rules of the other plugins (`_decoding`), one call a step: vLLM's
own search supports neither a repetition penalty nor several end tokens.
"""

from __future__ import annotations

import gc
import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.metadata import packages_distributions, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lever_pipe.base.errors import CheckpointError, ConfigError, shortened
from lever_pipe.lvlms._decoding import beam_search
from lever_pipe.lvlms._planner import trie_order
from lever_pipe.lvlms._requests import Answer, PromptTooLongError, Result, Results, Scores, TokenPrompt, TokenRequest
from lever_pipe.lvlms.hf import Templated, described
from lever_pipe.lvlms.protocol import DecodeOptions, ImageSource

if TYPE_CHECKING:
    from lever_pipe.experiment.job_runtime import LvlmExecution, VllmSettings
    from lever_pipe.experiment.lvlm import AnswerSettings

INSTALL = "Install it with the package: pip install 'lever-pipe[vllm]', or the conda environment envs/vllm.yaml."
PROMPTS_PER_CALL = 256
"""Prompts whose answers reach the ledger together and whose images are in memory at one time."""
KNOWN = 64
"""Likeliest next tokens that a step of a search requests. The others are known by the sum of their probabilities."""
ALONE: Mapping[str, str] = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # run in this process, so that vLLM ends with the job
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
}
"""Environment variables of vLLM, used unless the user has set them."""


@dataclass(frozen=True)
class Vllm(Templated):
    """A model folder that vLLM opens at the first request."""

    dtype: str

    def engine(
        self, images: ImageSource, settings: AnswerSettings, decode: DecodeOptions, execution: LvlmExecution
    ) -> VllmEngine:
        """Return an engine over this folder."""
        del settings
        return VllmEngine(self, images, decode, execution.vllm)


def load(folder: Path, *, dtype: str, device: str) -> Vllm:
    """Return a folder as `save_pretrained` writes it.

    Raises:
        CheckpointError: as `described`.
        ConfigError: vLLM is not installed, or the device is one of several by number.
    """
    if find_spec("vllm") is None:
        raise ConfigError("lvlm.engine vllm: expected the package vllm", found="none", do=INSTALL)
    if ":" in device:
        raise ConfigError("lvlm.engine vllm: expected cuda or cpu", found=device, do="Set CUDA_VISIBLE_DEVICES.")
    templated = {name: value for name, value in vars(described(folder)).items() if name != "model"}
    return Vllm(**templated, dtype=dtype)


@lru_cache(maxsize=1)
def opened(folder: Path, dtype: str, context: int, settings: VllmSettings) -> Any:
    """Return vLLM's model of a folder, opened once a process, because opening takes longer than many answers."""
    opened.cache_clear()
    gc.collect()  # a previous model, if collected later, would remove the process groups of this one
    for name, value in ALONE.items():
        os.environ.setdefault(name, value)
    import vllm

    try:
        return vllm.LLM(
            str(folder),
            dtype=dtype,
            tensor_parallel_size=settings.gpus,
            gpu_memory_utilization=settings.memory_share,
            max_num_seqs=settings.requests,
            max_model_len=min(settings.context, context) or context,
            enforce_eager=settings.eager,
            mm_processor_cache_gb=settings.image_cache_gb,
            limit_mm_per_prompt={"image": 64},
            max_logprobs=KNOWN,
            enable_prefix_caching=True,
            generation_config="vllm",  # the folder's own sampling defaults must not apply
            load_format="safetensors",
            seed=0,
        )
    except (ValueError, RuntimeError, ImportError) as error:
        text = " ".join(str(error).split())
        small = "Lower lvlm.vllm.requests, .context or .memory_share" if "memory" in text.lower() else ""
        raise CheckpointError(
            f"{folder}: expected a model that vLLM {vllm_version()} can open here",
            found=shortened(text),
            do=f"{small or 'Set lvlm.engine: hf'}; the job's log has vLLM's own words.",
        ) from error


class VllmEngine:
    """Answers requests by `vllm.LLM` (`protocol.Engine`).

    `forwards` counts calls, `tokens_prefilled` the tokens that were not in vLLM's prefix cache.
    """

    def __init__(self, family: Vllm, images: ImageSource, options: DecodeOptions, settings: VllmSettings) -> None:
        self.backend = f"vllm {vllm_version()}, batch invariant {os.environ.get('VLLM_BATCH_INVARIANT', '0')}"
        self._family, self._images, self._options = family, images, options
        self._settings, self.counters = settings, Counter[str]()

    @property
    def _llm(self) -> Any:
        return opened(self._family.folder, self._family.dtype, self._family.context, self._settings)

    def run(self, requests: Sequence[TokenRequest]) -> Results:
        """Yield each request with its result, call by call."""
        ordered = trie_order(requests)
        for start in range(0, len(ordered), PROMPTS_PER_CALL):
            batch = ordered[start : start + PROMPTS_PER_CALL]
            digests = sorted({digest for request in batch for digest in request.prompt.images})
            images = {digest: self._images.open(digest) for digest in digests}
            self.counters["images_encoded"] += len(digests)
            yield from self._batch(batch, images)

    def _batch(
        self, requests: Sequence[TokenRequest], images: Mapping[str, Any]
    ) -> Iterator[tuple[TokenRequest, Result]]:
        prompts = [request.prompt for request in requests if request.generate]
        search = self._greedy if self._options.num_beams == 1 else self._beams
        generated = iter(search(prompts, images) if prompts else ())
        pairs = [(request.prompt, answer) for request in requests for answer in request.answers]
        scores = iter(self._scores(pairs, images) if pairs else ())
        for request in requests:
            result = next(generated) if request.generate else Result()
            yield request, replace(result, scores=tuple(next(scores) for _ in request.answers))

    def _greedy(self, prompts: Sequence[TokenPrompt], images: Mapping[str, Any]) -> Iterator[Result]:
        options = self._options
        extra = {"logprobs": 0, "repetition_penalty": options.repetition_penalty, "stop_token_ids": list(options.eos)}
        extra["logit_bias"] = dict.fromkeys(options.never, -100.0)
        for output in self._ask([(prompt, ()) for prompt in prompts], images, reserved=options.max_new_tokens, **extra):
            tokens = tuple(output.outputs[0].token_ids)
            steps = output.outputs[0].logprobs
            yield Result(tokens, tuple(step[token].logprob for step, token in zip(steps, tokens, strict=True)))

    def _beams(self, prompts: Sequence[TokenPrompt], images: Mapping[str, Any]) -> list[Result]:
        rows = _Rows(self, prompts, images)
        return beam_search(rows, self.next_tokens([(prompt, ()) for prompt in prompts], images), self._options)

    def _scores(self, pairs: Sequence[tuple[TokenPrompt, Answer]], images: Mapping[str, Any]) -> Iterator[Scores]:
        outputs = self._ask(pairs, images, prompt_logprobs=0)
        for (_, answer), output in zip(pairs, outputs, strict=True):
            last = output.prompt_logprobs[-len(answer) :]
            yield tuple(step[token].logprob for step, token in zip(last, answer, strict=True))

    def next_tokens(self, pairs: Sequence[tuple[TokenPrompt, Answer]], images: Mapping[str, Any]) -> Tensor:
        """Return the log-probabilities of the token after each prompt and begun answer [pairs, V].

        Tokens that are not among the `KNOWN` likeliest share the rest equally, so that each row is a distribution.
        """
        vocabulary = self._llm.model_config.get_vocab_size()
        lines = torch.empty(len(pairs), vocabulary)
        for line, output in zip(lines, self._ask(pairs, images, logprobs=KNOWN), strict=True):
            likeliest = output.outputs[0].logprobs[0]
            values = torch.tensor([entry.logprob for entry in likeliest.values()])
            # The rest must stay positive for the logarithm, although rounding may make it 0 or less.
            rest = max(1 - float(values.double().exp().sum()), 1e-30) / max(1, vocabulary - len(likeliest))
            line.fill_(math.log(rest))
            line[list(likeliest)] = values
        return lines

    def _ask(
        self,
        pairs: Sequence[tuple[TokenPrompt, Answer]],
        images: Mapping[str, Any],
        *,
        reserved: int = 1,
        **options: Any,
    ) -> list[Any]:
        """Return vLLM's outputs for prompts with begun answers, in their order."""
        from vllm import SamplingParams
        from vllm.exceptions import VLLMValidationError

        # `ignore_eos`: answers end at `stop_token_ids` alone, not at the folder's own end of sequence.
        sampling = SamplingParams(temperature=0, max_tokens=reserved, ignore_eos=True, detokenize=False, **options)
        inputs = [self._input(prompt, answer, images) for prompt, answer in pairs]
        limit = self._llm.model_config.max_model_len
        try:
            outputs: list[Any] = self._llm.generate(inputs, sampling, use_tqdm=False)
        except VLLMValidationError as error:
            if not isinstance(error.value, int):
                raise
            # vLLM does not name the prompt, so the error names the one with the most images and text.
            longest = max((prompt for prompt, _ in pairs), key=lambda prompt: (len(prompt.images), len(prompt.text)))
            raise PromptTooLongError(longest, error.value, limit) from None
        self.counters["forwards"] += 1
        for (prompt, _), output in zip(pairs, outputs, strict=True):
            length = len(output.prompt_token_ids)
            if length + reserved > limit:
                raise PromptTooLongError(prompt, length + reserved, limit)
            self.counters["prompt_tokens"] += length
            self.counters["tokens_prefilled"] += length - (output.num_cached_tokens or 0)
        return outputs

    def _input(self, prompt: TokenPrompt, answer: Answer, images: Mapping[str, Any]) -> dict[str, Any]:
        tokens = [token for segment in prompt.segments for token in segment.ids]
        inputs: dict[str, Any] = {"prompt_token_ids": [*tokens, *answer]}
        if prompt.images:
            inputs["multi_modal_data"] = {"image": [images[digest] for digest in prompt.images]}
            # With the digests as ids, vLLM's caches recognise equal images.
            inputs["multi_modal_uuids"] = {"image": list(prompt.images)}
        return inputs


class _Rows:
    """Prompts with beams (`_decoding.BeamRows`); each step is a call."""

    def __init__(self, engine: VllmEngine, prompts: Sequence[TokenPrompt], images: Mapping[str, Any]) -> None:
        self._engine, self._prompts, self._images = engine, prompts, images
        self._fed: list[Tensor] = []  # [B, beams] of each step

    def feed(self, ids: Tensor, step: int, visible: Tensor) -> Tensor:
        self._fed = [*self._fed[:step], ids]
        rows = zip(self._prompts, torch.cat(self._fed, dim=1), visible, strict=True)
        pairs = [(prompt, tuple(row[beam].tolist())) for prompt, row, beams in rows for beam in beams]
        return self._engine.next_tokens(pairs, self._images).view(*ids.shape, -1)

    def prompt_tokens(self, vocabulary: int) -> Tensor:
        seen = torch.zeros(len(self._prompts), vocabulary, dtype=torch.bool)
        for row, prompt in zip(seen, self._prompts, strict=True):
            row[[token for segment in prompt.segments for token in segment.ids]] = True
        return seen


def vllm_version() -> str:
    """Return vLLM's version; its builds for other devices have different package names."""
    return version(packages_distributions()["vllm"][0])
