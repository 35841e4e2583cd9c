from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from lever_pipe.base import seeding
from lever_pipe.report.evidence import STUDENT
from lever_pipe.report.inference.blocks import Array, Block
from lever_pipe.report.inference.endpoints import within_ceiling
from lever_pipe.report.inference.estimates import Draws, Interval, intervals, over_runs, paired_over_runs

DRAWS = Draws(0, 2000, over="tasks")


def means_over_tasks(values: list[list[Array]], draws: Draws, *, are_shares: bool) -> list[Interval]:
    """Return the mean of each list of seeds with their [N] task means."""
    blocks = [Block("a", ("",) * len(seeds), ("e",), np.stack(seeds)[..., None]) for seeds in values]
    return [by_cell[0] for by_cell in intervals(blocks, draws, are_shares=are_shares)]


def test_an_interval_does_not_depend_on_its_neighbours() -> None:
    generator = seeding.generator(1, "blocks")
    blocks = [[generator.normal(size=12) for _ in range(2)] for _ in range(3)]
    together = means_over_tasks([*blocks, [np.zeros(5)]], DRAWS, are_shares=False)
    for block, found in zip(blocks, together[:-1], strict=True):
        (alone,) = means_over_tasks([block], DRAWS, are_shares=False)
        assert alone == pytest.approx(found, rel=1e-12)  # columns of one matrix product round differently


def test_shares_stay_within_their_bounds() -> None:
    nearly = np.array([1.0] * 7 + [0.4])
    free, bound = (means_over_tasks([[nearly]], DRAWS, are_shares=shares)[0] for shares in (False, True))
    assert free.high > 1 >= bound.high
    assert free.low == bound.low
    (sure,) = means_over_tasks([[np.ones(8)]], DRAWS, are_shares=True)
    assert sure.low == pytest.approx(0.025 ** (1 / 8))  # all right: the exact binomial bound


def test_a_reward_stays_between_nothing_and_its_ceiling() -> None:
    assert within_ceiling(Interval(2.0, -0.5, 3.0, 1), 0.1, 2.5) == (2.0, 0.0, 2.5, 1)
    assert within_ceiling(Interval(-0.1, -0.5, 0.2, 1), -0.4, 2.5) == (-0.1, -0.4, 0.2, 1)  # a penalty was seen
    assert math.isnan(within_ceiling(Interval(2.0, math.nan, math.nan, 1), 0.1, 2.5).high)


def test_numbers_of_whole_runs() -> None:
    # mean 2, sd 1, three seeds: half width 4.303 / sqrt(3)
    found = over_runs(np.array([1.0, 2.0, 3.0]))
    assert (found.value, found.high - 2) == pytest.approx((2.0, 4.303 / math.sqrt(3)), abs=1e-3)
    assert math.isnan(over_runs(np.array([1.0])).low)
    assert math.isnan(over_runs(np.array([1.0, math.nan])).value)


def test_differences_of_whole_runs() -> None:
    found = paired_over_runs(np.array([2.0, 3.0, 5.0]), np.ones(3))
    # differences 1, 2 and 4: mean 7 / 3, sd sqrt(7 / 3); detectable (4.303 + 1.061) of their error
    t, p = stats.ttest_rel([2.0, 3.0, 5.0], [1.0, 1.0, 1.0])
    assert (found.difference, found.p, found.test) == (pytest.approx(7 / 3), pytest.approx(p), STUDENT)
    assert (found.high - 7 / 3) / 4.303 == pytest.approx(7 / 3 / t, rel=1e-3)
    assert (found.left_value, found.right_value) == (pytest.approx(10 / 3), 1.0)
    assert found.detectable == pytest.approx((4.303 + 1.061) * math.sqrt(7 / 9), abs=2e-3)
    one = paired_over_runs(np.array([2.0]), np.ones(1))
    assert (one.difference, one.test) == (1.0, "")
    assert math.isnan(one.p)
    assert paired_over_runs(np.ones(3), np.ones(3)).p == 1.0
