from __future__ import annotations

import pytest
from claim_files import said
from hypothesis import given
from hypothesis import strategies as st

from lever_pipe.report.cells import Cell, Code, Name
from lever_pipe.report.claims.verdicts import (
    VERDICTS,
    Check,
    Measured,
    NotTestable,
    RuleName,
    judge,
)
from lever_pipe.report.claims.verdicts import verdict as verdict_of

NUMBERS = st.floats(-100, 100).filter(lambda value: abs(value) > 1e-6)
POSITIVE = st.floats(1e-6, 100)
RULES: tuple[RuleName, ...] = ("identity", "fact", "order", "noise", "sameness", "cause")


def verdict(rule: RuleName, *checks: Check, differs: tuple[Cell, ...] = ()) -> str:
    return verdict_of(rule, Measured(None, checks, differs))


@pytest.mark.parametrize(
    ("rule", "checks", "expected"),
    [
        ("identity", [Check(0.004, 0.005)], "supported"),
        ("identity", [Check(-0.004, 0.005), Check(0.006, 0.005)], "contradicted"),
        ("identity", [Check(0.005, 0.005)], "supported"),  # half a unit is within the rounding
        ("order", [Check(0.1), Check(2.0)], "supported"),
        ("order", [Check(0.1), Check(-2.0)], "not supported"),
        ("order", [Check(-0.1), Check(-2.0)], "contradicted"),
        ("order", [Check(0.0)], "contradicted"),  # equal numbers are in no order
        ("noise", [Check(3.0, 2.0)], "supported"),
        ("noise", [Check(1.0, 2.0)], "not supported"),
        ("noise", [Check(-1.0, 2.0)], "not supported"),
        ("noise", [Check(-3.0, 2.0)], "contradicted"),
        ("order", [Check(-1.0, p=0.06)], "not supported"),
        ("order", [Check(-1.0, p=0.04)], "contradicted"),
        ("order", [Check(1.0, p=0.06)], "not supported"),
        ("noise", [Check(0.0, 2.0)], "not supported"),
        ("noise", [Check(3.0, 2.0), Check(1.0, 2.0)], "not supported"),
        ("noise", [Check(1.0, p=0.04)], "supported"),
        ("noise", [Check(1.0, p=0.06)], "not supported"),
        ("noise", [Check(-1.0, p=0.06)], "not supported"),
        ("noise", [Check(-1.0, p=0.04)], "contradicted"),
        ("sameness", [Check(0.1, 0.2, margin=0.3)], "supported"),
        ("sameness", [Check(0.2, 0.2, margin=0.3)], "not supported"),
        ("sameness", [Check(-0.6, 0.2, margin=0.3)], "contradicted"),
        ("cause", [Check(3.0, 2.0)], "supported"),
    ],
)
def test_a_rule_gives_its_verdict(rule: RuleName, checks: list[Check], expected: str) -> None:
    assert verdict(rule, *checks) == expected


def test_a_cause_is_not_testable_while_another_factor_differs() -> None:
    assert verdict("cause", Check(9.0, 1.0), differs=(Code("seed"),)) == "not testable"
    for rule, told in (("cause", True), ("noise", True), ("identity", False)):
        found = judge(rule, lambda: Measured(Name("9 against 1"), (Check(9.0, 1.0),), (Code("seed"), Code("data"))))
        assert ("also different: seed and data" in said(found)) == told


def test_a_missing_number_is_not_testable() -> None:
    def measure() -> Measured:
        raise NotTestable("no_epoch")

    found = judge("fact", measure)
    assert (found.verdict, said(found)) == ("not testable", "No GRPO epoch was evaluated.")


@given(value=NUMBERS, needed=POSITIVE)
def test_turning_the_sentence_round_never_keeps_a_clear_verdict(value: float, needed: float) -> None:
    assert {verdict("order", Check(value)), verdict("order", Check(-value))} == {"supported", "contradicted"}
    there, back = (verdict("noise", Check(sign * value, needed)) for sign in (1, -1))
    assert (there, back) in (("supported", "contradicted"), ("contradicted", "supported"), ("not supported",) * 2)


@given(value=NUMBERS, p=st.floats(0, 1))
def test_tests_are_symmetric(value: float, p: float) -> None:
    turned = {"supported": "contradicted", "contradicted": "supported", "not supported": "not supported"}
    for rule in ("order", "noise"):
        assert verdict(rule, Check(-value, p=p)) == turned[verdict(rule, Check(value, p=p))]


@given(value=NUMBERS, needed=POSITIVE, more=POSITIVE)
def test_more_noise_never_decides(value: float, needed: float, more: float) -> None:
    for rule, margin in (("noise", 0.0), ("sameness", 50.0)):
        little = verdict(rule, Check(value, needed, margin=margin))
        much = verdict(rule, Check(value, needed + more, margin=margin))
        assert much in (little, "not supported")


@given(checks=st.lists(st.builds(Check, NUMBERS, POSITIVE), min_size=1, max_size=4))
def test_every_rule_is_total_and_blind_to_order(checks: list[Check]) -> None:
    for rule in RULES:
        found = verdict(rule, *checks)
        assert found in VERDICTS
        assert verdict(rule, *reversed(checks)) == found
