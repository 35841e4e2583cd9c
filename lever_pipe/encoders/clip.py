"""CLIP's projected image and text features, from a local model folder.

The image processor is transformers' PIL backend, named explicitly: the torchvision backend resizes
slightly differently, and automatic choice would let an installed package change the numbers.
The model: Radford et al. 2021, Learning Transferable Visual Models From Natural Language Supervision.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from transformers import AutoTokenizer, CLIPImageProcessorPil, CLIPModel

from lever_pipe.errors import CheckpointError
from lever_pipe.images import read_rgb
from lever_pipe.rowwise import rowwise

T = TypeVar("T", bound=Hashable)
FILES = ("config.json", "model.safetensors", "preprocessor_config.json", "tokenizer_config.json")
# Older exports store this constant buffer; it holds 0, 1, 2, ... and no weight.
IGNORED_SUFFIX = ".position_ids"


class ClipEncoder:
    """A CLIP model in evaluation mode, float32."""

    def __init__(self, model: CLIPModel, tokenizer: Any, processor: CLIPImageProcessorPil, batch_size: int) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._processor = processor
        self._batch_size = batch_size

    @property
    def width(self) -> int:
        """Return D, the width of a vector."""
        return int(self._model.config.projection_dim)

    def images(self, paths: Sequence[Path]) -> NDArray[np.float32]:
        """Return normalised image features, float32 [N, D]; each distinct path is encoded once.

        Raises:
            ImageError: an image cannot be read.
        """
        return self._encode(paths, self._image_batch)

    def texts(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return normalised text features, float32 [N, D]; each distinct text is encoded once.

        Texts longer than the model's positions are cut there; the end token stays.
        """
        return self._encode(texts, self._text_batch)

    def _encode(self, items: Sequence[T], encode: Callable[[list[T]], torch.Tensor]) -> NDArray[np.float32]:
        distinct = list(dict.fromkeys(items))
        rows = {item: row for row, item in enumerate(distinct)}
        if not distinct:
            return np.zeros((0, self.width), dtype=np.float32)
        with torch.inference_mode():
            parts = [encode(batch) for batch in _batches(distinct, self._batch_size)]
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
    """Return the CLIP model of a local folder.

    Raises:
        CheckpointError: no folder, a file or tensor is missing, or there are tensors too many.
    """
    _require_files(folder)
    try:
        model, info = CLIPModel.from_pretrained(
            folder,
            local_files_only=True,
            use_safetensors=True,
            dtype=torch.float32,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # _require_tensors refuses them by name
        )
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        processor = CLIPImageProcessorPil.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, RuntimeError, SafetensorError) as fault:
        raise _fault(folder, str(fault).strip().splitlines()[0]) from None
    _require_tensors(folder, info)
    return ClipEncoder(rowwise(model.eval().to(device)), tokenizer, processor, batch_size)


def _features(output: Any) -> torch.Tensor:
    features = output.pooler_output  # the projected features, although the name says pooled
    assert isinstance(features, torch.Tensor)
    return features


def _batches(items: list[T], size: int) -> Iterator[list[T]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


def _require_files(folder: Path) -> None:
    if not folder.is_dir():
        raise _fault(folder, "no such folder")
    missing = [name for name in FILES if not (folder / name).is_file()]
    if missing:
        raise _fault(folder, "no " + ", no ".join(missing))


def _require_tensors(folder: Path, info: dict[str, Any]) -> None:
    listed = []
    for kind in ("missing", "unexpected", "mismatched"):
        names = sorted(_name(entry) for entry in info.get(f"{kind}_keys", ()))
        names = [name for name in names if not name.endswith(IGNORED_SUFFIX)]
        if names:
            listed.append(f"{len(names)} {kind} tensors ({', '.join(names[:5])})")
    if listed:
        raise _fault(folder, "; ".join(listed))


def _name(entry: str | tuple[str, torch.Size, torch.Size]) -> str:
    if isinstance(entry, str):
        return entry
    name, stored, wanted = entry
    return f"{name} {list(stored)} for {list(wanted)}"


def _fault(folder: Path, found: str) -> CheckpointError:
    return CheckpointError(
        f"{folder}: expected a CLIP model folder with {', '.join(FILES)}",
        found=found,
        do="Save the model there with save_pretrained (safetensors), with tokenizer and processor.",
    )
