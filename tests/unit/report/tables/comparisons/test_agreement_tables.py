from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from lever_pipe.report.tables.comparisons.agreement import SAME, consequence, mean_shares, tables
from lever_pipe.report.tables.table import Table

from lever_pipe.base.policy_names import group_of
from lever_pipe.metrics.agreement import ParameterDifference
from lever_pipe.report.inference.choices import (
    AgreementRows,
    PairRow,
    ParameterRow,
    PromptRow,
    pairs_of,
    shown_groups,
    trained_groups,
)


def grpo(beta: str, seed: int, epoch: int = 2, base: int = 5, preset: str = "p") -> str:
    return f"preset~{preset}/grpo/base~{base}/beta~{beta}/seed~{seed}/epoch~{epoch}"


def rce(seed: int, epoch: int = 5, preset: str = "p") -> str:
    return f"preset~{preset}/rce/seed~{seed}/epoch~{epoch}"


def measured(pairs: Sequence[PairRow] = (), **parts: Sequence[object]) -> AgreementRows:
    return AgreementRows(pairs, parts.get("parameters", ()), parts.get("prompts", ()))  # type: ignore[arg-type]


def by_id(built: Sequence[Table]) -> dict[str, Table]:
    return {table.id: table for table in built}


# Two betas agree in sequence and as sets for 0.9 and 1.0 of the queries with seed 0 and for 0.7 and 0.8 with seed 1.
TWO_SEEDS = [
    PairRow(grpo("0.1", 0), grpo("0.2", 0), 2, 0.9, 1.0, 0.95),
    PairRow(grpo("0.1", 1), grpo("0.2", 1), 2, 0.7, 0.8, 0.85),
    PairRow(grpo("0.1", 0), grpo("0.2", 0), 1, 1.0, 1.0, 1.0),
    PairRow(grpo("0.1", 1), grpo("0.2", 1), 1, 1.0, 1.0, 0.9),
    PairRow(grpo("0.1", 0), grpo("0.1", 1), 2, 0.25, 0.5, 0.5),
    PairRow(rce(0), grpo("0.1", 0), 2, 0.5, 0.5, 0.5),
    PairRow("baseline/random-0", grpo("0.1", 0), 2, 0.0, 0.1, 0.1),
    PairRow("baseline/random-1", grpo("0.1", 0), 2, 0.2, 0.3, 0.1),
]


def test_the_pairs_that_are_asked_for() -> None:
    names = ["baseline/oracle", "baseline/random-0", rce(0), grpo("0.1", 0), rce(1), rce(0, preset="q")]
    found = {(names[i], names[j]) for i, j in pairs_of(names)}
    assert (rce(0), grpo("0.1", 0)) in found  # within one seed
    assert (rce(0), rce(1)) in found  # the same policy with another seed
    assert (grpo("0.1", 0), rce(1)) not in found  # two policies with two seeds
    assert (rce(0), rce(0, preset="q")) not in found  # two presets
    # The two baselines with each other and with each of the four others, and the two pairs above.
    assert len(found) == 1 + 2 * 4 + 2


def test_on_policy_runs_are_held_against_their_base_and_shown_elsewhere() -> None:
    drawn = [f"preset~p/{run}/seed~0/epoch~2" for run in ("on_policy/base~5/beta~0.1", "reinforce/base~5/beta~0")]
    drawn.append("preset~p/distil/base~5/seed~0/epoch~2")
    names = [rce(0), rce(1), grpo("0.1", 0), *drawn]
    found = {frozenset((names[i], names[j])) for i, j in pairs_of(names)}
    for name in drawn:
        assert {frozenset((rce(0), name)), frozenset((grpo("0.1", 0), name))} <= found
        assert frozenset((rce(1), name)) not in found
    groups = [group_of(name) for name in names]
    assert shown_groups(groups, "p") == shown_groups(groups[:3], "p")
    assert trained_groups([group_of(name) for name in (rce(0), *drawn)], "p") == [group_of(rce(0))]


def test_means_are_over_the_runs_of_two_groups_in_both_directions() -> None:
    shares = mean_shares(TWO_SEEDS)
    one, other = "preset~p/grpo/base~5/beta~0.1/epoch~2", "preset~p/grpo/base~5/beta~0.2/epoch~2"
    assert shares[one, other, 2] == pytest.approx((0.8, 0.9, 0.9), abs=1e-12)  # rounding of a mean
    assert shares[other, one, 2] == shares[one, other, 2]
    assert shares[one, one, 2] == (0.25, 0.5, 0.5)  # one pair of seeds counts once
    assert shares["baseline/random", one, 2] == pytest.approx((0.1, 0.2, 0.1), abs=1e-12)  # two draws
    assert (other, other, 2) not in shares


