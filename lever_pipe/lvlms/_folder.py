"""A local model folder, read strictly."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoTokenizer, GenerationConfig, Qwen2_5_VLForConditionalGeneration
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.utils import logging as transformers_logging

from lever_pipe.base.errors import CheckpointError
from lever_pipe.base.model_folders import (
    MAKE,
    faults_of_vocabulary,
    readable,
    require_keys,
    require_loaded,
    require_pixel_settings,
    require_size,
    require_whole,
)
from lever_pipe.base.rowwise import rowwise
from lever_pipe.base.storage import digest, strict_json

ATTENTION = "sdpa"
REQUIRED = ("config.json", "tokenizer.json", "preprocessor_config.json")


@dataclass(frozen=True)
class Parts:
    """A model in evaluation mode with its tokenizer and image processor."""

    model: Any
    tokenizer: Any
    image_processor: Any
    folder: Path = Path()

    @property
    def eos(self) -> int:
        """The token that ends a turn."""
        return int(self.tokenizer.eos_token_id)


def load_parts(folder: Path, *, dtype: str, device: str) -> Parts:
    """Return model, tokenizer and image processor of a folder.

    Raises:
        CheckpointError: missing files, another architecture, tensors that differ from it or were never trained, or a
            tokenizer or image processor of another model.
    """
    require_whole(folder, "a Qwen2.5-VL model folder", files=REQUIRED)
    transformers_logging.disable_progress_bar()
    with readable(folder, "config.json"):
        _require_own_settings(folder, strict_json((folder / "config.json").read_bytes()).get("model_type"))
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
        require_size(folder, config)
        _require_shapes_fit(folder, config)
    with readable(folder, "tokenizer"):
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        _require_fitting_tokens(folder, tokenizer, config)
    # The PIL processor by name: the automatic one needs torchvision, and the two resize slightly differently.
    with readable(folder, "image processor"):
        require_keys(folder / "preprocessor_config.json", "image_mean", "image_std", "patch_size", "merge_size")
        processor = Qwen2VLImageProcessorPil.from_pretrained(folder, local_files_only=True)
        _require_fitting_patches(folder, processor, config.vision_config)
    model = _load_model(folder, dtype).to(device)
    model.eval().requires_grad_(False)
    # The folder's own sampling defaults must not leak into anybody's `generate`.
    model.generation_config = GenerationConfig(eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id)
    return Parts(rowwise(model), tokenizer, processor, folder)


def weights_digest(folder: Path) -> str:
    """Return the sha256 over names and contents of weights and configuration."""
    paths = sorted([*folder.glob("*.safetensors"), folder / "config.json"])
    listing = "\n".join(f"{path.name} {digest(path)}" for path in paths)
    return hashlib.sha256(listing.encode()).hexdigest()


def _require_own_settings(folder: Path, kind: object) -> None:
    if kind != "qwen2_5_vl":
        raise CheckpointError(
            f"{folder}/config.json: expected model_type qwen2_5_vl",
            found=repr(kind),
            do="Name the member of lvlms that fits this folder.",
        )


def _require_fitting_tokens(folder: Path, tokenizer: Any, config: Any) -> None:
    """Refuse another model's tokenizer, whose ids would be read as other words."""
    known = tokenizer.get_vocab()
    wanted = {
        "<|vision_start|>": config.vision_start_token_id,
        "<|image_pad|>": config.image_token_id,
        "<|vision_end|>": config.vision_end_token_id,
        "<|im_start|>": known.get("<|im_start|>", "a token"),
        "<|im_end|>": tokenizer.eos_token_id,
    }
    found = {token: tokenizer(token, add_special_tokens=False).input_ids for token in wanted}
    faults = [f"{token} is {found[token]} for {number}" for token, number in wanted.items() if found[token] != [number]]
    if tokenizer.pad_token_id is None:
        faults.append("no pad_token")
    faults += faults_of_vocabulary(known, config.text_config.vocab_size)
    if faults:
        where = f"{folder}: expected the tokenizer of the model that config.json describes, turns ending in <|im_end|>"
        raise CheckpointError(where, found="; ".join(faults), do=MAKE)


def _require_fitting_patches(folder: Path, processor: Any, vision: Any) -> None:
    """Refuse another model's image processor."""
    require_pixel_settings(folder, processor)
    pairs = {
        "patch_size": (processor.patch_size, vision.patch_size),
        "merge_size": (processor.merge_size, vision.spatial_merge_size),
        "temporal_patch_size": (processor.temporal_patch_size, vision.temporal_patch_size),
    }
    faults = [f"{name} {found} for {wanted}" for name, (found, wanted) in pairs.items() if found != wanted]
    sides = [processor.size.get(name) for name in ("shortest_edge", "longest_edge")]
    if not all(isinstance(side, int) and side > 0 for side in sides) or sides[0] > sides[1]:
        faults.append(f"size {dict(processor.size)}")
    if faults:
        where = f"{folder}/preprocessor_config.json: expected the image processor of the model in config.json"
        raise CheckpointError(where, found="; ".join(faults), do=MAKE)


def _require_shapes_fit(folder: Path, config: Any) -> None:
    """Refuse numbers that no shape of a tensor contradicts and that fit nothing."""
    text, vision = config.text_config, config.vision_config
    width = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    sections = (text.rope_parameters or {}).get("mrope_section") or ()
    faults = []
    if text.hidden_size % text.num_attention_heads or text.num_attention_heads % text.num_key_value_heads:
        faults.append(f"{text.num_attention_heads} heads, {text.num_key_value_heads} of keys, on {text.hidden_size}")
    elif 2 * sum(sections) != width:
        faults.append(f"mrope_section {list(sections)} on heads of {width}")
    if vision.hidden_size % vision.num_heads or vision.hidden_size // vision.num_heads % 4:
        faults.append(f"{vision.num_heads} vision heads on {vision.hidden_size}")
    if not (text.rope_parameters or {}).get("rope_theta", 1) > 0:
        faults.append(f"rope_theta {text.rope_parameters['rope_theta']}")
    if vision.window_size < 1 or vision.window_size % (vision.patch_size * vision.spatial_merge_size):
        faults.append(f"windows of {vision.window_size} pixels for merged patches of {vision.patch_size}")
    if not all(0 <= index < vision.depth for index in vision.fullatt_block_indexes):
        faults.append(f"fullatt_block_indexes {vision.fullatt_block_indexes} of {vision.depth} blocks")
    if faults:
        where = f"{folder}/config.json: expected heads, positions and windows that fit each other"
        raise CheckpointError(where, found="; ".join(faults), do=MAKE)


def _load_model(folder: Path, dtype: str) -> Any:
    with readable(folder, "set of weights for its own config.json"):
        model, info = Qwen2_5_VLForConditionalGeneration.from_pretrained(
            folder,
            dtype=getattr(torch, dtype),
            attn_implementation=ATTENTION,
            local_files_only=True,
            use_safetensors=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # reported below by name, as every other difference
        )
    require_loaded(folder, model, info)
    if set(model.config.text_config.layer_types) != {"full_attention"}:
        raise CheckpointError(
            f"{folder}: expected full attention in every layer",
            found="sliding-window layers",
            do="Set use_sliding_window to false in config.json, as the published models do.",
        )
    return model
