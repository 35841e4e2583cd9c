"""Features that enter behind the first layers, and the tower that gives them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import tiny_qwen3_vl
import torch

from lever_pipe.lvlms._decoding import DecodeOptions
from lever_pipe.lvlms._family import Family
from lever_pipe.lvlms._positions import Grid
from lever_pipe.lvlms._requests import Segment, TokenPrompt, TokenRequest
from lever_pipe.lvlms.protocol import ImageSource, LvlmOptions
from lever_pipe.lvlms.qwen3_vl import load

WIDTH = 64


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> Family:
    folder = tmp_path_factory.mktemp("qwen3_vl") / "model"
    tiny_qwen3_vl.save(folder)
    return load(folder, dtype="float32", device="cpu")


@torch.inference_mode()
def test_features_are_those_of_the_model_and_of_no_company(family: Family, paths: dict[str, Path]) -> None:
    images = [ImageSource(paths).open(digest) for digest in paths]
    found = family.encoder.pixels(images)
    assert len({grid for grid, _ in found}) == 5
    for grid in {grid for grid, _ in found}:
        rows = [pixels for other, pixels in found if other == grid]
        together = family.encoder.encode(torch.cat(rows), grid)
        assert together.shape == (len(rows), family.encoder.block(grid).ids.size, 3 * WIDTH)
        for features, pixels in zip(together, rows, strict=True):
            assert torch.equal(features, family.encoder.encode(pixels, grid)[0])
            seen = family.model.model.get_image_features(pixels, torch.tensor([grid]))
            own = torch.cat([seen.pooler_output[0], *(deeper[0] for deeper in seen.deepstack_features)], dim=-1)
            torch.testing.assert_close(features, own, rtol=0, atol=1e-5)


@pytest.mark.parametrize("executor", ["packed", "padded"])
@pytest.mark.parametrize("layer", [0, 1])
def test_every_deeper_feature_moves_an_answer(
    family: Family, paths: dict[str, Path], executor: str, layer: int
) -> None:
    """So the equality with the stock class says that each enters behind its layer."""
    tower = family.encoder.tower  # type: ignore[attr-defined]

    def without(pixels: torch.Tensor, grid: Grid) -> torch.Tensor:
        features = tower(pixels, grid).clone()
        features[..., (1 + layer) * WIDTH : (2 + layer) * WIDTH] = 0
        return features

    changed = replace(family, encoder=replace(family.encoder, tower=without))  # type: ignore[type-var]
    ids = family.tokenizer("<|image_pad|>two dog", add_special_tokens=False).input_ids
    asked = [TokenRequest(TokenPrompt((Segment(tuple(ids), (next(iter(paths)),)),)), ((5, 6),), generate=False)]
    options = LvlmOptions(executor=executor)  # type: ignore[arg-type]
    scores = []
    for each in (family, changed):
        decode = DecodeOptions((each.eos,), 3)
        engine = each.engine(ImageSource(paths), options=options, decode=decode, counters=Counter())
        scores.append(engine.run(asked)[0].scores[0])
    assert max(abs(one - other) for one, other in zip(*scores, strict=True)) > 0.01