def test_the_documents_policies_are_chosen() -> None:
    ours = [grpo(beta, 0, epoch, base) for beta in ("0.2", "0", "0.15") for epoch in (1, 2, 3) for base in (2, 5)]
    names = [name.replace("/seed~0", "") for name in ours if not (name.endswith("epoch~3") and "beta~0/" in name)]
    starts = [f"preset~p/rce/epoch~{epoch}" for epoch in (1, 2, 5, 10)]
    known = ["baseline/oracle", "baseline/random", "preset~q/rce/epoch~5", *starts, *names]
    # The base of GRPO, not the last RCE epoch; betas as numbers; the last epoch that each beta has.
    expected = [f"preset~p/grpo/base~5/beta~{beta}/epoch~2" for beta in ("0", "0.15", "0.2")]
    assert shown_groups(known, "p") == ["baseline/random", "baseline/oracle", "preset~p/rce/epoch~5", *expected]
    assert trained_groups(starts, "p") == ["preset~p/rce/epoch~10"]  # without GRPO
    assert shown_groups([], "p") == []


def test_the_matrices_hold_percent_and_the_diagonal_the_seeds() -> None:
    built = by_id(tables(measured(TWO_SEEDS), "p"))
    sequences, sets = built["agreement-sequences"], built["agreement-sets"]
    columns = ["Policy", "Random", "RCE epoch 5", "KL_BETA=0.1", "KL_BETA=0.2"]
    assert list(sequences.frame.columns) == list(sets.frame.columns) == columns
    assert sequences.frame.to_numpy().tolist() == [
        ["Random from the pool", "", "", "10.0", ""],
        ["RCE epoch 5", "", "", "50.0", ""],
        ["GRPO, KL_BETA=0.1, epoch 2", "10.0", "50.0", "25.0", "80.0"],
        ["GRPO, KL_BETA=0.2, epoch 2", "", "", "80.0", ""],
    ]
    assert sets.frame["KL_BETA=0.1"].tolist() == ["20.0", "50.0", "50.0", "90.0"]
    assert "the same 2 demonstrations in the same order" in sequences.caption
    assert "Mean over 2 seeds (0 and 1), each compared within its seed." in sequences.caption
    assert "Diagonal: two seeds or draws of the same policy." in sequences.caption
    assert sequences.document == "agreement"
    assert sequences.groups[1:3] == ("preset~p/rce/epoch~5", "preset~p/grpo/base~5/beta~0.1/epoch~2")


def test_the_captions_say_what_follows() -> None:
    built = by_id(tables(measured(TWO_SEEDS), "p"))
    most = "The largest share of queries for which two policies choose the same demonstrations {}: {} %."
    assert most.format("in the same order", "80.0") in built["agreement-sequences"].caption
    assert most.format("in any order", "90.0") in built["agreement-sets"].caption
    seeds = "Two betas of one seed agree for 80.0 % of queries, two seeds of one beta for 25.0 %."
    assert seeds in built["agreement-sequences"].caption


def test_one_seed_has_no_diagonal_and_says_so() -> None:
    caption = by_id(tables(measured(TWO_SEEDS[:1]), "p"))["agreement-sequences"].caption
    assert "One seed (0)." in caption
    assert "Diagonal" not in caption
    assert "two seeds" not in caption


def test_policies_with_the_same_prompts_are_named_together() -> None:
    groups = [f"preset~p/grpo/base~5/beta~{beta}/epoch~1" for beta in ("0", "0.1", "0.2", "0.3")]
    shares = np.full((4, 4), 0.5)
    for i, j, share in ((0, 1, 0.9996), (0, 3, 0.9999), (1, 3, 0.99169)):
        shares[i, j] = shares[j, i] = share
    text = consequence(shares, groups, "in the same order", 4)
    # The least of the three is 0.99169; a lower bound is rounded down, and the other 0.9 % may be all or nothing.
    assert text == (
        "These 3 policies choose the same demonstrations in the same order for at least 99.1 % of queries, "
        "so their rows must agree: KL_BETA=0, KL_BETA=0.1 and KL_BETA=0.3. "
        "Their accuracies at 4 shots cannot differ by more than 0.9 points."
    )
    # Equal sets in another order are other prompts: nothing must agree.
    assert "must agree" not in consequence(shares, groups, "in any order", 4)
    assert "cannot differ" not in consequence(shares, groups, "in any order", 4)
    assert consequence(np.full((1, 1), math.nan), groups[:1], "in the same order", 4) == ""


