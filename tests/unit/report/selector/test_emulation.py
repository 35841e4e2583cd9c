"""Each published pattern, its numbers worked out by hand, and the number that turns its verdict."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import pytest
import sentences
from emulated_study import study_of

from lever_pipe.experiment.emulation import Emulate
from lever_pipe.report.catalogue import Translator
from lever_pipe.report.cells import EvidenceLedger, message
from lever_pipe.report.selector import emulation
from lever_pipe.report.selector.patterns import Appearance, Pattern, coincidences, patterns, tables, tally

ENGLISH = Translator("en")
NOT_REPRODUCED = {"reused-rows"}


class EmulationReport(NamedTuple):
    """A pattern as a reader sees it."""

    statement: str
    published: str
    arm: str
    with_bug: str
    without: str
    verdict: str


def report_of(pattern: Pattern) -> EmulationReport:
    texts = (pattern.bug.cell, pattern.control.cell, pattern.verdict)
    first = (ENGLISH.text(pattern.statement), ENGLISH.text(pattern.published), pattern.arm)
    return EmulationReport(*first, *map(ENGLISH.text, texts))


def evaluated(emulate: Emulate = Emulate(), **changed: Any) -> dict[str, EmulationReport]:
    return _evaluated(emulate, **changed) if changed or emulate != Emulate() else unchanged()


@cache
def unchanged() -> dict[str, EmulationReport]:
    return _evaluated(Emulate())


def _evaluated(emulate: Emulate, **changed: Any) -> dict[str, EmulationReport]:
    found = patterns(study_of(emulate, **changed))
    named = {name_of(pattern): report_of(pattern) for pattern in found}
    assert len(named) == len(found)
    return named


def name_of(pattern: Pattern) -> str:
    """Return the name of a pattern, with the bug if several are tried."""
    name = pattern.name.replace("_", "-")
    return f"{name}-{pattern.arm}" if name == "identical-rows" else name


def named(found: dict[str, EmulationReport], verdict: str) -> set[str]:
    return {name for name, pattern in found.items() if pattern.verdict == verdict}


def test_a_study_that_shows_the_patterns_reproduces_all_but_the_reused_rows() -> None:
    found = evaluated()
    assert named(found, "not reproduced") == NOT_REPRODUCED
    assert len(found) == 7
    assert len(named(found, "reproduced")) == 7 - 1


@pytest.mark.parametrize(
    ("holds", "holds_without", "verdict"),
    [
        (True, False, "reproduced"),
        (True, True, "also without the bug"),
        (False, False, "not reproduced"),
        (False, True, "not reproduced"),
    ],
)
def test_a_pattern_that_holds_without_the_bug_is_no_evidence_of_it(
    holds: bool, holds_without: bool, verdict: str
) -> None:
    pattern = Pattern(message("a"), message("b"), "head", 1, Appearance(1, holds), Appearance(1, holds_without))
    assert ENGLISH.text(pattern.verdict) == verdict


def test_the_published_numbers_are_looked_up() -> None:
    """Worked out by hand from the rows of the reference."""
    published = {name: pattern.published for name, pattern in evaluated().items()}
    assert published["identical-rows-head"] == "1 distinct among 6"  # 0.12 and 0.18 twice, 0.145 and 0.155 once
    # 100: 63.2/64.2 and 65.8/63.8; 200: equal; 400: 53.0/54.1, 51.0/51.6; 800: 49.75/49.62, 47.8/48.33
    assert published["reused-rows"] == "6 of 8 and 0 of 8"
    assert published["kl-without-update"] == "0.08082 to 0.08471"
    assert published["kl-falls"] == "0.08213; 0.07177"  # four betas have both epochs
    assert published["repeated"] == published["few-prompts"] == ""


def test_our_numbers_are_those_of_the_arm_and_of_the_control() -> None:
    found = evaluated()
    displayed = {name: (p.arm, p.with_bug, p.without) for name, p in found.items()}
    assert displayed["identical-rows-head"] == ("head", "1 distinct among 6", "6 distinct among 6")
    assert displayed["repeated"] == ("pool", "100.0 %", "0.0 %")
    assert displayed["few-prompts"] == ("pool", "8", "20")
    assert displayed["reused-rows"] == ("pool", "0 of 8 and 0 of 8", "8 of 8 and 8 of 8")
    assert displayed["kl-without-update"] == ("dropout", "0.09000", "0.00000")
    assert displayed["kl-falls"] == ("dropout", "0.09000; 0.08000", "0.00000; 0.00000")


def in_arm(
    arm: str,
    add: float = 1.0,
    *,
    beta: float = 0.12,
    epoch: int = 1,
    shots: tuple[int, ...] = (1,),
    samples: tuple[int, ...] = (100, 200, 400, 800),
) -> Any:
    """Return a change of one policy's accuracies at some shot and sample counts."""

    def change(a: str, b: float, e: int, n: int, k: int, accuracy: float) -> float:
        return accuracy + add if (a, b, e) == (arm, beta, epoch) and k in shots and n in samples else accuracy

    return change


def same_control(arm: str, beta: float, epoch: int, n: int, k: int, accuracy: float) -> float:
    return 50.0 if arm == "none" else accuracy


