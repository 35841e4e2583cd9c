"""Which test a comparison of groups gets, and on how many runs its claim rests."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from lever_pipe.base.seeding import generator
from lever_pipe.report.evidence import SIGN_FLIP, STUDENT
from lever_pipe.report.inference.blocks import Block
from lever_pipe.report.inference.estimates import Draws, Pair, adjusted, differences
from lever_pipe.report.inference.families import ComparisonFamily
from lever_pipe.report.inference.per_question import with_mean
from lever_pipe.report.inference.policy_comparisons import comparison_rows, interval_rows, runs_compared
from lever_pipe.statistics.comparison import holm, t_p_values
from lever_pipe.statistics.crossed import paired_difference

DRAWS = Draws(seed=0, n_resamples=500)


def group(kind: str, *runs: int) -> Block:
    """Return a group of right or wrong answers to 60 questions, at one shot count and its mean."""
    names = [f"baseline/{kind}-{r}" if kind == "random" else f"preset~p/{kind}/seed~{r}/epoch~1" for r in runs]
    shared = generator(0, "questions").random((60, 1))
    values = [
        with_mean((0.6 * shared + 0.4 * generator(0, name).random((60, 1)) < 0.5).astype(float)) for name in names
    ]
    return Block(kind, tuple(names), ("1", "mean"), np.stack(values))


def found(left: Block, right: Block) -> tuple[float, int]:
    pair = Pair(left, right, [("a",), ("b",)])
    ((first, _),) = differences([pair], DRAWS)
    return first.p, runs_compared(pair)


def student(left: Block, right: Block, *, same_runs: bool) -> float:
    estimates = paired_difference(left.values, right.values, same_runs=same_runs)
    return float(t_p_values(estimates)[0])


def test_runs_of_equal_seeds_are_paired() -> None:
    left, right = group("rce", 0, 1, 2), group("grpo", 0, 1, 2)
    assert found(left, right) == pytest.approx((student(left, right, same_runs=True), 3), rel=1e-9)
    assert student(left, right, same_runs=True) != student(left, right, same_runs=False)


def test_other_seeds_and_draws_are_samples_of_their_own() -> None:
    for left, right, n_runs in (
        (group("rce", 0, 1, 2), group("grpo", 1, 2, 3), 3),
        (group("rce", 0, 1), group("random", 0, 1, 2), 2),
        (group("rce", 0), group("random", 0, 1, 2), 1),  # draws of a baseline are no training runs
        (group("rce", 0, 1, 2), group("random", 0), 3),
    ):
        assert found(left, right) == pytest.approx((student(left, right, same_runs=False), n_runs), rel=1e-9)


def test_two_single_runs_are_exchanged() -> None:
    left, right = group("rce", 0), group("grpo", 0)
    one, other = left.values[0, :, 0], right.values[0, :, 0]
    wins, losses = int((one > other).sum()), int((one < other).sum())
    assert found(left, right) == pytest.approx((stats.binomtest(wins, wins + losses).pvalue, 1), abs=1e-9)


def test_groups_with_other_seeds_are_compared_over_those_of_both() -> None:
    groups = {"drawn": group("drawn", 1, 3), "rce": group("rce", 0, 1, 2), "alone": group("rce", 1)}
    single = {"drawn": group("drawn", 1), "rce": group("rce", 1)}
    family = ComparisonFamily("f", 60, (("drawn", "rce"),), "f")
    found, expected = (comparison_rows(of, [family], DRAWS) for of in (groups, single))
    assert found == expected
    assert {(row.n_runs, row.test) for row in found} == {(1, SIGN_FLIP)}
    two = {"drawn": group("drawn", 0, 2), "rce": group("rce", 0, 1, 2)}
    (row, _) = comparison_rows(two, [family], DRAWS)
    paired = student(group("drawn", 0, 2), group("rce", 0, 2), same_runs=True)
    assert (row.p, row.n_runs) == (pytest.approx(paired, rel=1e-9), 2)


def test_equal_answers_have_an_interval_with_a_width() -> None:
    one = group("rce", 0)
    rows = comparison_rows({"a": one, "b": one}, [ComparisonFamily("f", 60, (("a", "b"),), "f")], DRAWS)
    exact = 100 * (1 - 0.025 ** (1 / 60))
    for row in rows:
        assert (row.difference, row.p) == (0, 1)
        assert (row.low, row.high) == pytest.approx((-exact, exact), abs=1e-9)


def test_each_set_of_questions_has_a_stream_of_its_own() -> None:
    rows = interval_rows({"rce": group("rce", 0)}, (30, 60), DRAWS)
    alone = interval_rows({"rce": group("rce", 0)}, (60,), DRAWS)
    assert rows[2:] == alone


def beta_group(beta: str, *seeds: int) -> Block:
    """Return a group of GRPO whose base makes up most of its answers."""
    name = f"preset~p/grpo/base~1/beta~{beta}/epoch~1"
    runs = tuple(name.replace("/epoch", f"/seed~{seed}/epoch") for seed in seeds)
    shared = generator(0, "questions").random((60, 1))
    values = [with_mean((0.8 * shared + 0.2 * generator(0, run).random((60, 1)) < 0.5).astype(float)) for run in runs]
    return Block(name, runs, ("1", "mean"), np.stack(values))


def test_no_comparison_depends_on_which_others_its_family_has() -> None:
    rce = group("rce", 0, 1, 2)
    groups = {"rce": rce, **{beta: beta_group(beta, 0, 1, 2) for beta in ("0", "0.15", "0.18")}}
    pairs = tuple((beta, "rce") for beta in ("0", "0.15", "0.18"))
    together = comparison_rows(groups, [ComparisonFamily("f", 60, pairs, "f")], DRAWS)
    alone = [row for pair in pairs for row in comparison_rows(groups, [ComparisonFamily("f", 60, (pair,), "f")], DRAWS)]
    assert [row._replace(p_holm=row.p) for row in together] == [row._replace(p_holm=row.p) for row in alone]
    assert [row.p_holm for row in together] == pytest.approx(list(holm([row.p for row in together])), rel=1e-9)
    assert [row.p for row in together[::2]] == pytest.approx(
        [student(groups[beta], rce, same_runs=True) for beta, _ in pairs], rel=1e-9
    )
    levels = [(row.left_value, row.right_value) for row in together[::2]]
    assert levels == [(pytest.approx(100 * groups[b].values[..., 0].mean()), levels[0][1]) for b, _ in pairs]
    assert [row.left_value - row.right_value for row in together] == pytest.approx([row.difference for row in together])


def test_a_family_never_mixes_what_infers_to_further_seeds_with_what_does_not() -> None:
    groups = {"rce": group("rce", 0, 1, 2), "0": beta_group("0", 0, 1, 2), "0.15": beta_group("0.15", 1)}
    groups["0.18"] = beta_group("0.18", 2)
    pairs = tuple((beta, "rce") for beta in ("0", "0.15", "0.18"))
    rows = comparison_rows(groups, [ComparisonFamily("f", 60, pairs, "f", ("mean",))], DRAWS)
    assert [(row.family, row.n_runs, row.test) for row in rows] == [
        ("f", 3, STUDENT),
        *[("f-one-run", 1, SIGN_FLIP)] * 2,
    ]
    assert rows[0].p_holm == rows[0].p
    assert sorted(row.p_holm for row in rows[1:])[0] == pytest.approx(min(1, 2 * min(row.p for row in rows[1:])))
    assert adjusted([0.01, 0.02], ["f", "f"], [True, True]) == [(0.02, ""), (0.02, "")]  # of one kind: its name stays
    (one, _, other) = adjusted([0.01, math.nan, 0.02], ["f"] * 3, [False, False, True])
    assert (one, other) == ((0.01, ""), (0.02, "-one-run"))
