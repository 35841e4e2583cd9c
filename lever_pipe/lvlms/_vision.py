"""Image features: every distinct image passes the vision tower once."""

from __future__ import annotations

import json
import math
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

from lever_pipe.lvlms._flop import VisionFlop
from lever_pipe.lvlms._positions import Grid
from lever_pipe.lvlms._tower import VisionTower
from lever_pipe.lvlms.protocol import ImageSource

# A CPU is fastest while a batch's activations stay in its cache; a GPU needs enough of them to be busy.
PATCHES_PER_BATCH = {"cpu": 2048}
PATCHES_PER_BATCH_ELSEWHERE = 16_384
IMAGES_PER_CALL = 16


class VisionStore:
    """Features and grids of images by digest, the least recently used features dropped beyond a number of bytes.

    Images of one batch have one grid, and batches are formed in the order of the digests, so what an image becomes
    does not depend on the order in which it is asked for.

    Args:
        model: a `Qwen2_5_VLForConditionalGeneration`.
        processor: its image processor.
        images: returns the decoded image of a digest, and its size without decoding it.
        capacity: bytes of features to keep.
        counters: receives `images_encoded` and the vision tower's share of `flop`.
    """

    def __init__(
        self,
        model: Any,
        processor: Any,
        images: ImageSource,
        *,
        capacity: int,
        counters: Counter[str],
    ) -> None:
        self._model = model
        self._processor = processor
        self._images = images
        self._capacity = capacity
        self._counters = counters
        self._grids: dict[str, Grid] = {}
        self._features: OrderedDict[str, Tensor] = OrderedDict()
        self._bytes = 0
        self._batch = PATCHES_PER_BATCH.get(model.device.type, PATCHES_PER_BATCH_ELSEWHERE)
        self._flop = VisionFlop(model)
        self._tower = VisionTower(model.model.visual)

    def prepare(self, digests: Iterable[str]) -> None:
        """Encode all images whose features are not there, in batches."""
        for digest, features in self._encode(sorted({digest for digest in digests if digest not in self._features})):
            self._keep(digest, features)

    def grid(self, digest: str) -> Grid:
        """Return the patch grid of an image, by its size."""
        if digest not in self._grids:
            self._grids[digest] = self._grid_of(*self._images.size(digest))
        return self._grids[digest]

    def _grid_of(self, width: int, height: int) -> Grid:
        processor = self._processor
        rows, columns = smart_resize(
            height,
            width,
            factor=processor.patch_size * processor.merge_size,
            min_pixels=processor.size["shortest_edge"],
            max_pixels=processor.size["longest_edge"],
        )
        return 1, rows // processor.patch_size, columns // processor.patch_size

    def features(self, digests: Sequence[str]) -> list[Tensor]:
        """Return the features [n, H] of each image, encoding again what was dropped."""
        missing = dict(self._encode(sorted({d for d in digests if d not in self._features})))
        found = []
        for digest in digests:
            if digest not in missing:
                self._features.move_to_end(digest)
            found.append(missing[digest] if digest in missing else self._features[digest])
        for digest, features in missing.items():
            self._keep(digest, features)
        return found

    def _keep(self, digest: str, features: Tensor) -> None:
        self._features[digest] = features
        self._bytes += features.nbytes
        while self._bytes > self._capacity and len(self._features) > 1:
            _, dropped = self._features.popitem(last=False)
            self._bytes -= dropped.nbytes

    def _encode(self, digests: Sequence[str]) -> Iterator[tuple[str, Tensor]]:
        waiting: dict[Grid, list[tuple[str, Tensor]]] = {}
        for digest, grid, pixels in self._process(digests):
            group = waiting.setdefault(grid, [])
            group.append((digest, pixels))
            if sum(len(pixels) for _, pixels in group) >= self._batch:
                yield from self._forward(grid, waiting.pop(grid))
        for grid, group in waiting.items():
            yield from self._forward(grid, group)

    def _process(self, digests: Sequence[str]) -> Iterator[tuple[str, Grid, Tensor]]:
        """Yield digest, grid and pixel patches; several images a call, because the call itself is dear."""
        for start in range(0, len(digests), IMAGES_PER_CALL):
            part = digests[start : start + IMAGES_PER_CALL]
            batch = self._processor(images=[self._images.open(digest) for digest in part], return_tensors="pt")
            grids = [(frames, rows, columns) for frames, rows, columns in batch["image_grid_thw"].tolist()]
            patches = batch["pixel_values"].split([math.prod(grid) for grid in grids])
            yield from zip(part, grids, patches, strict=True)

    @torch.inference_mode()
    def _forward(self, grid: Grid, group: list[tuple[str, Tensor]]) -> list[tuple[str, Tensor]]:
        pixels = torch.cat([pixels for _, pixels in group]).to(self._model.device)
        encoded = self._tower(pixels, grid).to(self._model.dtype)
        self._counters["images_encoded"] += len(group)
        self._counters["flop"] += len(group) * self._flop(grid)
        # A clone, because a slice would keep its whole batch alive after the others are dropped.
        features = [part.clone() for part in encoded]
        return [(digest, feature) for (digest, _), feature in zip(group, features, strict=True)]


def settings_of(processor: Any) -> str:
    """Return the image processor's settings as canonical text; the class names the resizing backend."""
    return json.dumps({"class": type(processor).__name__, **processor.to_dict()}, sort_keys=True, default=str)
