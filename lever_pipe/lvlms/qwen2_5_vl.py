"""Qwen2.5-VL with the packed engine: reads its folder strictly and writes prompts by its published template."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import AutoConfig, AutoTokenizer, GenerationConfig, Qwen2_5_VLForConditionalGeneration
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.utils import logging as transformers_logging

from lever_pipe.base.errors import CheckpointError
from lever_pipe.base.model_folders import (
    IMAGES,
    MAKE,
    image_settings,
    load_strictly,
    model_type,
    readable,
    require_keys,
    require_size,
    require_whole,
)
from lever_pipe.base.rowwise import rowwise
from lever_pipe.base.storage import digest
from lever_pipe.lvlms._engine import PackedEngine
from lever_pipe.lvlms._vision import VisionStore
from lever_pipe.lvlms.asking.prompts import Block, ImagePart, Prompt, Role, TextSegment, Turn
from lever_pipe.lvlms.protocol import DecodeOptions, ImageSource, LvlmFamily, settings_of

if TYPE_CHECKING:
    from lever_pipe.experiment.job_runtime import LvlmExecution
    from lever_pipe.experiment.lvlm import AnswerSettings

REQUIRED = ("config.json", "tokenizer.json")
BEGIN = "<|im_start|>{role}\n"
END = "<|im_end|>"
IMAGE = "<|vision_start|><|image_pad|><|vision_end|>"
SYSTEM = "You are a helpful assistant."
"""System text of the published template for prompts without a system turn."""
FEATURE_BYTES = 16 * 2**30
"""Maximum size of stored image features; the least recently used are dropped and encoded again."""
LENGTHS = ("dynamic", "longrope")
"""Types of rotary positions whose frequencies depend on the longest prompt of a pass."""


@dataclass(frozen=True)
class Qwen(LvlmFamily):
    """A loaded model in evaluation mode."""

    model: Any
    image_processor: Any

    def identity(self) -> dict[str, str]:
        """Return digests of the parts of the folder that an answer depends on."""
        paths = sorted([*self.folder.glob("*.safetensors"), self.folder / "config.json"])
        listing = "\n".join(f"{path.name} {digest(path)}" for path in paths)
        return {
            "weights": hashlib.sha256(listing.encode()).hexdigest(),
            "tokenizer": digest(self.folder / "tokenizer.json"),
            "image_processor": settings_of(self.image_processor),
        }

    def render(self, prompt: Prompt) -> tuple[TextSegment, ...]:
        """Return a prompt as ChatML, one segment for each block."""
        return render(prompt)

    def engine(
        self, images: ImageSource, settings: AnswerSettings, decode: DecodeOptions, execution: LvlmExecution
    ) -> PackedEngine:
        """Return the packed engine over this model."""
        del execution
        vision = VisionStore(self.model, self.image_processor, images, capacity=FEATURE_BYTES)
        return PackedEngine(self.model, vision, decode, settings.wave_tokens, settings.kv_tokens)


def render(prompt: Prompt) -> tuple[TextSegment, ...]:
    """Return a prompt in the format of the published model's chat template, one segment for each block."""
    blocks = prompt.blocks
    if prompt.default_system and blocks[0][0].role != "system":
        blocks = ((Turn("system", (SYSTEM,)),), *blocks)
    before: list[Role | None] = [None, *(block[-1].role for block in blocks)]
    after: list[Role | None] = [*(block[0].role for block in blocks[1:]), None]
    return tuple(map(_segment, before, blocks, after))


@lru_cache(maxsize=65_536)
def _segment(before: Role | None, block: Block, after: Role | None) -> TextSegment:
    """Return the segment of a block between the roles before and after it; cached, because blocks recur."""
    images = tuple(part.digest for turn in block for part in turn.parts if isinstance(part, ImagePart))
    return TextSegment("".join(_written(before, block, after)), images)


def _written(before: Role | None, block: Block, after: Role | None) -> Iterator[str]:
    following = [*(turn.role for turn in block[1:]), after]
    for turn, next_role in zip(block, following, strict=True):
        if turn.role != before:
            yield BEGIN.format(role=turn.role)
        for part in turn.parts:
            yield IMAGE if isinstance(part, ImagePart) else part
        if turn.role != next_role:
            yield f"{END}\n"
        before = turn.role
    if after is None:
        yield BEGIN.format(role="assistant")


