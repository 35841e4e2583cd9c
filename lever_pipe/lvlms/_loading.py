"""What every family asks of a model folder: configuration, tokenizer, image processor and weights, read strictly."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoTokenizer, GenerationConfig
from transformers.utils import logging as transformers_logging

from lever_pipe.base.errors import CheckpointError
from lever_pipe.base.model_folders import (
    MAKE,
    faults_of_vocabulary,
    load_strictly,
    readable,
    require_keys,
    require_pixel_settings,
    require_size,
    require_whole,
)
from lever_pipe.base.rowwise import rowwise
from lever_pipe.base.storage import strict_json

ATTENTION = "sdpa"


def read_config(folder: Path, model_type: str, *, title: str, files: Iterable[str]) -> Any:
    """Return the configuration of a whole folder.

    Args:
        folder: as `save_pretrained` writes it.
        model_type: that its `config.json` must name.
        title: what errors call the model, with its article.
        files: JSON files that must be there.

    Raises:
        CheckpointError: missing files, another architecture, or settings of a larger model than the weights.
    """
    require_whole(folder, f"{title} model folder", files=files)
    transformers_logging.disable_progress_bar()
    with readable(folder, "config.json"):
        kind = strict_json((folder / "config.json").read_bytes()).get("model_type")
        if kind != model_type:
            raise CheckpointError(
                f"{folder}/config.json: expected model_type {model_type}",
                found=repr(kind),
                do="Name the member of lvlms that fits this folder.",
            )
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
        require_size(folder, config)
    return config


def faults_of_heads(text: Any) -> list[str]:
    """Return what of a language model's heads and rotary positions fits nothing, though no tensor contradicts it."""
    faults = []
    divided = getattr(text, "head_dim", None) or text.hidden_size % text.num_attention_heads == 0
    if not divided or text.num_attention_heads % text.num_key_value_heads:
        faults.append(f"{text.num_attention_heads} heads, {text.num_key_value_heads} of keys, on {text.hidden_size}")
    rotary = text.rope_parameters or {}
    if not rotary.get("rope_theta", 1) > 0:
        faults.append(f"rope_theta {rotary['rope_theta']}")
    return faults


def require_shapes_fit(folder: Path, faults: Iterable[str]) -> None:
    """Refuse numbers that no shape of a tensor contradicts and that fit nothing.

    Raises:
        CheckpointError: there are faults.
    """
    if listed := "; ".join(faults):
        where = f"{folder}/config.json: expected heads, positions and windows that fit each other"
        raise CheckpointError(where, found=listed, do=MAKE)


def read_tokenizer(folder: Path, wanted: Mapping[str, int | None], *, end: str, vocabulary: int) -> Any:
    """Return the tokenizer of a folder.

    Args:
        folder: a whole one.
        wanted: texts that are one token each, with its id or None for any.
        end: the text among them that ends a turn.
        vocabulary: tokens that the model embeds.

    Raises:
        CheckpointError: an unreadable tokenizer, or another model's, whose ids would be read as other words.
    """
    with readable(folder, "tokenizer"):
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        found = {text: tokenizer(text, add_special_tokens=False).input_ids for text in wanted}
        faults = [
            f"{text} is {found[text]} for {'a token' if number is None else number}"
            for text, number in wanted.items()
            if len(found[text]) != 1 or number not in (None, found[text][0])
        ]
        if tokenizer.pad_token_id is None:
            faults.append("no pad_token")
        faults += faults_of_vocabulary(tokenizer.get_vocab(), vocabulary)
        if faults:
            where = f"{folder}: expected the tokenizer of the model that config.json describes, turns ending in {end}"
            raise CheckpointError(where, found="; ".join(faults), do=MAKE)
    return tokenizer


def read_processor(kind: Any, folder: Path, *keys: str) -> Any:
    """Return the image processor of a folder.

    Args:
        kind: the class by name: the automatic one needs torchvision, and the two resize slightly differently.
        folder: a whole one.
        keys: settings that its file must have, beside mean and deviation.

    Raises:
        CheckpointError: an unreadable file, or settings that would not take pixels to around 0.
    """
    with readable(folder, "image processor"):
        require_keys(folder / "preprocessor_config.json", "image_mean", "image_std", *keys)
        processor = kind.from_pretrained(folder, local_files_only=True)
        require_pixel_settings(folder, processor)
    return processor


def require_fitting_pixels(folder: Path, pairs: Mapping[str, tuple[object, object]], others: Iterable[str]) -> None:
    """Refuse another model's image processor.

    Args:
        folder: a whole one.
        pairs: settings as they are found and as the model wants them.
        others: further faults.

    Raises:
        CheckpointError: a pair differs, or there are further faults.
    """
    faults = [f"{name} {found} for {wanted}" for name, (found, wanted) in pairs.items() if found != wanted]
    if faults := [*faults, *others]:
        where = f"{folder}/preprocessor_config.json: expected the image processor of the model in config.json"
        raise CheckpointError(where, found="; ".join(faults), do=MAKE)


def load_model(kind: Any, folder: Path, tokenizer: Any, *, dtype: str, device: str) -> Any:
    """Return the model of a folder in evaluation mode, without defaults for `generate`.

    Raises:
        CheckpointError: tensors that differ from the configuration or were never trained, or sliding windows.
    """
    part = "set of weights for its own config.json"
    model = load_strictly(kind, folder, part, dtype=getattr(torch, dtype), attn_implementation=ATTENTION)
    if set(getattr(model.config.text_config, "layer_types", None) or ["full_attention"]) != {"full_attention"}:
        raise CheckpointError(
            f"{folder}: expected full attention in every layer",
            found="sliding-window layers",
            do="Set use_sliding_window to false in config.json, as the published models do.",
        )
    model.to(device).eval().requires_grad_(False)
    # The folder's own sampling defaults must not leak into anybody's `generate`.
    model.generation_config = GenerationConfig(eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id)
    return rowwise(model)
