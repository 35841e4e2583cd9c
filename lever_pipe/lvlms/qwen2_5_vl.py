"""Qwen2.5-VL: a local folder read strictly, its template, its engine, and the stock `generate` as a cross-check."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
from lever_pipe.lvlms._decoding import DecodeOptions
from lever_pipe.lvlms._engine import Engine, build_engine
from lever_pipe.lvlms._requests import TokenPrompt
from lever_pipe.lvlms._vision import VisionStore, settings_of
from lever_pipe.lvlms.asking.prompts import ChatTemplate
from lever_pipe.lvlms.protocol import ImageSource, LvlmOptions

if TYPE_CHECKING:
    from PIL.Image import Image

ATTENTION = "sdpa"
REQUIRED = ("config.json", "tokenizer.json", "preprocessor_config.json")
PROMPTS_PER_BATCH = 32
TEMPLATE = ChatTemplate(
    begin="<|im_start|>{role}\n",
    end="<|im_end|>\n",
    image="<|vision_start|><|image_pad|><|vision_end|>",
    control=r"<\|[a-z_]+\|>",
)
"""ChatML, as the published model's own chat template writes it."""


@dataclass(frozen=True)
class Qwen25Vl:
    """A loaded Qwen2.5-VL in evaluation mode (`protocol.LvlmFamily`)."""

    model: Any
    tokenizer: Any
    image_processor: Any
    folder: Path = Path()

    @property
    def eos(self) -> int:
        """The token that ends a turn."""
        return int(self.tokenizer.eos_token_id)

    @property
    def image_token(self) -> int:
        """The placeholder that stands for an image."""
        return int(self.model.config.image_token_id)

    @property
    def context(self) -> int:
        """The most tokens of a prompt with its answer."""
        return int(self.model.config.text_config.max_position_embeddings)

    def identity(self) -> dict[str, str]:
        """Return what of the folder an answer depends on."""
        paths = sorted([*self.folder.glob("*.safetensors"), self.folder / "config.json"])
        listing = "\n".join(f"{path.name} {digest(path)}" for path in paths)
        return {
            "weights": hashlib.sha256(listing.encode()).hexdigest(),
            "tokenizer": digest(self.folder / "tokenizer.json"),
            "image_processor": settings_of(self.image_processor),
        }

    def engine(
        self, images: ImageSource, *, options: LvlmOptions, decode: DecodeOptions, counters: Counter[str]
    ) -> Engine:
        """Return an engine over this model whose work is counted."""
        vision = VisionStore(self.model, self.image_processor, images, capacity=options.vision_bytes, counters=counters)
        return build_engine(
            self.model,
            vision,
            executor=options.executor,
            options=decode,
            wave_tokens=options.wave_tokens,
            kv_tokens=options.kv_tokens,
            counters=counters,
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
            # A length penalty without beams is refused with a warning.
            beams = {"length_penalty": options.length_penalty} if options.num_beams > 1 else {}
            generated = self.model.generate(
                **inputs,
                **beams,
                do_sample=False,
                num_beams=options.num_beams,
                max_new_tokens=options.max_new_tokens,
                eos_token_id=list(options.eos),
                pad_token_id=self.tokenizer.pad_token_id,
            )
            new = generated[:, inputs["input_ids"].shape[1] :].tolist()
            answers += [_until_end(tokens, options.eos) for tokens in new]
        return answers

    def stock_inputs(
        self, prompts: Sequence[TokenPrompt], open_image: Callable[[str], Image]
    ) -> dict[str, torch.Tensor]:
        """Return what the model's own forward takes of prompts, padded on the left."""
        images = [open_image(digest) for prompt in prompts for digest in prompt.images]
        pixels = dict(self.image_processor(images=images, return_tensors="pt")) if images else {}
        merge = self.model.config.vision_config.spatial_merge_size**2
        counts = iter((pixels["image_grid_thw"].prod(-1) // merge).tolist() if images else [])
        rows = []
        for prompt in prompts:
            ids = [token for segment in prompt.segments for token in segment.ids]
            rows.append([t for token in ids for t in [token] * (next(counts) if token == self.image_token else 1)])
        width = max(map(len, rows))
        pad = self.tokenizer.pad_token_id
        tokens = torch.tensor([[pad] * (width - len(row)) + row for row in rows])
        alive = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
        text = {
            "input_ids": tokens,
            "attention_mask": alive,
            "mm_token_type_ids": (tokens == self.image_token).int() * alive.int(),
        }
        return {name: tensor.to(self.model.device) for name, tensor in {**text, **pixels}.items()}


def _until_end(tokens: list[int], eos: tuple[int, ...]) -> tuple[int, ...]:
    length = next((i + 1 for i, token in enumerate(tokens) if token in eos), len(tokens))
    return tuple(tokens[:length])


def load(folder: Path, *, dtype: str, device: str) -> Qwen25Vl:
    """Return model, tokenizer and image processor of a folder as `save_pretrained` writes it.

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
    return Qwen25Vl(rowwise(model), tokenizer, processor, folder)


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
