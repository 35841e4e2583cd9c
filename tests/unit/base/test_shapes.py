from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from lever_pipe.base.shapes import ShapeError, require_shapes, shaped

Check = Callable[..., Any]


@shaped
def product(
    rewards_BG: Tensor, scale: float, weights_B: Tensor | None = None, *, valid_BG: Tensor | None = None
) -> Any:
    return rewards_BG, scale, weights_B, valid_BG


@pytest.mark.parametrize("check", [product, require_shapes])
def test_a_letter_stands_for_one_size(check: Check) -> None:
    scale = {"scale": 2.0} if check is product else {}
    check(rewards_BG=torch.zeros(2, 3), weights_B=torch.zeros(2), valid_BG=torch.zeros(2, 3), **scale)
    with pytest.raises(ShapeError, match="valid_BG"):
        check(rewards_BG=torch.zeros(2, 3), valid_BG=torch.zeros(2, 4), **scale)
    with pytest.raises(ShapeError, match="weights_B"):
        check(rewards_BG=torch.zeros(2, 3), weights_B=torch.zeros(5), **scale)


def test_the_rank_must_match() -> None:
    with pytest.raises(ShapeError, match="flat_BG"):
        require_shapes(flat_BG=torch.zeros(6))


def test_parameters_are_checked_by_place_and_by_name_and_passed_on() -> None:
    rewards, weights = torch.zeros(2, 3), torch.zeros(2)
    assert product(rewards, 2.0, weights) == (rewards, 2.0, weights, None)
    with pytest.raises(ShapeError, match="weights_B"):
        product(rewards, 2.0, torch.zeros(3))
