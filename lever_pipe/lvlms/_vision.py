"""Image features: every distinct image passes the vision tower once."""

from __future__ import annotations

import json
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import torch
from torch import Tensor

from lever_pipe.lvlms._positions import Grid, SegmentLayout
from lever_pipe.lvlms.protocol import ImageSource

if TYPE_CHECKING:
    from PIL.Image import Image

IMAGES_PER_CALL = 16
T = TypeVar("T")
R = TypeVar("R")


class ImageEncoder(Protocol):
    """How a family makes features and tokens of images; images of one grid are alike in all but their pixels."""

    @property
    def rows_per_batch(self) -> int:
        """Rows of pixels (patches) of one pass of the tower."""
        ...

    def grid(self, width: int, height: int) -> Grid:
        """Return what of an image's size its tokens depend on."""
        ...

    def block(self, grid: Grid) -> SegmentLayout:
        """Return the tokens of an image, with those that the family writes around them."""
        ...

    def pixels(self, images: Sequence[Image]) -> list[tuple[Grid, Tensor]]:
        """Return the grid and the pixels [rows, ...] of each image."""
        ...

    def encode(self, pixels: Tensor, grid: Grid) -> Tensor:
        """Return the features [B, image tokens, H] of images of one grid, pixels [B rows, ...] one behind the other."""
        ...

    def flop(self, grid: Grid) -> int:
        """Return the work of one image in the tower: multiply-adds times two."""
        ...

    def stock_pixels(self, images: Sequence[Sequence[Image]]) -> dict[str, Tensor]:
        """Return what the model's own forward takes of the images of several prompts."""
        ...


class VisionStore:
    """Features and grids of images by digest, the least recently used features dropped beyond a number of bytes.

    Images of one batch have one grid, and batches are formed in the order of the digests, so what an image becomes
    does not depend on the order in which it is asked for.

    Args:
        encoder: of the family.
        images: returns the decoded image of a digest, and its size without decoding it.
        device: where the tower is.
        dtype: of the features.
        capacity: bytes of features to keep.
        counters: receives `images_encoded` and the vision tower's share of `flop`.
        threads: that read and preprocess images ahead of the tower; 0 to do so between its passes.
    """

    def __init__(
        self,
        encoder: ImageEncoder,
        images: ImageSource,
        *,
        device: torch.device,
        dtype: torch.dtype,
        capacity: int,
        counters: Counter[str],
        threads: int = 0,
    ) -> None:
        self._encoder = encoder
        self._images = images
        self._device = device
        self._dtype = dtype
        self._capacity = capacity
        self._counters = counters
        self._threads = threads
        self._grids: dict[str, Grid] = {}
        self._blocks: dict[Grid, SegmentLayout] = {}
        self._features: OrderedDict[str, Tensor] = OrderedDict()
        self._bytes = 0

    def prepare(self, digests: Iterable[str]) -> None:
        """Encode all images whose features are not there, in batches."""
        for digest, features in self._encode(sorted({digest for digest in digests if digest not in self._features})):
            self._keep(digest, features)

    def block(self, digest: str) -> SegmentLayout:
        """Return the tokens of an image, by its size."""
        grid = self.grid(digest)
        if grid not in self._blocks:
            self._blocks[grid] = self._encoder.block(grid)
        return self._blocks[grid]

    def grid(self, digest: str) -> Grid:
        """Return the grid of an image, by its size."""
        if digest not in self._grids:
            self._grids[digest] = self._encoder.grid(*self._images.size(digest))
        return self._grids[digest]

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
        rows: Counter[Grid] = Counter()
        for digest, grid, pixels in self._process(digests):
            waiting.setdefault(grid, []).append((digest, pixels))
            rows[grid] += len(pixels)
            if rows[grid] >= self._encoder.rows_per_batch:
                del rows[grid]
                yield from self._forward(grid, waiting.pop(grid))
        for grid, group in waiting.items():
            yield from self._forward(grid, group)

    def _process(self, digests: Sequence[str]) -> Iterator[tuple[str, Grid, Tensor]]:
        """Yield digest, grid and pixels; several images a call, because the call itself is dear."""
        parts = [digests[start : start + IMAGES_PER_CALL] for start in range(0, len(digests), IMAGES_PER_CALL)]
        for part, found in zip(parts, ahead(self._pixels, parts, self._threads), strict=True):
            for digest, (grid, pixels) in zip(part, found, strict=True):
                yield digest, grid, pixels

    def _pixels(self, digests: Sequence[str]) -> list[tuple[Grid, Tensor]]:
        return self._encoder.pixels([self._images.open(digest) for digest in digests])

    @torch.inference_mode()
    def _forward(self, grid: Grid, group: list[tuple[str, Tensor]]) -> list[tuple[str, Tensor]]:
        pixels = torch.cat([pixels for _, pixels in group]).to(self._device)
        encoded = self._encoder.encode(pixels, grid).to(self._dtype)
        self._counters["images_encoded"] += len(group)
        self._counters["flop"] += len(group) * self._encoder.flop(grid)
        # A clone, because a slice would keep its whole batch alive after the others are dropped.
        features = [part.clone() for part in encoded]
        return [(digest, feature) for (digest, _), feature in zip(group, features, strict=True)]


def ahead(make: Callable[[T], R], items: Sequence[T], threads: int) -> Iterator[R]:
    """Yield what is made of each item, in order, by threads that run at most two items each ahead of the caller."""
    if not threads:
        yield from map(make, items)
        return
    with ThreadPoolExecutor(threads) as pool:
        waiting: deque[Future[R]] = deque()
        try:
            for item in items:
                waiting.append(pool.submit(make, item))
                if len(waiting) > 2 * threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def settings_of(processor: Any) -> str:
    """Return the image processor's settings as canonical text; the class names the resizing backend."""
    return json.dumps({"class": type(processor).__name__, **processor.to_dict()}, sort_keys=True, default=str)
