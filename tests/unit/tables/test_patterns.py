from __future__ import annotations

from typing import Any

import pytest
from emulated_study import study_of

from lever_pipe.config import Emulate
from lever_pipe.tables.emulated_tables import emulated_tables
from lever_pipe.tables.pattern_study import Pattern, percent
from lever_pipe.tables.patterns import COLUMNS, line, pattern_table, patterns

NOT_REPRODUCED = {"reused-rows-pool", "reused-rows-all"}


def judged(emulate: Emulate = Emulate(), **changed: Any) -> dict[str, Pattern]:
    found = patterns(study_of(emulate, **changed))
    assert len({pattern.id for pattern in found}) == len(found)
    return {pattern.id: pattern for pattern in found}


def test_a_study_that_shows_the_patterns_reproduces_all_but_the_reused_rows() -> None:
    found = judged()
    assert {name for name, pattern in found.items() if not pattern.reproduced} == NOT_REPRODUCED
    assert len(found) == 18
    assert {pattern.verdict for pattern in found.values()} == {"reproduced", "not reproduced"}


def test_the_published_numbers_are_looked_up() -> None:
    """Worked out by hand from the rows of the reference."""
    published = {name: pattern.published for name, pattern in judged().items()}
    assert published["identical-rows-head"] == "1 of 6 rows"  # 0.12 and 0.18 twice, 0.145 and 0.155 once
    assert published["identical-choices"] == "100.0 %"
    # 100: 63.2/64.2 and 65.8/63.8; 200: equal; 400: 53.0/54.1, 51.0/51.6; 800: 49.75/49.62, 47.8/48.33
    assert published["reused-rows-pool"] == "6 of 8 and 0 of 8"
    assert published["kl-without-update"] == "0.08082 to 0.08471"
    assert published["kl-level"] == "0.08213"  # (0.08082 + 0.08471 + 0.08164 + 0.08134) / 4
    assert published["kl-falls-without-update"] == "0.08213, 0.07177"  # four betas have both epochs
    assert published["kl-falls"] == "0.08318, 0.07264, 0.07020"  # 0.145 and 0.155 have three
    assert published["ratio-off-one"] == "0.82119 to 0.83802"
    assert published["one-beta-apart"] == "0.88 points against 0.00"  # (1.8 + 0.5 + 1.2 + 0.0) / 4
    assert published["one-beta-alone"] == "2 of 5 rows"
    assert published["adv-std"] == "0.1703"
    assert published["adv-std-rises"] == "0.1703, 0.2328"
    assert published["adv-max"] == "1.154"  # 0.1966 / 0.1703
    assert published["repeated-demonstrations"] == published["few-prompts"] == ""


def test_our_numbers_are_those_of_the_arm_and_of_the_control() -> None:
    found = judged()
    shown = {name: (p.arm, p.with_fault, p.without) for name, p in found.items()}
    assert shown["identical-rows-head"] == ("head", "1 of 12 rows", "12 of 12 rows")
    assert shown["identical-choices"] == ("head", "100.0 %", "90.0 %")
    assert shown["repeated-demonstrations"] == ("pool", "100.0 %", "0.0 %")
    assert shown["few-prompts"] == ("pool", "8", "20")
    assert shown["reused-rows-all"] == ("all", "0 of 8 and 0 of 8", "8 of 8 and 8 of 8")
    assert shown["kl-without-update"] == ("dropout", "0.09000", "0.00000")
    assert shown["kl-level"] == ("dropout", "0.08500", "0.01000")
    assert shown["kl-falls"] == ("dropout", "0.08500, 0.07500, 0.07000", "0.01000, 0.02000, 0.03000")
    # places 0, 1, 3 and 4 among the betas: the others differ by 0.4 at most; 3 - 0.2 to the nearest in `bases`
    assert shown["one-beta-apart"] == ("bases", "2.80 points against 0.40", "0.10 points against 0.40")
    assert shown["one-beta-alone"] == ("all", "2 of 5 rows", "5 of 5 rows")
    assert shown["adv-std"] == ("any", "0.2000 (share 0.2010)", "0.2000 (share 0.2010)")


