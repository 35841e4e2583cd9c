"""A local model folder, read strictly."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoTokenizer, GenerationConfig, Qwen2_5_VLForConditionalGeneration
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.utils import logging as transformers_logging

from lever_pipe.errors import CheckpointError
from lever_pipe.rowwise import rowwise
from lever_pipe.storage import digest

ATTENTION = "sdpa"
REQUIRED = ("config.json", "tokenizer.json", "preprocessor_config.json")
MAKE = "Download the folder whole, or make it again with save_pretrained (safetensors)."


@dataclass(frozen=True)
class Parts:
    """A model in evaluation mode with its tokenizer and image processor."""

    model: Any
    tokenizer: Any
    image_processor: Any

    @property
    def eos(self) -> int:
        """The token that ends a turn."""
        return int(self.tokenizer.eos_token_id)


def load_parts(folder: Path, *, dtype: str, device: str) -> Parts:
    """Return model, tokenizer and image processor of a folder.

    Raises:
        CheckpointError: missing files, another architecture, or tensors that differ from it.
    """
    _require_files(folder)
    transformers_logging.disable_progress_bar()
    with _readable(folder, "tokenizer"):
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    if tokenizer.eos_token_id is None:
        raise CheckpointError(f"{folder}: expected a tokenizer with an eos_token", found="none", do=MAKE)
    # The PIL processor by name: the automatic one needs torchvision, and the two resize slightly differently.
    with _readable(folder, "image processor"):
        processor = Qwen2VLImageProcessorPil.from_pretrained(folder, local_files_only=True)
    model = _load_model(folder, dtype).to(device)
    model.eval().requires_grad_(False)
    # The folder's own sampling defaults must not leak into anybody's `generate`.
    model.generation_config = GenerationConfig(eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id)
    return Parts(rowwise(model), tokenizer, processor)


def weights_digest(folder: Path) -> str:
    """Return the sha256 over names and contents of weights and configuration."""
    paths = sorted([*folder.glob("*.safetensors"), folder / "config.json"])
    listing = "\n".join(f"{path.name} {digest(path)}" for path in paths)
    return hashlib.sha256(listing.encode()).hexdigest()


@contextmanager
def _readable(folder: Path, part: str) -> Iterator[None]:
    """Turn what a library says of a broken file, as half a download is, into one line."""
    try:
        yield
    except (OSError, RuntimeError, ValueError, SafetensorError) as fault:  # a decoding fault is a ValueError
        said = str(fault).strip().partition("\n")[0]
        raise CheckpointError(
            f"{folder}: expected a readable {part}", found=f"{type(fault).__name__}: {said}".rstrip("."), do=MAKE
        ) from None


def _require_files(folder: Path) -> None:
    missing = [name for name in REQUIRED if not (folder / name).is_file()]
    weights = sorted(folder.glob("*.safetensors"))
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        shards = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        missing += sorted(name for name in shards if not (folder / name).is_file())
    elif not weights:
        missing.append("model.safetensors")
    if missing:
        raise CheckpointError(
            f"{folder}: expected a Qwen2.5-VL model folder", found=f"no {', '.join(missing)}", do=MAKE
        )
    with _readable(folder, "config.json"):
        kind = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("model_type")
    if kind != "qwen2_5_vl":
        raise CheckpointError(
            f"{folder}/config.json: expected model_type qwen2_5_vl",
            found=repr(kind),
            do="Name the member of lvlms that fits this folder.",
        )


def _load_model(folder: Path, dtype: str) -> Any:
    with _readable(folder, "set of weights for its own config.json"):
        model, info = Qwen2_5_VLForConditionalGeneration.from_pretrained(
            folder,
            dtype=getattr(torch, dtype),
            attn_implementation=ATTENTION,
            local_files_only=True,
            use_safetensors=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # reported below by name, as every other difference
        )
    faults = {name: sorted(map(str, info[name])) for name in info if info[name]}
    if faults:
        found = "; ".join(f"{name}: {', '.join(keys[:5])} ({len(keys)})" for name, keys in faults.items())
        raise CheckpointError(f"{folder}: expected exactly the tensors of its config.json", found=found, do=MAKE)
    if set(model.config.text_config.layer_types) != {"full_attention"}:
        raise CheckpointError(
            f"{folder}: expected full attention in every layer",
            found="sliding-window layers",
            do="Set use_sliding_window to false in config.json, as the published models do.",
        )
    return model
