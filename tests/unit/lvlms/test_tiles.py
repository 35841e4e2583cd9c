"""Images as tiles: their number, their names and their features."""

from __future__ import annotations

from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_idefics3
import tiny_smolvlm
import tiny_tiles
import torch
from families import FOLDERS
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from transformers import Idefics3Processor
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil

from lever_pipe.lvlms import _tiles
from lever_pipe.lvlms._family import Family
from lever_pipe.lvlms._tiles import Tiles, written
from lever_pipe.lvlms.asking.prompts import ImagePart, Prompt, Turn
from lever_pipe.lvlms.protocol import ImageSource

MEMBERS = ("idefics3", "smolvlm")


@pytest.fixture(scope="module", params=MEMBERS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiles") / request.param
    FOLDERS[request.param](path)
    return path


def load(folder: Path) -> Family:
    found: Family = import_module(f"lever_pipe.lvlms.{folder.name}").load(folder, dtype="float32", device="cpu")
    return found


@pytest.fixture(scope="module")
def family(folder: Path) -> Family:
    return load(folder)


def encoder_of(**settings: Any) -> Tiles:
    return Tiles(None, Idefics3ImageProcessorPil(**settings), None)


@given(
    st.integers(1, 90), st.integers(1, 90), st.sampled_from([(7, 28), (8, 32), (8, 30), (14, 14), (8, 5), (7, 23)])
)  # fmt: skip
def test_a_grid_by_size_is_that_of_the_pixels(width: int, height: int, sizes: tuple[int, int]) -> None:
    side, longest = sizes
    encoder = encoder_of(size={"longest_edge": longest}, max_image_size={"longest_edge": side})
    image = Image.new("RGB", (width, height), (1, 2, 3))
    [(grid, pixels)] = encoder.pixels([image])
    assert encoder.grid(width, height) == grid
    assert pixels.shape == (grid[0] * grid[1] + 1, 3, side, side)


def test_an_image_that_is_not_split_is_one_tile(family: Family) -> None:
    processor = type(family.image_processor)(**{**family.image_processor.to_dict(), "do_image_splitting": False})
    encoder = Tiles(family.model, processor, family.tokenizer)
    [(grid, pixels)] = encoder.pixels([Image.new("RGB", (90, 40))])
    assert encoder.grid(90, 40) == grid == (0, 0)
    assert pixels.shape[0] == 1
    ids, image = encoder.block(grid).ids.tolist(), family.image_token
    assert ids.count(image) == 4
    assert ids.index(image) + 5 == len(ids)  # the four and what closes them


@pytest.mark.parametrize("grid", [(0, 0), (1, 2), (2, 1), (3, 3)])
def test_an_image_is_written_as_the_published_processor_does(family: Family, grid: tuple[int, int]) -> None:
    processor = Idefics3Processor(family.image_processor, family.tokenizer, image_seq_len=1)
    told = processor.replace_image_token({"rows": [[grid[0]]], "cols": [[grid[1]]]}, 0)
    assert written(grid) == told


def test_the_ids_of_a_prompt_are_those_of_the_published_processor(family: Family, paths: dict[str, Path]) -> None:
    processor = Idefics3Processor(family.image_processor, family.tokenizer, image_seq_len=4)
    for digest in list(paths)[:5]:
        image = ImageSource(paths).open(digest)
        whole = processor(text=f"User:{family.template.image}two dog", images=[[image]], add_special_tokens=False)
        start, end = (list(family.tokenizer(text, add_special_tokens=False).input_ids) for text in ("User:", "two dog"))
        block = family.encoder.block(family.encoder.grid(*image.size))
        assert [*start, *block.ids.tolist(), *end] == whole["input_ids"][0]
        assert block.positions.tolist() == [list(range(block.advance))]


def test_the_first_smolvlm_is_an_idefics3(tmp_path: Path) -> None:
    """Its tokenizer is SmolLM2's, and its chat template begins as that of the later ones."""
    folder = tmp_path / "idefics3"
    tiny_tiles.save(folder, kinds=tiny_idefics3.KINDS, specials=tiny_smolvlm.SPECIALS, side=28, scale=2, longest=56)
    family = load(folder)
    prompt = Prompt(((Turn("user", (ImagePart("a"), "two dog")),), (Turn("user", (ImagePart("b"), "is")),)))
    told = family.tokenizer.apply_chat_template(prompt.messages(), tokenize=False, add_generation_prompt=True)
    assert family.render(prompt).text == told
    assert told.startswith("<|im_start|>User:<image>")


@torch.inference_mode()
def test_features_are_those_of_the_model_and_of_no_company(family: Family, paths: dict[str, Path]) -> None:
    images = [ImageSource(paths).open(digest) for digest in paths]
    found = family.encoder.pixels(images)
    assert len({grid for grid, _ in found}) > 2
    for grid in {grid for grid, _ in found}:
        rows = [pixels for other, pixels in found if other == grid]
        together = family.encoder.encode(torch.cat(rows), grid)
        for features, pixels in zip(together, rows, strict=True):
            assert torch.equal(features, family.encoder.encode(pixels, grid)[0])
            own = family.model.model.get_image_features(pixels[None]).pooler_output[0]
            torch.testing.assert_close(features, own, rtol=0, atol=1e-5)


@torch.inference_mode()
def test_a_tile_of_zeros_is_a_tile(family: Family) -> None:
    """The model's own function takes it for padding and gives too few features."""
    side = family.image_processor.max_image_size["longest_edge"]
    assert family.encoder.encode(torch.zeros(3, 3, side, side), (1, 2)).shape == (1, 3 * 4, 64)


def test_batches_are_of_whole_images(family: Family, paths: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """How many tiles a pass of the tower takes changes nothing but the order of sums."""
    wanted = None
    for tiles in (1, 4, 100):
        monkeypatch.setattr(_tiles, "TILES_PER_BATCH", {"cpu": tiles})
        store = family.vision(ImageSource(paths), capacity=2**30, counters=Counter())
        found = [features.numpy() for features in store.features(list(paths))]
        wanted = wanted or found
        for one, other in zip(found, wanted, strict=True):
            np.testing.assert_allclose(one, other, rtol=0, atol=1e-5)
