"""Sums of floats."""

from __future__ import annotations

from lever_pipe.base.sums import sum_in_order


def test_each_addition_is_rounded_in_every_version_of_python() -> None:
    assert sum_in_order([0.1] * 10) == 0.9999999999999999, "Python 3.12's own sum gives 1.0"
