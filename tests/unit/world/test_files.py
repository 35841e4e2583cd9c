"""Raw files in OK-VQA's format."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from PIL import Image

from lever_pipe.experiment.data import WorldData
from lever_pipe.world.files import draw_image, image_name, write_raw_files
from lever_pipe.world.items import Split, draw_split

SMALL = WorldData(n_train=64, n_eval=20)
SPLITS: tuple[Split, ...] = get_args(Split)


def _write(root: Path, options: WorldData) -> Path:
    for split in SPLITS:
        write_raw_files(
            options,
            split,
            questions=root / f"OpenEnded_mscoco_{split}2014_questions.json",
            annotations=root / f"mscoco_{split}2014_annotations.json",
            images=root / f"{split}2014",
        )
    return root


def _contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _write(tmp_path_factory.mktemp("world"), SMALL)


@pytest.mark.parametrize(("own", "size"), [("train", {"n_eval": 333}), ("val", {"n_train": 333})])
def test_the_size_of_one_split_moves_no_byte_of_the_other(
    world: Path, tmp_path: Path, own: Split, size: dict[str, int]
) -> None:
    other = _contents(_write(tmp_path, SMALL.model_copy(update=size)))
    first = _contents(world)
    same = {name for name in first.keys() & other.keys() if first[name] == other[name]}
    assert {name for name in first if f"{own}2014" in name} <= same
    assert len(other) - len(first) > 200


def test_every_image_is_there_once_with_its_pixels(world: Path) -> None:
    pictures = draw_split(SMALL, "train")
    names = {f"COCO_train2014_{picture.image_id:012d}.png" for picture in pictures}
    assert {path.name for path in (world / "train2014").iterdir()} == names
    # 64 questions, 10 % of them in three pairs.
    assert len(names) == 61
    path = world / "train2014" / image_name("train", pictures[0].image_id)
    with Image.open(path) as image:
        assert (image.size, image.mode, image.format) == ((56, 56), "RGB", "PNG")
        assert np.array_equal(np.asarray(image), draw_image(SMALL, "train", pictures[0]))
