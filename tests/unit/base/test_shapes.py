from __future__ import annotations

import pytest
import torch

from lever_pipe.base.shapes import ShapeError, require_shapes


def test_every_letter_gets_its_size() -> None:
    sizes = require_shapes(("scores", "B K", torch.zeros(2, 64)), ("selections", "B G S", torch.zeros(2, 5, 3)))
    assert sizes == {"B": 2, "K": 64, "G": 5, "S": 3}


def test_a_letter_must_stand_for_one_size() -> None:
    with pytest.raises(ShapeError, match=r"second must be \[B G\] with G=3, got \[2, 4\]"):
        require_shapes(("first", "B G", torch.zeros(2, 3)), ("second", "B G", torch.zeros(2, 4)))
    with pytest.raises(ShapeError, match="square must be"):
        require_shapes(("square", "K K", torch.zeros(2, 3)))


def test_numbers_must_match_exactly_and_bind_no_letter() -> None:
    assert require_shapes(("pair", "B 2", torch.zeros(7, 2))) == {"B": 7}
    with pytest.raises(ShapeError, match=r"pair must be \[B 2\] with 2=2, got \[7, 3\]"):
        require_shapes(("pair", "B 2", torch.zeros(7, 3)))


def test_the_rank_must_match() -> None:
    with pytest.raises(ShapeError, match=r"flat must be \[B G\], got shape \[6\]"):
        require_shapes(("flat", "B G", torch.zeros(6)))
    assert require_shapes(("scalar", "", torch.zeros(()))) == {}
