"""CLIP's projected image and text features, from a local model folder.

The image processor is transformers' PIL backend, named explicitly: the torchvision backend resizes
slightly differently, and automatic choice would let an installed package change the numbers.
The model: Radford et al. 2021, Learning Transferable Visual Models From Natural Language Supervision.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoTokenizer, CLIPConfig, CLIPImageProcessorPil, CLIPModel

from lever_pipe.base.errors import CheckpointError
from lever_pipe.base.images import read_rgb
from lever_pipe.base.model_folders import (
    MAKE,
    VOCABULARY,
    load_strictly,
    readable,
    require_keys,
    require_size,
    require_whole,
)
from lever_pipe.base.rowwise import rowwise
from lever_pipe.base.storage import strict_json

T = TypeVar("T", bound=Hashable)
FILES = ("config.json", "preprocessor_config.json", "tokenizer_config.json")


class ClipEncoder:
    """A CLIP model in evaluation mode, float32."""

    def __init__(self, model: CLIPModel, tokenizer: Any, processor: CLIPImageProcessorPil, batch_size: int) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._processor = processor
        self._batch_size = batch_size

    def images(self, paths: Sequence[Path]) -> NDArray[np.float32]:
        """Return normalised image features, float32 [N, D]; each distinct path is encoded once."""
        return self._encode(paths, self._image_batch)

    def texts(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return normalised text features, float32 [N, D]; each distinct text is encoded once.

        Texts longer than the model's positions are truncated; the end token is kept.
        """
        return self._encode(texts, self._text_batch)

    def _encode(self, items: Sequence[T], encode: Callable[[list[T]], torch.Tensor]) -> NDArray[np.float32]:
        distinct = list(dict.fromkeys(items))
        rows = {item: row for row, item in enumerate(distinct)}
        if not distinct:
            return np.zeros((0, self._model.config.projection_dim), dtype=np.float32)
        with torch.inference_mode():
            n = self._batch_size
            parts = [encode(distinct[start : start + n]) for start in range(0, len(distinct), n)]
            features = torch.nn.functional.normalize(torch.cat(parts).float(), dim=-1)
        table: NDArray[np.float32] = features.cpu().numpy()
        return table[[rows[item] for item in items]]

    def _image_batch(self, paths: list[Path]) -> torch.Tensor:
        pixels = self._processor(images=[read_rgb(path) for path in paths], return_tensors="pt")
        values = pixels["pixel_values"].to(self._model.device)
        return _features(self._model.get_image_features(pixel_values=values))

    def _text_batch(self, texts: list[str]) -> torch.Tensor:
        tokens = self._tokenizer(
            texts,
            padding=True,
            truncation=True,
            max_length=self._model.config.text_config.max_position_embeddings,
            return_tensors="pt",
        ).to(self._model.device)
        return _features(
            self._model.get_text_features(input_ids=tokens["input_ids"], attention_mask=tokens["attention_mask"])
        )


def load(folder: Path, *, device: str, batch_size: int) -> ClipEncoder:
    """Return the CLIP model of a local folder."""
    require_whole(folder, "a CLIP model folder", files=FILES, any_of=VOCABULARY)
    with readable(folder, "CLIP model"):
        kind = strict_json((folder / "config.json").read_bytes()).get("model_type")
        if kind != "clip":
            remedy = "Name the plugin of encoders that fits this folder."
            raise CheckpointError(f"{folder}/config.json: expected model_type clip", found=repr(kind), do=remedy)
        require_size(folder, CLIPConfig.from_pretrained(folder, local_files_only=True))
        model = load_strictly(CLIPModel, folder, "CLIP model", dtype=torch.float32)
        require_keys(folder / "tokenizer_config.json", "tokenizer_class")
        require_keys(folder / "preprocessor_config.json", "image_mean", "image_std", "size")
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        processor = CLIPImageProcessorPil.from_pretrained(folder, local_files_only=True)
        _require_fitting_parts(folder, model.config, tokenizer, processor)
    return ClipEncoder(rowwise(model.eval().to(device)), tokenizer, processor, batch_size)


def _require_fitting_parts(folder: Path, config: Any, tokenizer: Any, processor: Any) -> None:
    """Refuse another model's tokenizer or image processor."""
    problems, vocabulary = [], config.text_config.vocab_size
    if not vocabulary // 2 < len(tokenizer) <= vocabulary:  # embeddings may be padded
        problems.append(f"{len(tokenizer)} tokens for a vocabulary of {vocabulary}")
    if tokenizer.pad_token_id is None:
        problems.append("no pad_token")
    # The feature of a text is read at its end token; older configurations use the id 2 for the last token.
    if config.text_config.eos_token_id not in (2, tokenizer.eos_token_id):
        problems.append(f"texts that end in token {tokenizer.eos_token_id} for {config.text_config.eos_token_id}")
    side = config.vision_config.image_size
    size, crop = dict(processor.size), dict(processor.crop_size or {}) if processor.do_center_crop else {}
    final = crop or size
    if (final.get("height"), final.get("width")) != (side, side) or min(size.values()) < side:
        problems.append(f"images of size {size}, cropped to {crop or 'none'}, for {side} pixels")
    if problems:
        expected = f"{folder}: expected tokenizer and image processor of the model that config.json describes"
        raise CheckpointError(expected, found="; ".join(problems), do=MAKE)


def _features(output: Any) -> torch.Tensor:
    features = output.pooler_output  # the projected features, despite the name
    assert isinstance(features, torch.Tensor)
    return features