def load(folder: Path, *, dtype: str, device: str) -> Qwen:
    """Return model, tokenizer and image processor of a folder as `save_pretrained` writes it.

    Raises:
        CheckpointError: missing files, another architecture, tensors that differ from it or were never trained, or a
            tokenizer or image processor of another model.
    """
    family = described(folder)
    part = "set of weights for its own config.json"
    kind = Qwen2_5_VLForConditionalGeneration
    model = load_strictly(kind, folder, part, dtype=getattr(torch, dtype), attn_implementation="sdpa")
    model.to(device).eval().requires_grad_(False)
    # The folder's own sampling defaults must not affect any `generate` call.
    ends = {"eos_token_id": family.eos, "pad_token_id": family.tokenizer.pad_token_id}
    model.generation_config = GenerationConfig(**ends)
    return replace(family, model=rowwise(model))


def described(folder: Path) -> Qwen:
    """Return a folder's model without its weights, ready to write prompts; `model` is None.

    Raises:
        CheckpointError: as `load`, except for the weights.
    """
    require_whole(folder, "a Qwen2.5-VL model folder", files=REQUIRED, any_of=IMAGES)
    transformers_logging.disable_progress_bar()
    config = _read_config(folder)
    tokenizer = _read_tokenizer(folder, config)
    return Qwen(
        folder=folder,
        tokenizer=tokenizer,
        eos=tokenizer.eos_token_id,
        image_token=config.image_token_id,
        context=config.text_config.max_position_embeddings,
        before_answer="",
        model=None,
        image_processor=_read_processor(folder, config.vision_config),
    )


def _read_config(folder: Path) -> Any:
    if (kind := model_type(folder)) != "qwen2_5_vl":
        raise CheckpointError(
            f"{folder}/config.json: expected model_type qwen2_5_vl",
            found=repr(kind),
            do="Set lvlm.engine to auto, or to the plugin of lvlms that fits this folder; hf takes any family.",
        )
    with readable(folder, "config.json"):
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
        require_size(folder, config)
        _refuse(f"{folder}/config.json: expected attention that this engine has", _problems(config))
    return config


def _refuse(expected: str, problems: Iterator[str]) -> None:
    if found := "; ".join(problems):
        raise CheckpointError(expected, found=found, do=MAKE)


def _problems(config: Any) -> Iterator[str]:
    """Yield properties of the attention that make a token's state depend on more than the tokens before it."""
    text = config.text_config
    if (kind := (text.rope_parameters or {}).get("rope_type")) in LENGTHS:
        yield f"rope_type {kind}, by which a prompt's answer depends on the length of others"
    if set(getattr(text, "layer_types", None) or ["full_attention"]) != {"full_attention"}:
        yield "sliding-window layers: set use_sliding_window to false, as the published models do"


def _read_tokenizer(folder: Path, config: Any) -> Any:
    """Return the tokenizer of a folder; one of another model would assign its ids to other words."""
    numbers = {
        "<|vision_start|>": config.vision_start_token_id,
        "<|image_pad|>": config.image_token_id,
        "<|vision_end|>": config.vision_end_token_id,
        "<|im_start|>": None,
        END: None,
    }
    with readable(folder, "tokenizer"):
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        expected = f"{folder}: expected the tokenizer of the model that config.json describes, turns ending in {END}"
        _refuse(expected, _problems_of_tokenizer(tokenizer, numbers))
    return tokenizer


def _problems_of_tokenizer(tokenizer: Any, numbers: dict[str, int | None]) -> Iterator[str]:
    for text, number in numbers.items():
        ids = tokenizer(text, add_special_tokens=False).input_ids
        if len(ids) != 1 or number not in (None, ids[0]):
            yield f"{text} is {ids} for {'a token' if number is None else number}"
    if tokenizer.eos_token != END:
        yield f"eos_token {tokenizer.eos_token!r}"
    if tokenizer.pad_token_id is None:
        yield "no pad_token"


def _read_processor(folder: Path, vision: Any) -> Any:
    """Return the image processor of a folder; the automatic class needs torchvision and resizes differently."""
    with readable(folder, "image processor"):
        path = image_settings(folder)
        require_keys(path, "image_mean", "image_std", "patch_size", "merge_size")
        processor = Qwen2VLImageProcessorPil.from_pretrained(folder, local_files_only=True)
        expected = f"{path}: expected the image processor of the model in config.json"
        _refuse(expected, _problems_of_processor(processor, vision))
    return processor


def _problems_of_processor(processor: Any, vision: Any) -> Iterator[str]:
    for name, value in (
        ("patch_size", vision.patch_size),
        ("merge_size", vision.spatial_merge_size),
        ("temporal_patch_size", vision.temporal_patch_size),
    ):
        if getattr(processor, name) != value:
            yield f"{name} {getattr(processor, name)} for {value}"