@pytest.mark.parametrize(
    ("pattern", "changed"),
    [
        ("identical-rows-head", {"change": in_arm("head", 0.01)}),
        ("identical-rows-pool", {"change": in_arm("pool", 0.01)}),
        ("identical-rows-head", {"change": same_control}),
        ("repeated", {"repeated": {"pool": 0.99}}),
        ("repeated", {"repeated": {"none": 0.01}}),
        ("few-prompts", {"prompts": {"pool": 9}}),
        ("few-prompts", {"prompts": {"none": 8}}),
        ("kl-without-update", {"kl": {"dropout": (0.0404, 0.03)}}),  # less than half of 0.08082
        ("kl-without-update", {"kl": {"dropout": (0.1695, 0.1)}}),  # more than twice 0.08471
        ("kl-without-update", {"kl": {"none": (0.081, 0)}}),
        ("kl-falls", {"kl": {"dropout": (0.09, 0.09)}}),
        ("kl-falls", {"kl": {"none": (0.02, 0.01)}}),
    ],
)
def test_a_verdict_turns_with_its_number(pattern: str, changed: dict[str, Any]) -> None:
    before = evaluated()[pattern].verdict
    assert before == "reproduced"
    assert evaluated(**changed)[pattern].verdict != before


@pytest.mark.parametrize("arm", ["head", "pool"])
@pytest.mark.parametrize(
    "unpublished",
    [
        {"samples": (100, 400, 800)},  # the rows of all betas were published at 200 samples
        {"epoch": 3},  # of epochs 1 and 2
        {"beta": 0.145, "epoch": 2},  # and of 0.145 in epoch 1 alone
    ],
)
def test_rows_are_evaluated_in_the_published_cells_only(arm: str, unpublished: dict[str, Any]) -> None:
    changed = evaluated(change=in_arm(arm, 1.0, **unpublished))
    assert changed[f"identical-rows-{arm}"] == evaluated()[f"identical-rows-{arm}"]


def test_the_control_tells_where_training_alone_makes_rows_coincide() -> None:
    def one_row(arm: str, beta: float, epoch: int, n: int, k: int, accuracy: float) -> float:
        return 50.0 + k if (arm, epoch, n) == ("none", 2, 200) else accuracy

    assert coincidences(study_of())["epochs"] == []
    found = evaluated(change=one_row)["identical-rows-head"]
    assert found.without == "5 distinct among 6"  # 0.12 and 0.18 share one after epoch 2
    assert found.verdict == "reproduced"
    (table,) = tables(study_of(change=one_row).context)
    assert "Without any bug, at epoch 2 and 200 samples, all 5 KL_BETA have one row too" in sentences.messages(table)
    everywhere = evaluated(change=same_control)["identical-rows-head"]
    assert everywhere.verdict == "also without the bug"
    assert coincidences(study_of(change=same_control))["epochs"] == ["1", "2", "3"]


def test_rows_would_be_reused_if_two_epochs_agreed_at_many_shots_only() -> None:
    change = in_arm("pool", beta=0.15, epoch=2, shots=(1, 2))
    found = evaluated(change=change)
    assert found["reused-rows"].verdict == "reproduced"
    assert found["reused-rows"].with_bug == "8 of 8 and 0 of 8"


def test_a_smaller_configuration_has_fewer_rows_and_no_wrong_one() -> None:
    found = evaluated(Emulate(kl_betas=(0.12, 0.15), grpo_epochs=1), shots=(1, 2), samples=(20, 40))
    gone = {"identical-rows-head", "identical-rows-pool", "repeated", "reused-rows"}
    assert set(evaluated()) - set(found) == gone
    few = found["few-prompts"]
    assert few.statement == "All checkpoints together make at most 4 prompts of a query."  # two at 1 and at 2 shots
    without_015 = evaluated(Emulate(kl_betas=(0.12, 0.2, 0.3)))
    assert without_015["kl-without-update"].published == "0.08082 to 0.08082"
    assert "reused-rows" not in without_015


def test_a_statement_counts_once_whatever_arms_are_tried() -> None:
    def row(statement: str, published: int | None, holds: bool, without: bool = False) -> Pattern:
        return Pattern(
            message(statement), message("c"), "head", published, Appearance(None, holds), Appearance(None, without)
        )

    rows = [row("A", 1, True), row("A", 1, False), row("A", 1, True, True)]
    rows += [row("B", None, True), row("C", 1, True, True), row("C", 1, True, True), row("D", 1, False)]
    counts = {name: of.value for name, of in tally(rows).items()}
    assert counts == {"reproduced": 1, "all": 2, "aside": 2}  # of A and D; B is not published, C is true without a bug
    # of 6 statements 2 without a published number are set aside, reused rows are missed
    (table,) = tables(study_of().context)
    assert "reproduces 3 of 4 published statements; 2 more" in sentences.messages(table)


def displayed(name: str, study: Any) -> list[list[str]]:
    table = next(table for table in emulation.tables(study.context) if table.id == name)
    return [list(map(ENGLISH.text, row.values())) for row in table.rows]


def test_the_accuracies_stand_below_the_published_ones() -> None:
    rows = {tuple(row[:3]): row[3:] for row in displayed("emulated-accuracies", study_of())}
    # 50 + shots + 2 + 0.1 x place + epoch
    assert rows["none", "1", "0.18"] == ["54.40", "55.40", "56.40", "57.40", "55.90"]
    assert rows["head", "1", "0.18"] == ["53.00", "54.00", "55.00", "56.00", "54.50"]
    assert rows["published", "1", "0.15"] == ["58.8", "56.6", "53.9", "55.2", "56.13"]
    assert ("published", "3", "0.12") not in rows
    assert len(rows) == 3 * 15 + 5 + 3  # 0.12, 0.15 and 0.18 were published for epoch 2


def test_every_number_of_the_tables_is_found_in_the_evidence() -> None:
    context = study_of().context
    ledger = EvidenceLedger(context.evidence)
    found = [table.noted(ledger) for make in (tables, emulation.tables) for table in make(context)]
    assert {table.section for table in found} == {"why", "emulation"}
    assert any(row.subject == "table/patterns" and row.how == "count" and row.source for row in ledger.rows)