def in_arm(arm: str, add: float = 1.0, *, beta: float = 0.12, epoch: int = 1, shots: tuple[int, ...] = (1,)) -> Any:
    """Return a change of one policy's accuracies at some shot counts."""

    def change(a: str, b: float, e: int, n: int, k: int, accuracy: float) -> float:
        return accuracy + add if (a, b, e) == (arm, beta, epoch) and k in shots else accuracy

    return change


def same_control(arm: str, beta: float, epoch: int, n: int, k: int, accuracy: float) -> float:
    return 50.0 if arm == "none" else accuracy


@pytest.mark.parametrize(
    ("pattern", "changed"),
    [
        ("identical-rows-head", {"change": in_arm("head", 0.01)}),
        ("identical-rows-pool", {"change": in_arm("pool", 0.01)}),
        ("identical-rows-all", {"change": in_arm("all", 0.01)}),
        ("identical-rows-head", {"change": same_control}),
        ("identical-choices", {"identical": {"head": 0.999}}),
        ("identical-choices", {"identical": {"none": 1.0}}),
        ("repeated-demonstrations", {"repeated": {"pool": 0.99}}),
        ("repeated-demonstrations", {"repeated": {"none": 0.01}}),
        ("few-prompts", {"prompts": {"pool": 9}}),
        ("few-prompts", {"prompts": {"none": 8}}),
        ("kl-without-update", {"kl": {"dropout": (0.08, 0.07, 0.085, 0.075, 0.07)}}),
        ("kl-without-update", {"kl": {"none": (1e-9, 0, 0.01, 0.02, 0.03)}}),
        ("kl-level", {"kl": {"dropout": (0.09, 0.08, 0.11, 0.075, 0.07)}}),
        ("kl-level", {"kl": {"none": (0, 0, 0.08, 0.02, 0.03)}}),
        ("kl-falls-without-update", {"kl": {"dropout": (0.09, 0.09, 0.085, 0.075, 0.07)}}),
        ("kl-falls", {"kl": {"dropout": (0.09, 0.08, 0.085, 0.075, 0.075)}}),
        ("kl-falls", {"kl": {"none": (0, 0, 0.03, 0.02, 0.01)}}),
        ("one-beta-apart", {"change": in_arm("bases", 3, beta=0.15, shots=(1, 2, 3, 4))}),
        ("one-beta-apart", {"change": in_arm("none", -3, beta=0.15, shots=(1, 2, 3, 4))}),
        ("one-beta-alone", {"change": in_arm("all", 3, beta=0.15, shots=(1, 2, 3, 4))}),
        ("one-beta-alone", {"change": in_arm("all", 0.01, beta=0.18)}),
        ("adv-std", {"std": lambda arm, beta, epoch: 0.2 + (beta == 0.12) * 1e-3}),
        ("adv-std", {"std": lambda arm, beta, epoch: 0.2 + (arm == "none") * 1e-3}),
        ("adv-std-rises", {"std": lambda arm, beta, epoch: 0.2}),
    ],
)
def test_a_verdict_turns_with_its_number(pattern: str, changed: dict[str, Any]) -> None:
    assert judged()[pattern].reproduced
    assert not judged(**changed)[pattern].reproduced


def test_rows_would_be_reused_if_two_epochs_agreed_at_many_shots_only() -> None:
    change = in_arm("pool", beta=0.15, epoch=2, shots=(1, 2))
    found = judged(change=change)
    assert found["reused-rows-pool"].reproduced
    assert found["reused-rows-pool"].with_fault == "8 of 8 and 0 of 8"
    assert found["reused-rows-pool"].remark == ""
    assert not found["reused-rows-all"].reproduced
    assert "copied row" in found["reused-rows-all"].remark


