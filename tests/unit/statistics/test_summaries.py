from __future__ import annotations

import math

import pytest

from lever_pipe.base.seeding import generator
from lever_pipe.statistics.summary import mean_and_sd, standard_error_percent


def test_mean_and_sd_by_hand() -> None:
    # 1, 2, 6: mean 3, squares 4 + 1 + 9 = 14, divisor 2.
    assert mean_and_sd([1.0, 2.0, 6.0]) == pytest.approx((3.0, math.sqrt(7)), abs=1e-12)
    mean, sd = mean_and_sd([4.0])
    assert mean == 4.0
    assert math.isnan(sd)
    with pytest.raises(ValueError, match="N >= 1"):
        mean_and_sd([])


def test_standard_error_by_hand() -> None:
    # sqrt(.5 * .5 / 100) = .05; sqrt(.33 * .67 / 400) = .02351
    assert standard_error_percent(0.5, 100) == pytest.approx(5.0, abs=1e-12)
    assert standard_error_percent(0.33, 400) == pytest.approx(2.351, abs=5e-4)
    assert standard_error_percent(1.0, 7) == 0.0
    soft = generator(0, "soft").choice([0.0, 0.6, 1.0], size=500)
    by_sd = 100 * soft.std() / math.sqrt(500)
    assert standard_error_percent(float(soft.mean()), 500) > by_sd


@pytest.mark.parametrize(("accuracy", "n"), [(1.2, 5), (0.5, 0)])
def test_a_share_beyond_one_has_no_error(accuracy: float, n: int) -> None:
    with pytest.raises(ValueError, match="need accuracy"):
        standard_error_percent(accuracy, n)
