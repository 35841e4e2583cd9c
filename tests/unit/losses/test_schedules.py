from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lever_pipe.losses import schedules
from lever_pipe.losses.schedules import ScheduleKind, cosine, linear

real_rate, real_weight, real_end = (
    schedules.scheduled_rate,
    schedules.adapted_weight,
    schedules.has_settled,
)
kinds = st.sampled_from(("constant", "linear", "cosine"))
weights = st.floats(1e-6, 100)
curves = st.lists(st.integers(-8, 8).map(lambda n: n / 8), min_size=1, max_size=12)

adapted_beta = partial(schedules.adapt_kl_beta, low=0.01, high=0.1, factor=1.5, minimum=0.001, maximum=10.0)
"""With the published constants."""


def rates(
    total: int, kind: ScheduleKind, warmup_steps: int = 0, minimum: float = 0.0, peak: float = 1.0
) -> list[float]:
    """The rates of updates 0..total, the last one being that after the end."""
    return [
        schedules.scheduled_rate(i, total, peak=peak, kind=kind, warmup_steps=warmup_steps, minimum=minimum)
        for i in range(total + 1)
    ]


def test_values_by_hand() -> None:
    # Warm-up of 4: quarters. Then 6 updates of a half cosine: (1 + cos(pi k / 6)) / 2.
    root = math.sqrt(3) / 2
    falling = [1, (1 + root) / 2, 0.75, 0.5, 0.25, (1 - root) / 2, 0]
    assert rates(10, "cosine", 4) == pytest.approx([0, 0.25, 0.5, 0.75, *falling], abs=1e-15)
    assert rates(10, "constant", 4) == [0, 0.25, 0.5, 0.75, *[1.0] * 7]
    # 4 updates from 0.2 to 1 of 0.5, and after a warm-up of 2 back to 0.1.
    assert rates(4, "rising", 0, 0.2, 0.5) == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5], abs=1e-15)
    assert rates(6, "linear", 2, 0.2, 0.5) == pytest.approx([0.1, 0.3, 0.5, 0.4, 0.3, 0.2, 0.1], abs=1e-15)


def published_rate(i: int, total: int, warmup_steps: int, minimum: float) -> float:
    """The published cosine in its own words."""
    if i < warmup_steps:
        return minimum + (1 - minimum) * i / warmup_steps
    p = (i - warmup_steps) / max(1, total - warmup_steps)
    return max(minimum, math.cos(2 * math.pi * 0.5 * p) * (1 - minimum) / 2 + (1 + minimum) / 2)


def test_published_formula() -> None:
    for total, warmup_steps, minimum in ((45, 5, 0.0), (45, 0, 0.3), (465, 46, 0.1), (3, 3, 0.0)):
        wanted = [3e-6 * published_rate(i, total, warmup_steps, minimum) for i in range(total + 1)]
        assert rates(total, "cosine", warmup_steps, minimum, 3e-6) == pytest.approx(wanted, abs=1e-20)


class PublishedController:
    """Ziegler's, as published code has it."""

    def __init__(self, start: float, target: float, horizon: int) -> None:
        self.value, self.target, self.horizon = start, target, horizon

    def update(self, current: float, n_steps: int) -> None:
        proportional_error = np.clip(current / self.target - 1, -0.2, 0.2)
        self.value *= 1 + proportional_error * n_steps / self.horizon


def adapted(weight: float, measured: float, target: float, *, is_bonus: bool = False) -> float:
    """The next weight, at 64 episodes of 640."""
    settings = {"target": target, "episodes": 64, "horizon": 640, "is_bonus": is_bonus}
    return schedules.adapted_weight(weight, measured, **settings)


def test_a_weight_by_hand() -> None:
    # A tenth of the horizon; 10 % too much: 1 + 0.1 / 10. Three times too much and nothing at all count as 20 %.
    assert adapted(0.5, 0.055, 0.05) == pytest.approx(0.505, abs=1e-12)
    assert adapted(0.5, 0.15, 0.05) == pytest.approx(0.51, abs=1e-12)
    assert adapted(0.5, 0.0, 0.05) == pytest.approx(0.49, abs=1e-12)
    assert adapted(0.5, 0.05, 0.05) == 0.5
    # An entropy of 10 % too much needs less of a bonus.
    assert adapted(0.5, 0.55, 0.5, is_bonus=True) == pytest.approx(0.495, abs=1e-12)


def test_the_published_controller() -> None:
    theirs, ours = PublishedController(0.2, 0.03, 640), 0.2
    for step in range(40):
        measured = 0.03 * (1 + 0.5 * math.sin(step))
        ours = adapted(ours, measured, 0.03)
        theirs.update(measured, 64)
        assert ours == pytest.approx(theirs.value, abs=1e-12)


def test_an_end_by_hand() -> None:
    def ends(values: list[float], patience: int, least_change: float) -> list[bool]:
        """After each value, whether the curve has settled."""
        until = [values[: n + 1] for n in range(len(values))]
        return [schedules.has_settled(v, patience=patience, least_change=least_change) for v in until]

    assert ends([1, 2, 2, 3, 1, 2, 3], 2, 0) == [False, False, False, False, False, True, True]  # equal is no rise
    assert ends([1, 1.5, 2, 2.5], 2, 0.75) == [False, False, False, False]  # 2 is 1 above the last rise
    assert ends([1, 1.5, 1.75, 2], 2, 1) == [False, False, True, True]  # 2 is exactly 1 above: not more
    assert ends([-1, -2], 1, 0) == [False, True]


