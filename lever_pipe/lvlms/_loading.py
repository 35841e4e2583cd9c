"""What every family asks of a model folder: configuration, tokenizer, image processor and weights, read strictly."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
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
from lever_pipe.base.storage import read_bytes, strict_json

ATTENTION = "sdpa"
LENGTHS = ("dynamic", "longrope")
"""Rotary positions whose frequencies follow the longest prompt of a pass."""


Faults = Callable[[Any], Iterable[str]]
"""What of settings that were read fits nothing, a text a fault."""


def read_config(folder: Path, model_type: str, *, title: str, files: Iterable[str], faults: Faults) -> Any:
    """Return the configuration of a whole folder.

    Args:
        folder: as `save_pretrained` writes it.
        model_type: that its `config.json` must name.
        title: what errors call the model, with its article.
        files: JSON files that must be there.
        faults: of numbers that no shape of a tensor contradicts.

    Raises:
        CheckpointError: missing files, another architecture, settings of a larger model than the weights, or faults.
    """
    require_whole(folder, f"{title} model folder", files=files)
    transformers_logging.disable_progress_bar()
    with readable(folder, "config.json"):
        kind = strict_json(read_bytes(folder / "config.json")).get("model_type")
        if kind != model_type:
            raise CheckpointError(
                f"{folder}/config.json: expected model_type {model_type}",
                found=repr(kind),
                do="Set lvlm.member to auto, or to the member of lvlms that fits this folder; hf takes any family.",
            )
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
        require_size(folder, config)
        if found := "; ".join(faults(config)):
            where = f"{folder}/config.json: expected heads, positions and windows that fit each other"
            raise CheckpointError(where, found=found, do=MAKE)
    return config


def faults_of_heads(text: Any) -> Iterator[str]:
    """Yield what of a language model's heads and rotary positions fits nothing, though no tensor contradicts it."""
    divided = getattr(text, "head_dim", None) or text.hidden_size % text.num_attention_heads == 0
    if not divided or text.num_attention_heads % text.num_key_value_heads:
        yield f"{text.num_attention_heads} heads, {text.num_key_value_heads} of keys, on {text.hidden_size}"
    rotary = text.rope_parameters or {}
    if not rotary.get("rope_theta", 1) > 0:
        yield f"rope_theta {rotary['rope_theta']}"
    if (kind := rotary.get("rope_type")) in LENGTHS:
        yield f"rope_type {kind}, by which a prompt's answer depends on the length of others"


def read_tokenizer(folder: Path, wanted: Mapping[str, int | None], *, end: str, vocabulary: int) -> Any:
    """Return the tokenizer of a folder.

    Args:
        folder: a whole one.
        wanted: texts that are one token each, with its id or None for any.
        end: the text among them that ends a turn, the `eos_token`.
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
        if tokenizer.eos_token != end:
            faults.append(f"eos_token {tokenizer.eos_token!r}")
        if tokenizer.pad_token_id is None:
            faults.append("no pad_token")
        faults += faults_of_vocabulary(tokenizer.get_vocab(), vocabulary)
        if faults:
            where = f"{folder}: expected the tokenizer of the model that config.json describes, turns ending in {end}"
            raise CheckpointError(where, found="; ".join(faults), do=MAKE)
    return tokenizer


def read_processor(kind: Any, folder: Path, *keys: str, faults: Faults) -> Any:
    """Return the image processor of a folder.

    Args:
        kind: the class by name: the automatic one needs torchvision, and the two resize slightly differently.
        folder: a whole one.
        keys: settings that its file must have, beside mean and deviation.
        faults: what tells another model's image processor.

    Raises:
        CheckpointError: an unreadable file, settings that would not take pixels to around 0, or faults.
    """
    with readable(folder, "image processor"):
        require_keys(folder / "preprocessor_config.json", "image_mean", "image_std", *keys)
        processor = kind.from_pretrained(folder, local_files_only=True)
        require_pixel_settings(folder, processor)
        if found := "; ".join(faults(processor)):
            where = f"{folder}/preprocessor_config.json: expected the image processor of the model in config.json"
            raise CheckpointError(where, found=found, do=MAKE)
    return processor


def differing(pairs: Mapping[str, tuple[object, object]]) -> Iterator[str]:
    """Yield a fault for each name whose two values, found and wanted, differ."""
    for name, (found, wanted) in pairs.items():
        if found != wanted:
            yield f"{name} {found} for {wanted}"


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
