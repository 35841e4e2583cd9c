from __future__ import annotations

import math

import pytest
from agent_runs import ARMS, Study
from agent_tables import SAY, Tabulated, tabulate
from test_arms import compared, judged

from lever_pipe.report.cards import Card
from lever_pipe.report.evidence import EvidenceRow

NAN = math.nan


def card(found: Tabulated) -> Card:
    assert found.card is not None
    return found.card


@pytest.mark.parametrize(
    ("sampled", "greedy", "headline"),
    [
        ((-0.13, 0.0001), (0.08, 0.001), "It depends on decoding."),
        ((-0.13, 0.0001), (-0.08, 0.001), "It lowers the score in both decodings."),
        ((0.13, 0.0001), (0.08, 0.001), "It raises the score in both decodings."),
        ((-0.13, 0.3), (0.08, 0.2), "No effect is shown."),
        ((-0.13, 0.0001), (0.08, 0.2), "With KL: sampled score lower; greedy score not shown to differ."),
        ((-0.13, NAN), (0.08, NAN), "Its differences are not tested."),
    ],
)
def test_the_headline_is_what_the_tests_allow(
    evidence: list[EvidenceRow], sampled: tuple[float, float], greedy: tuple[float, float], headline: str
) -> None:
    rows = [compared("kl_strong", "sampled", *sampled, 3), compared("kl_strong", "greedy", *greedy, 3)]
    found = card(judged(evidence, *rows))
    assert SAY(found.headline) == headline
    assert SAY(found.detail).startswith("kl_strong (KL 0.5) minus baseline, held-out, 1 seed: sampled ")


def test_one_seed_speaks_of_these_runs_alone(default: Tabulated, evidence: list[EvidenceRow]) -> None:
    assert "infers nothing about other seeds" in SAY(card(default).notes)
    three = tuple(arm.model_copy(update={"seeds": (0, 1, 2)}) if arm.name == "kl_only" else arm for arm in ARMS)
    rows = [
        row._replace(subject=row.subject.replace("bundle", "kl_only")) for row in evidence if "bundle" in row.subject
    ]
    kept = [row for row in evidence if "kl_only" not in row.subject]
    found = card(tabulate([*kept, *rows], Study(arms=three)))
    # an arm of several seeds goes before a stronger one of a single run
    assert SAY(found.detail).startswith("kl_only (KL 0.01) minus baseline, held-out, 3 seeds: ")
    assert found.notes is None


def test_the_plot_subtracts_to_the_difference(default: Tabulated) -> None:
    marks = {SAY(row.label): dict(row.marks) for row in card(default).rows}
    assert list(marks) == ["start policy", "baseline", "kl_only", "bundle", "kl_strong"]  # by their coefficient
    for kind, mode in (("a", "sampled"), ("b", "greedy")):
        gap = default.view.difference("kl_strong", mode)
        assert gap is not None
        own, base = marks["kl_strong"][kind], marks["baseline"][kind]  # type: ignore[index]
        assert own.value - base.value == pytest.approx(gap.value, abs=1e-6)


def test_each_lack_is_said(evidence: list[EvidenceRow]) -> None:
    def headline(rows: list[EvidenceRow], **changes: object) -> str:
        return SAY(card(tabulate(rows, Study(), **changes)).headline)

    unfinished = "No run to compare has finished."
    assert headline([]) == unfinished
    assert headline([row for row in evidence if "baseline" not in row.subject]) == unfinished
    plain = tuple(arm for arm in ARMS if not arm.kl)
    assert headline(evidence, arms=plain, document_arm="entropy_only") == "No arm has KL."
    greedy = [row for row in evidence if row.mode != "sampled"]
    assert headline(greedy) == "With KL: greedy score not shown to differ."
