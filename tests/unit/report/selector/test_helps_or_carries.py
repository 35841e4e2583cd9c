"""The report's statements on copied answers concern the best trained policy and its base."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "stages"))

import synthetic_page as small
from sentences import sentence

from lever_pipe.report.catalogue import Translator
from lever_pipe.report.context import ReportContext
from lever_pipe.report.evidence import Evidence, EvidenceRow
from lever_pipe.report.selector.copying import CONTROLS, MEASURES, best_and_base, tables

TRANSLATOR = Translator("en")
BEST = small.ON_POLICY.format("1")


def copied(group: str, llm: float) -> list[EvidenceRow]:
    values = {measure: llm - 0.1 * i for i, measure in enumerate(MEASURES)}
    return [EvidenceRow("lever", group, f"copying.{of}", value, shots="2") for of, value in values.items()]


def of(*rows: EvidenceRow) -> ReportContext:
    return ReportContext(Evidence([*small.of_lever(), *rows]), small.config("lever"))


def test_the_sentence_is_of_the_policy_that_earns_most() -> None:
    context = of(*copied(small.RCE, 0.6), *copied(small.ON_POLICY.format("0"), 0.7), *copied(BEST, 0.8))
    text = sentence("section_selector", {"separated": [], "copying": best_and_base(context)})
    assert "2 demonstrations of On-policy GRPO, KL_BETA 1, the best of 3 policies, the LVLM scores 80.0 %" in text
    assert "a vote over the displayed answers 70.0 %" in text
    assert "the LVLM scores 40.0 % (with RCE 20.0 %" in text
    (table,) = tables(context)
    assert [TRANSLATOR.text(row["Policy"]) for row in table.rows] == [
        "RCE", "On-policy GRPO, KL_BETA 0", "On-policy GRPO, KL_BETA 1",
    ]  # fmt: skip


def test_without_what_it_compares_nothing_is_said() -> None:
    assert best_and_base(of()) is None
    assert best_and_base(of(*copied(small.RCE, 0.6))) is None


def test_controls_of_the_policy_that_earns_most_are_told() -> None:
    values = dict(zip(CONTROLS, (0.3, 0.5, 0.7), strict=True))
    rows = [EvidenceRow("lever", BEST, f"copying.{of}", value, shots="2") for of, value in values.items()]
    context = of(*copied(small.RCE, 0.6), *copied(BEST, 0.8), *rows)
    text = sentence("section_selector", {"separated": [], "copying": best_and_base(context)})
    assert "one run of On-policy GRPO, KL_BETA 1 scores 30.0 % with blank images in its demonstrations, 50.0 %" in text
    (table,) = tables(context)
    assert len(table.heads) == 1 + len(MEASURES) + len(CONTROLS)
    assert all(table.rows[0][head] is None for head in CONTROLS.values())  # of RCE there are none
