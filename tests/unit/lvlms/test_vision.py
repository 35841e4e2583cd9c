from __future__ import annotations

import pytest
import torch

from lever_pipe.lvlms import _vision
from lever_pipe.lvlms._vision import VisionTower
from lever_pipe.lvlms.protocol import ImageSource


def stock_features(bench, digest: str) -> torch.Tensor:
    pixels = bench.parts.image_processor(images=[ImageSource(bench.paths).open(digest)], return_tensors="pt")
    with torch.inference_mode():
        found = bench.parts.model.model.get_image_features(pixels["pixel_values"], pixels["image_grid_thw"])
    return found.pooler_output[0]


def test_batched_features_equal_those_of_one_image_alone(bench) -> None:
    store = bench.vision()
    digests = list(bench.paths)
    store.prepare(digests)
    for digest, features in zip(digests, store.features(digests), strict=True):
        # Features near 1; fp32 sums in another order, as the patches are a matrix product here and a convolution there.
        torch.testing.assert_close(features, stock_features(bench, digest), rtol=0, atol=1e-4)
    assert store.encoded == len(digests)
    assert len({store.grid(digest) for digest in digests}) == 5  # five shapes


def test_windows_of_one_length_share_a_call(bench, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    plain = torch.nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(
        _vision, "scaled_dot_product_attention", lambda q, *a, **k: calls.append(q.shape) or plain(q, *a, **k)
    )
    model = bench.parts.model
    tower = VisionTower(model.model.visual)
    grid = (1, 10, 14)  # windows of 4 x 4, 2 x 4, 4 x 2 and 2 x 2 patches
    pixels = torch.randn(3 * 140, 3 * 2 * 14 * 14, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        ours = tower(pixels, grid)
        stock = model.model.get_image_features(pixels, torch.tensor([grid] * 3)).pooler_output
    torch.testing.assert_close(ours, torch.stack(list(stock)), rtol=0, atol=1e-4)
    # 5 x 7 merged tokens make 6 whole windows, 3 + 2 halves and one quarter; times 3 images; the second layer is full.
    assert sorted((n, length) for n, _, length, _ in calls) == [(3, 4), (3, 140), (15, 8), (18, 16)]


def test_dropped_features_come_back_with_the_same_bits(bench) -> None:
    everything = bench.vision()
    digests = list(bench.paths)
    everything.prepare(digests)
    wanted = everything.features(digests)
    small = bench.vision(capacity=wanted[0].nbytes * 2)
    small.prepare(digests)
    for _ in range(2):
        found = [small.features([digest])[0] for digest in digests]
        assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))
    assert small.encoded > len(digests)
    assert small._bytes <= wanted[0].nbytes * 2


@pytest.mark.parametrize("patches", [1, 40, 10_000])
def test_the_batch_size_of_the_tower_does_not_matter(bench, monkeypatch: pytest.MonkeyPatch, patches: int) -> None:
    digests = list(bench.paths)
    wanted = bench.vision().features(digests)
    monkeypatch.setattr(_vision, "PATCHES_PER_BATCH", patches)
    found = bench.vision().features(digests)
    for one, other in zip(found, wanted, strict=True):
        # 1e-5: as above, sums in another order.
        torch.testing.assert_close(one, other, rtol=0, atol=1e-5)
