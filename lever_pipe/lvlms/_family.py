"""A loaded LVLM whose layers the engine runs itself: all that its families have in common."""

from __future__ import annotations

import hashlib
import inspect
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from lever_pipe.base.storage import digest
from lever_pipe.lvlms._decoding import DecodeOptions
from lever_pipe.lvlms._engine import Engine, build_engine
from lever_pipe.lvlms._layers import LanguageModel
from lever_pipe.lvlms._requests import TokenPrompt
from lever_pipe.lvlms._vision import ImageEncoder, VisionStore, settings_of
from lever_pipe.lvlms.asking.prompts import ChatTemplate, Prompt, TextPrompt
from lever_pipe.lvlms.protocol import ImageSource, LvlmOptions

if TYPE_CHECKING:
    from PIL.Image import Image

PROMPTS_PER_BATCH = 32
SHARE_OF_FREE_MEMORY = 0.25
"""Of a GPU's memory behind the weights, what image features may take: keys and values need the rest."""


@dataclass(frozen=True)
class Family:
    """A model in evaluation mode (`protocol.LvlmFamily`).

    Attributes:
        member: the module that loaded it.
        folder: where it was loaded from.
        model: as the model library has it.
        tokenizer: its tokenizer.
        image_processor: what the encoder makes pixels by.
        template: how it writes prompts.
        language: its language model.
        encoder: its vision tower.
    """

    member: str
    folder: Path
    model: Any
    tokenizer: Any
    image_processor: Any
    template: ChatTemplate
    language: LanguageModel
    encoder: ImageEncoder

    @cached_property  # asked for with every given answer
    def eos(self) -> int:
        """The token that ends a turn."""
        return int(self.tokenizer(self.template.end, add_special_tokens=False).input_ids[0])

    @property
    def image_token(self) -> int:
        """The placeholder that stands for an image."""
        return self.language.image_token

    @property
    def context(self) -> int:
        """The most tokens of a prompt with its answer."""
        return int(self.language.config.max_position_embeddings)

    def identity(self) -> dict[str, str]:
        """Return what of the folder an answer depends on."""
        paths = sorted([*self.folder.glob("*.safetensors"), self.folder / "config.json"])
        listing = "\n".join(f"{path.name} {digest(path)}" for path in paths)
        return {
            "weights": hashlib.sha256(listing.encode()).hexdigest(),
            "tokenizer": digest(self.folder / "tokenizer.json"),
            "image_processor": settings_of(self.image_processor),
        }

    def render(self, prompt: Prompt) -> TextPrompt:
        """Return a prompt as this family writes it."""
        return self.template.render(prompt)

    def engine(
        self, images: ImageSource, *, options: LvlmOptions, decode: DecodeOptions, counters: Counter[str]
    ) -> Engine:
        """Return an engine over this model whose work is counted."""
        return build_engine(
            self.language,
            self.vision(images, capacity=options.vision_bytes, counters=counters, threads=options.threads),
            options=decode,
            wave_tokens=options.wave_tokens,
            kv_tokens=options.kv_tokens,
            counters=counters,
        )

    def vision(self, images: ImageSource, *, capacity: int, counters: Counter[str], threads: int = 1) -> VisionStore:
        """Return a store of image features of this model."""
        device = self.language.device
        if device.type == "cuda":
            capacity = min(capacity, int(SHARE_OF_FREE_MEMORY * torch.cuda.mem_get_info(device)[0]))
        return VisionStore(
            self.encoder,
            images,
            device=device,
            dtype=self.language.dtype,
            capacity=capacity,
            counters=counters,
            # A CPU has nothing else to do meanwhile than what these threads would do.
            threads=threads if device.type == "cuda" else 0,
        )

    @torch.inference_mode()
    def stock_tokens(
        self,
        prompts: Sequence[TokenPrompt],
        *,
        open_image: Callable[[str], Image],
        options: DecodeOptions,
        batch_size: int = PROMPTS_PER_BATCH,
    ) -> list[tuple[int, ...]]:
        """Return the tokens of each prompt by `generate` on pixels, up to and with the end of the turn.

        Slow and independent of engine and shared images, for cross-checks.
        """
        answers: list[tuple[int, ...]] = []
        for start in range(0, len(prompts), batch_size):
            inputs = self.stock_inputs(prompts[start : start + batch_size], open_image)
            generated = self.model.generate(**inputs, **generation_arguments(options, self.tokenizer.pad_token_id))
            new = generated[:, inputs["input_ids"].shape[1] :].tolist()
            answers += [until_end(tokens, options.eos) for tokens in new]
        return answers

    def stock_inputs(
        self, prompts: Sequence[TokenPrompt], open_image: Callable[[str], Image]
    ) -> dict[str, torch.Tensor]:
        """Return what the model's own forward takes of prompts, padded on the left."""
        images = [[open_image(digest) for digest in prompt.images] for prompt in prompts]
        rows = [self._expanded(prompt, shown) for prompt, shown in zip(prompts, images, strict=True)]
        width, pad = max(map(len, rows)), self.tokenizer.pad_token_id
        tokens = torch.tensor([[pad] * (width - len(row)) + row for row in rows])
        alive = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
        inputs = {"input_ids": tokens, "attention_mask": alive}
        if "mm_token_type_ids" in inspect.signature(self.model.forward).parameters:
            inputs["mm_token_type_ids"] = (tokens == self.image_token).int() * alive.int()
        if any(images):
            inputs |= self.encoder.stock_pixels(images)
        return {name: tensor.to(self.model.device) for name, tensor in inputs.items()}

    def _expanded(self, prompt: TokenPrompt, images: Sequence[Image]) -> list[int]:
        blocks = iter([self.encoder.block(self.encoder.grid(*image.size)).ids.tolist() for image in images])
        ids = [token for segment in prompt.segments for token in segment.ids]
        return [t for token in ids for t in (next(blocks) if token == self.image_token else [token])]


def generation_arguments(options: DecodeOptions, pad: int) -> dict[str, Any]:
    """Return the arguments of `generate` for a search: every one that the folder's own defaults would set."""
    # A length penalty without beams is refused with a warning.
    beams = {"length_penalty": options.length_penalty} if options.num_beams > 1 else {}
    return {
        **beams,
        "do_sample": False,
        "num_beams": options.num_beams,
        "max_new_tokens": options.max_new_tokens,
        "repetition_penalty": options.repetition_penalty,
        "suppress_tokens": list(options.never) or None,
        "eos_token_id": list(options.eos),
        "pad_token_id": pad,
    }


def until_end(tokens: Sequence[int], eos: Sequence[int]) -> tuple[int, ...]:
    """Return generated tokens up to and with the one that ends the answer."""
    length = next((i + 1 for i, token in enumerate(tokens) if token in eos), len(tokens))
    return tuple(tokens[:length])