def test_a_smaller_configuration_has_fewer_rows_and_no_wrong_one() -> None:
    found = judged(Emulate(kl_betas=(0.12, 0.15), grpo_epochs=1), shots=(1, 2), samples=(20, 40))
    gone = {"identical-rows-head", "identical-rows-pool", "identical-rows-all", "repeated-demonstrations"}
    gone |= {"reused-rows-pool", "reused-rows-all", "kl-falls", "one-beta-apart", "one-beta-alone", "adv-std-rises"}
    assert set(judged()) - set(found) == gone
    few = found["few-prompts"]
    assert few.statement == "All checkpoints together make at most 4 prompts of a query."  # two at 1 and at 2 shots
    without_015 = judged(Emulate(kl_betas=(0.12, 0.2, 0.3), other_kl_beta=0.3))
    assert without_015["one-beta-apart"].published == ""
    assert without_015["kl-level"].published == "0.08082"


def test_the_table_and_the_file_show_the_same_cells() -> None:
    found = list(judged().values())
    table = pattern_table(found, ("note",))
    assert table.document == "why"
    assert table.frame.to_numpy().tolist() == [list(line(pattern)[1:]) for pattern in found]
    assert len(COLUMNS) == len(line(found[0]))
    assert "Reproduced: 16 of 18 patterns." in table.caption
    assert "No inference about training variance: one seed." in table.caption


def test_only_whole_shares_print_as_whole() -> None:
    assert [percent(share) for share in (0.0, 1e-6, 0.12345, 0.99999, 1.0)] == [
        "0.0 %", "0.1 %", "12.3 %", "99.9 %", "100.0 %",
    ]  # fmt: skip


def test_the_tables_have_the_documents_shape() -> None:
    tables = {table.id: table for table in emulated_tables(study_of())}
    assert {table.document for table in tables.values()} == {"why"}
    assert all(table.title.startswith("Emulated: ") for table in tables.values())
    assert len(tables) == 2 + 2 * 6
    frame = tables["why-accuracy-bases"].frame
    assert list(frame.columns) == [
        "Epoch", "KL_BETA", "Source", "Shot 1", "Shot 2", "Shot 3", "Shot 4", "Average", "vs 0.15",
    ]  # fmt: skip
    rows = {tuple(row[:3]): row[3:] for row in frame.to_numpy().tolist()}
    # 50 + shots + 2 + 0.1 x place + epoch, and 3 less for 0.15
    assert rows["1", "0.18", "ours"] == ["54.40", "55.40", "56.40", "57.40", "55.90", "+3.20"]
    assert rows["1", "0.15", "ours"] == ["51.20", "52.20", "53.20", "54.20", "52.70", "reference"]
    assert rows["1", "0.15", "published"] == ["58.80", "56.60", "53.90", "55.20", "56.13", "reference"]
    assert rows["1", "0.12", "published"][-1] == "-0.28"
    assert ("3", "0.12", "published") not in rows
    assert len(rows) == 15 + 5 + 3  # 0.12, 0.15 and 0.18 were published for epoch 2
    by_samples = {tuple(row[:4]): row[4:] for row in tables["why-samples-all"].frame.to_numpy().tolist()}
    assert by_samples["2", "0.15", "800", "ours"] == ["56.00", "57.00", "58.00", "59.00"]
    assert by_samples["2", "0.15", "800", "published"] == ["49.62", "48.33", "47.15", "47.83"]


def test_the_kl_table_puts_both_trainings_beside_the_published_one() -> None:
    frame = next(table for table in emulated_tables(study_of()) if table.id == "why-kl").frame
    rows = {tuple(row[:2]): row[2:] for row in frame.to_numpy().tolist()}
    assert list(frame.columns)[2:] == [
        "Published KL", "KL with dropout", "Exact KL with dropout", "KL without", "Exact KL without",
    ]  # fmt: skip
    assert rows["no update", "1"] == ["", "0.09000", "0.00000", "0.00000", "0.00000"]
    assert rows["0.145", "3"] == ["0.07138", "0.07000", "0.00100", "0.03000", "0.00100"]
    assert len(rows) == 2 + 15


def test_the_nearest_sample_count_stands_in_for_200() -> None:
    study = study_of(Emulate(kl_betas=(0.12, 0.15), grpo_epochs=1), samples=(20, 40), shots=(1, 2))
    table = next(table for table in emulated_tables(study) if table.id == "why-accuracy-head")
    assert table.title == "Emulated: accuracy at 40 samples, arm head"
    assert "published" not in set(table.frame["Source"])
    assert table.notes == ()
