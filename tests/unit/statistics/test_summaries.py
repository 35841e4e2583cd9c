from __future__ import annotations

import math

import pytest

from lever_pipe.statistics.summary import mean_and_sd


def test_mean_and_sd_by_hand() -> None:
    # 1, 2, 6: mean 3, squares 4 + 1 + 9 = 14, divisor 2.
    assert mean_and_sd([1.0, 2.0, 6.0]) == pytest.approx((3.0, math.sqrt(7)), abs=1e-12)
    mean, sd = mean_and_sd([4.0])
    assert mean == 4.0
    assert math.isnan(sd)
    with pytest.raises(ValueError, match="N >= 1"):
        mean_and_sd([])
