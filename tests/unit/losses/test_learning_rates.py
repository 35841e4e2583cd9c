from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lever_pipe.losses import learning_rates
from lever_pipe.losses.learning_rates import ScheduleKind

real_rate = learning_rates.scheduled_rate
kinds = st.sampled_from(("constant", "cosine"))


def rates(
    total: int, kind: ScheduleKind, warmup_steps: int = 0, minimum: float = 0.0, peak: float = 1.0
) -> list[float]:
    """The rates of updates 0..total, the last one being that after the end."""
    return [
        learning_rates.scheduled_rate(i, total, peak=peak, kind=kind, warmup_steps=warmup_steps, minimum=minimum)
        for i in range(total + 1)
    ]


def check_the_first_update_of_a_warm_up_moves_nothing() -> None:
    for kind in ("constant", "cosine"):
        assert rates(10, kind, warmup_steps=4)[0] == 0.0
        assert rates(10, kind, warmup_steps=4, minimum=0.1, peak=2.0)[0] == 0.2


def check_the_peak_is_reached_at_the_end_of_the_warm_up() -> None:
    for kind in ("constant", "cosine"):
        for warmup_steps in (0, 1, 4, 10):
            ramp = rates(10, kind, warmup_steps, minimum=0.1, peak=2e-4)
            assert ramp[warmup_steps] == 2e-4
            assert all(rate < 2e-4 for rate in ramp[:warmup_steps])


def check_values_by_hand() -> None:
    # Warm-up of 4: quarters. Then 6 updates of a half cosine: (1 + cos(pi k / 6)) / 2.
    root = math.sqrt(3) / 2
    falling = [1, (1 + root) / 2, 0.75, 0.5, 0.25, (1 - root) / 2, 0]
    assert rates(10, "cosine", 4) == pytest.approx([0, 0.25, 0.5, 0.75, *falling], abs=1e-15)
    assert rates(10, "constant", 4) == [0, 0.25, 0.5, 0.75, *[1.0] * 7]


def check_the_cosine_ends_at_its_minimum() -> None:
    assert rates(10, "cosine", 4, minimum=0.1, peak=2.0)[-1] == 0.2
    assert min(rates(10, "cosine", 4, minimum=0.1, peak=2.0)[4:]) == 0.2
    assert rates(10, "cosine", 0)[-1] == 0.0


def published_rate(i: int, total: int, warmup_steps: int, minimum: float) -> float:
    """The published cosine in its own words."""
    if i < warmup_steps:
        return minimum + (1 - minimum) * i / warmup_steps
    p = (i - warmup_steps) / max(1, total - warmup_steps)
    return max(minimum, math.cos(2 * math.pi * 0.5 * p) * (1 - minimum) / 2 + (1 + minimum) / 2)


def check_published_formula() -> None:
    for total, warmup_steps, minimum in ((45, 5, 0.0), (45, 0, 0.3), (465, 46, 0.1), (3, 3, 0.0)):
        wanted = [3e-6 * published_rate(i, total, warmup_steps, minimum) for i in range(total + 1)]
        assert rates(total, "cosine", warmup_steps, minimum, 3e-6) == pytest.approx(wanted, abs=1e-20)


CHECKS = (
    check_the_first_update_of_a_warm_up_moves_nothing,
    check_the_peak_is_reached_at_the_end_of_the_warm_up,
    check_values_by_hand,
    check_the_cosine_ends_at_its_minimum,
    check_published_formula,
)


@pytest.mark.parametrize("check", CHECKS)
def test_learning_rates_pass_the_checks(check: Callable[[], None]) -> None:
    check()


@pytest.mark.parametrize(
    "broken",
    [
        lambda i, n, **s: real_rate(min(i + 1, n), n, **s),  # counts the update about to be made
        lambda i, n, **s: real_rate(i, n, **{**s, "warmup_steps": 0}),
        lambda i, n, **s: real_rate(i, n, **{**s, "warmup_steps": s["warmup_steps"] + 1}),
        lambda i, n, **s: real_rate(i, n, **{**s, "minimum": 0.0}),
        lambda i, n, **s: real_rate(i, n, **{**s, "kind": "constant"}),
        lambda i, n, **s: real_rate(i, n, **{**s, "kind": "cosine"}),
        lambda i, n, **s: real_rate(i, n + 1, **s),
        lambda i, n, **s: real_rate(i, n, **{**s, "peak": 1.0}),
        lambda i, n, **s: s["peak"] * math.cos(math.pi / 2 * i / n),  # a quarter wave
    ],
)
def test_the_checks_reject_a_broken_schedule(broken: Callable[..., float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learning_rates, "scheduled_rate", broken)
    with pytest.raises(AssertionError):
        for check in CHECKS:
            check()


@given(st.integers(1, 60), st.integers(0, 70), st.floats(0, 1), kinds)
def test_rates_rise_to_the_peak_and_never_again(
    total: int, warmup_steps: int, minimum: float, kind: ScheduleKind
) -> None:
    values = rates(total, kind, warmup_steps, minimum)
    assert all(minimum - 1e-12 <= value <= 1 + 1e-12 for value in values)  # rounding
    rising, falling = values[: warmup_steps + 1], values[warmup_steps:]
    assert all(first <= second + 1e-12 for first, second in pairwise(rising))
    assert all(first >= second - 1e-12 for first, second in pairwise(falling))


def test_impossible_input_is_an_error() -> None:
    for update in (-1, 11):
        with pytest.raises(ValueError, match=r"update must be in \[0, total=10\]"):
            real_rate(update, 10, peak=1.0, kind="cosine", warmup_steps=0, minimum=0.0)
    with pytest.raises(ValueError, match="minimum must be a share"):
        rates(10, "cosine", minimum=1.5)
    with pytest.raises(ValueError, match="steps must be at least 0"):
        rates(10, "cosine", warmup_steps=-1)
