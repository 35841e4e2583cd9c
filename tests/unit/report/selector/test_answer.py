"""The answers of study `lever`: the headline follows from the tests of every mode of GRPO."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import cast

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "stages"))

import synthetic_page as small
from sentences import answer, notes

from lever_pipe.base.policy_names import PolicyName
from lever_pipe.report.catalogue import Translator
from lever_pipe.report.cells import Estimate
from lever_pipe.report.context import ReportContext
from lever_pipe.report.evidence import Evidence, EvidenceRow
from lever_pipe.report.selector.answer import answers, tables
from lever_pipe.report.summaries import Summary

TRANSLATOR = Translator("en")


def summaries(rows: list[EvidenceRow]) -> list[Summary]:
    return list(answers(ReportContext(Evidence(rows), small.config("lever"))))


def texts(rows: list[EvidenceRow]) -> list[str]:
    return [f"{answer(summary)} {notes(summary)}" for summary in summaries(rows)]


def test_grpo_helps_where_only_on_policy_is_separated() -> None:
    beta, grpo = texts(small.of_lever())
    assert grpo.startswith(
        "On-policy GRPO improves on RCE; offline GRPO: no gain detected. "
        "On-policy +3.3 [1.3, 5.3] above RCE, at KL_BETA 0.15; 3 of 3"
    )
    assert "Offline +0.5 [-1.5, 2.5] above RCE, at KL_BETA 0.15; 0 of 3" in grpo
    assert "RCE itself gains +18.9" in grpo
    assert "learning rate 0.0003 against 5e-06" in grpo  # the modes differ in more than who draws
    assert beta.startswith(
        "No KL_BETA was found to be better offline; on-policy, KL_BETA 1 scores lower than 0. "
        "Offline: the 3 values differ by at most"
    )
    assert "On-policy: KL_BETA 1 against 0 is -2.21 [-4.2, -0.2]; 0 is highest of 3." in beta
    assert "best" not in beta + grpo


@pytest.mark.skipif("is_over_betas" not in PolicyName.__annotations__, reason="no means over betas")
def test_the_mean_over_betas_is_the_primary_row_where_there_is_one() -> None:
    over = small.OFFLINE.format("all")
    rows = small.accuracy(over, 0.77, against=small.RCE, family="grpo-over-betas", p_holm=0.01)
    _, grpo = texts(small.of_lever(sampled=False) + rows)
    assert grpo.startswith("Yes. Offline +0.8 [-1.2, 2.8] above RCE, averaged over KL_BETA")
    dots = {
        TRANSLATOR.text(row.label): row.marks[0][1] for row in summaries(small.of_lever(sampled=False) + rows)[1].rows
    }
    levels = [60.25 + 0.61 - i * 0.61 / 4 for i in range(3)]
    assert dots["GRPO offline"].value == pytest.approx(sum(levels) / 3)  # the quantity of the sentence
    alone = [TRANSLATOR.text(row.label) for row in summaries(small.of_lever(sampled=False))[1].rows]
    assert "GRPO offline, β 0.15" in alone  # without a mean it is the beta that the sentence names


NONE = "No GRPO run is part of this configuration."


@pytest.mark.parametrize(
    ("rows", "beta", "grpo"),
    [
        (
            small.of_lever(("0.15",), sampled=False),
            "Only KL_BETA 0.15 ran; a comparison needs two.",
            "No gain was detected.",
        ),
        (
            small.of_lever((), sampled=False),
            NONE,
            NONE,
        ),
        (small.of_lever(sampled=False), "No KL_BETA was found to be better.", "No gain was detected."),
        (
            small.of_lever(),
            "No KL_BETA was found to be better offline; on-policy, KL_BETA 1 scores lower than 0.",
            "On-policy GRPO improves on RCE; offline GRPO: no gain detected.",
        ),
        ([], NONE, NONE),
    ],
)
def test_a_summary_states_what_it_can(rows: list[EvidenceRow], beta: str, grpo: str) -> None:
    of_beta, of_grpo, *_ = map(answer, summaries(rows))
    assert of_beta.startswith(beta)
    assert of_grpo.startswith(grpo)


@pytest.mark.parametrize(
    ("levels", "text"),
    [
        ((60.0, 60.0, 60.0), "Offline: all 3 values tie;"),
        (
            (60.0, 60.0, 59.0),
            "Offline: the 3 values differ by at most 1.00 points, KL_BETA 0 and 0.15 tie for the highest;",
        ),
        (
            (59.999, 60.0, 59.0),
            "Offline: the 3 values differ by at most 1.00 points, KL_BETA 0 and 0.15 tie for the highest;",
        ),
        ((59.0, 60.0, 59.0), "Offline: the 3 values differ by at most 1.00 points, KL_BETA 0.15 is highest;"),
    ],
)
def test_equal_values_tie(levels: tuple[float, ...], text: str) -> None:
    by_group = {small.OFFLINE.format(beta): level for beta, level in zip(small.BETAS, levels, strict=True)}
    rows = [
        row._replace(value=by_group[row.subject]) if row.subject in by_group and not row.against else row
        for row in small.of_lever(sampled=False)
    ]
    assert text in texts(rows)[0]


def test_one_seed_is_told() -> None:
    assert all("One seed gives no information about other seeds." in text for text in texts(small.of_lever(runs=1)))
    assert not any("One seed" in text for text in texts(small.of_lever()))


def test_a_difference_over_fewer_seeds_has_the_base_line_of_these() -> None:
    rows = small.of_lever()
    name = small.ON_POLICY.format("0").replace("on_policy", "reinforce")
    rows += small.accuracy(name, 62.5, runs=1)
    rows += small.accuracy(name, 2.0, against=small.RCE, family="marks", p_holm=0.5, runs=1)
    (ladder,) = tables(ReportContext(Evidence(rows), small.config("lever")))
    rows_of = {TRANSLATOR.text(row["Policy"]): row for row in ladder.rows}
    (own,) = (of for text, of in rows_of.items() if text.startswith("REINFORCE"))
    (same,) = (of for text, of in rows_of.items() if "same seeds as REINFORCE" in text)
    mine, theirs, gap = (
        cast("Estimate", of) for of in (own["Accuracy (%)"], same["Accuracy (%)"], own["Gain over RCE"])
    )
    assert mine.value - theirs.value == pytest.approx(gap.value)