def test_one_share_is_rounded_once_wherever_it_stands() -> None:
    rows = [TWO_SEEDS[4], PairRow(grpo("0.1", 0), grpo("0.2", 0), 2, 0.68733, 0.68733, 0.5)]
    table = by_id(tables(measured(rows), "p"))["agreement-sequences"]
    assert table.frame["KL_BETA=0.2"].tolist()[0] == "68.7"
    assert "in the same order: 68.7 %." in table.caption
    assert "Two betas of one seed agree for 68.7 % of queries" in table.caption
    assert "68.8" not in table.caption


@pytest.mark.parametrize(("share", "text"), [(0.98901, ": 98.9 %."), (0.5, ": 50.0 %.")])
def test_bounds_by_hand(share: float, text: str) -> None:
    shares = np.array([[1.0, share], [share, 1.0]])
    assert text in consequence(shares, ["baseline/random", "baseline/oracle"], "in any order", 1)
    at = np.array([[1.0, SAME], [SAME, 1.0]])
    assert "at least 99.0 %" in consequence(at, ["baseline/random", "baseline/oracle"], "in any order", 1)


def test_positions_list_every_two_trained_policies() -> None:
    table = by_id(tables(measured(TWO_SEEDS), "p"))["agreement-positions"]
    assert list(table.frame.columns) == ["Policy", "Other policy", "Position 1", "Position 2"]
    last = table.frame.iloc[-1].tolist()
    # Position 1 at one shot: 1.0 and 0.9; position 2 at two shots: 0.95 and 0.85.
    assert last == ["GRPO, KL_BETA=0.1, epoch 2", "GRPO, KL_BETA=0.2, epoch 2", "95.0", "90.0"]
    assert len(table.frame) == 3  # RCE and the two betas
    assert table.groups[0] == "preset~p/rce/epoch~5 preset~p/grpo/base~5/beta~0.1/epoch~2"


def test_parameters_are_means_over_seeds_one_table_a_preset() -> None:
    rows = [
        ParameterRow(rce(0), "preset~p/init/seed~0", ParameterDifference(100, 100, 4.0, 4.0)),
        ParameterRow(grpo("0", 0), rce(0), ParameterDifference(100, 50, 9.0, 900.0)),
        ParameterRow(grpo("0", 1), rce(1), ParameterDifference(100, 60, 1.0, 400.0)),
        ParameterRow(grpo("0", 0, 1), rce(0), ParameterDifference(100, 1, 1.0, 1.0)),
        ParameterRow(rce(0, 5, "q"), "preset~q/init/seed~0", ParameterDifference(9, 0, 0.0, 1.0)),
    ]
    built = tables(measured(parameters=rows), "p")
    assert [table.id for table in built] == ["agreement-parameters-p", "agreement-parameters-q"]
    cells = built[0].frame.to_numpy().tolist()
    assert cells[0] == ["p", "RCE epoch 5", "Initialisation", "100", "100.00", "2.0000", "100.00"]
    # Shares 0.5 and 0.6; norms 3 and 1; relative norms 3/30 and 1/20.
    assert cells[1] == ["p", "GRPO, KL_BETA=0, epoch 2", "RCE epoch 5", "100", "55.00", "2.0000", "7.50"]
    assert len(cells) == 2  # the last epoch only
    assert "at most 7.50 % of the base's norm" in built[0].caption
    assert "at most" not in built[1].caption


def test_distinct_prompts_by_shots() -> None:
    counts = {"baseline/zero_shot": (8, 8), "baseline/random-0": (8, 7), "baseline/random-1": (8, 8), rce(0): (2, 3)}
    rows = [PromptRow(name, k, 8, n) for name, pair in counts.items() for k, n in zip((1, 2), pair, strict=True)]
    table = by_id(tables(measured(prompts=rows), "p"))["agreement-prompts"]
    assert table.frame.to_numpy().tolist() == [
        ["Zero-shot", "8", "8"],
        ["Random from the pool", "8", "7.5"],
        ["RCE epoch 5", "2", "3"],
    ]
    assert "Distinct prompts of 8 queries" in table.caption
    assert "Fewest at 2 shots: 3." in table.caption


def test_nothing_measured_gives_no_table() -> None:
    assert tables(measured(), "p") == []