WRONG: list[tuple[object, str, object]] = [
    (
        schedules,
        "scheduled_rate",
        lambda i, n, **s: real_rate(min(i + 1, n), n, **s),
    ),  # counts the update about to be made
    (schedules, "scheduled_rate", lambda i, n, **s: real_rate(i, n, **{**s, "warmup_steps": 0})),
    (schedules, "scheduled_rate", lambda i, n, **s: real_rate(i, n, **{**s, "minimum": 0.0})),
    (schedules, "scheduled_rate", lambda i, n, **s: real_rate(i, n, **{**s, "kind": "cosine"})),
    (schedules, "scheduled_rate", lambda i, n, **s: real_rate(i if s["kind"] != "rising" else n - i, n, **s)),
    (schedules, "scheduled_rate", lambda i, n, **s: real_rate(i, n, **{**s, "peak": 1.0})),
]


def weight_of(published: Callable[..., float]) -> Callable[..., float]:
    """A controller from error, share of the horizon and settings to a factor."""
    return lambda w, m, *, target, episodes, horizon, is_bonus: (
        w * published(m / target - 1, episodes / horizon, -1 if is_bonus else 1)
    )


WRONG += [
    (schedules, "adapted_weight", weight_of(lambda error, share, sign: 1 + sign * error * share)),  # without its limit
    (schedules, "adapted_weight", weight_of(lambda error, share, sign: 1 + sign * max(-0.2, min(0.2, error)))),
    (schedules, "adapted_weight", weight_of(lambda error, share, sign: 1 + max(-0.2, min(0.2, error)) * share)),
    (schedules, "has_settled", lambda v, **s: real_end(v, **{**s, "patience": s["patience"] + 1})),
    (
        schedules,
        "has_settled",
        lambda v, **s: real_end(v, **{**s, "least_change": s["least_change"] - 1e-9}),
    ),  # at least
    # against the value before, not the last rise
    (
        schedules,
        "has_settled",
        lambda v, patience, least_change: (
            len(v) > patience and all(b - a <= least_change for a, b in pairwise(v[-patience - 1 :]))
        ),
    ),
]


@given(weights, st.floats(0, 100), st.floats(1e-3, 100), st.integers(1, 64), st.integers(64, 10_000), st.booleans())
def test_a_weight_moves_towards_its_target_by_a_fifth_of_a_step_s_share_at_most(
    weight: float, measured: float, target: float, episodes: int, horizon: int, is_bonus: bool
) -> None:
    limit = {"target": target, "episodes": episodes, "horizon": horizon}
    found = real_weight(weight, measured, **limit, is_bonus=is_bonus)
    assert abs(found / weight - 1) <= 0.2 * episodes / horizon + 1e-12  # rounding
    assert found > 0
    assert (found - weight) * (measured - target) * (-1 if is_bonus else 1) >= 0
    other = real_weight(weight, measured, **limit, is_bonus=not is_bonus)
    assert found + other == pytest.approx(2 * weight, rel=1e-12)


@given(curves, st.integers(1, 5), st.sampled_from((0.0, 0.125, 0.5)))
def test_a_curve_has_settled_when_nothing_since_the_last_rise_counts(
    values: list[float], patience: int, least_change: float
) -> None:
    """The slow definition: for every value, whether it exceeds the last such value by more than that."""
    rises = [0]
    for i in range(1, len(values)):
        rises += [i] if values[i] > values[rises[-1]] + least_change else []
    has_settled = real_end(values, patience=patience, least_change=least_change)
    assert has_settled == (len(values) - 1 - rises[-1] >= patience)
    assert not has_settled or len(values) > patience


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
        with pytest.raises(ValueError, match="update"):
            real_rate(update, 10, peak=1.0, kind="cosine", warmup_steps=0, minimum=0.0)
    for target, horizon in ((0.0, 64), (0.1, 63)):
        with pytest.raises(ValueError, match=r"target .*horizon"):
            real_weight(1.0, 0.1, target=target, episodes=64, horizon=horizon, is_bonus=False)
    with pytest.raises(ValueError, match="minimum"):
        rates(10, "cosine", minimum=1.5)
    with pytest.raises(ValueError, match="warmup_steps"):
        rates(10, "cosine", warmup_steps=-1)


@pytest.mark.parametrize("progress", [-0.01, 1.01, math.nan])
def test_progress_outside_the_unit_interval_is_an_error(progress: float) -> None:
    for schedule in (linear, cosine):
        with pytest.raises(ValueError, match="progress"):
            schedule(1.0, 0.0, progress)


@pytest.mark.parametrize(
    ("kl_beta", "penalty", "expected"),
    [
        (0.2, 0.11, 0.3),  # above the window: x 1.5
        (0.3, 0.005, 0.2),  # below: / 1.5
        (0.2, 0.1, 0.2),  # on the edges and inside: unchanged
        (0.2, 0.01, 0.2),
        (9.0, 5.0, 10.0),  # limits
        (0.0012, 0.0, 0.001),
    ],
)
def test_adaptive_weight(kl_beta: float, penalty: float, expected: float) -> None:
    assert adapted_beta(kl_beta, penalty) == pytest.approx(expected, abs=1e-12)
