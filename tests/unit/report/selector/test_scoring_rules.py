"""The page lists the scoring rules of answers, with the number of answers that the cut empties."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "stages"))

import synthetic_page as small
from sentences import sentence

from lever_pipe.report import sources
from lever_pipe.report.context import ReportContext
from lever_pipe.report.evidence import Evidence
from lever_pipe.report.selector.data import scoring


@pytest.mark.parametrize(
    ("answers", "rule", "texts"),
    [
        ("stemmed", "when_they_disagree", ("annotations' answer, which OK-VQA stems", "where they differ")),
        ("raw", "always", ("words (raw_answer)", "always normalised")),
        ("raw", "punctuation_only", ("words (raw_answer)", "first revision")),
    ],
)
def test_the_rules_and_the_emptied_answers_are_told(
    tmp_path: Path, answers: str, rule: str, texts: tuple[str, ...]
) -> None:
    path = tmp_path / "scoring.json"
    path.write_text(json.dumps({"answers": answers, "normalise_references": rule, "prompts": 3200, "emptied": 7}))
    context = ReportContext(Evidence([*small.of_lever(), *sources.facts("scoring", path)]), small.config("lever"))
    text = sentence("section_limits", {"studies": ["lever"], "is_world": False, "scoring": scoring(context)})
    assert all(part in text for part in (*texts, "empties 7 of 3200 answers")), text


def test_without_the_study_nothing_is_told() -> None:
    assert scoring(ReportContext(Evidence(small.of_lever()), small.config("lever"))) is None
