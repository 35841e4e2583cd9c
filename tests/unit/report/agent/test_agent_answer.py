from __future__ import annotations

import math

import pytest
from agent_runs import ARMS, Study
from agent_tables import ENGLISH, Tabulated, tabulate
from sentences import answer, notes
from test_arms import compared

from lever_pipe.experiment.agent_training import Schedule
from lever_pipe.report.agent.runs import run_of
from lever_pipe.report.evidence import EvidenceRow
from lever_pipe.report.summaries import Summary

NAN = math.nan


def summary(found: Tabulated) -> Summary:
    assert found.summary is not None
    return found.summary


THREE = Study(arms=tuple(arm.model_copy(update={"seeds": (0, 1, 2)}) if arm.name == "kl_only" else arm for arm in ARMS))
"""As the default configuration: `kl_strong` has one seed."""


def of_three(evidence: list[EvidenceRow]) -> list[EvidenceRow]:
    """Return evidence that gives `kl_only` the numbers of `bundle`, without comparisons of arms at the endpoint."""
    rows = [
        row._replace(subject=row.subject.replace("bundle", "kl_only")) for row in evidence if "bundle" in row.subject
    ]
    selected = [*(row for row in evidence if "kl_only" not in row.subject), *rows]
    return [row for row in selected if not (row.against and row.at == "last")]


@pytest.mark.parametrize(
    ("sampled", "greedy", "finding"),
    [
        ((-0.13, 0.0001), (0.08, 0.001), "sampled score lower and greedy score higher"),
        ((-0.13, 0.0001), (-0.08, 0.001), "score lower in both decodings"),
        ((0.13, 0.0001), (0.08, 0.001), "score higher in both decodings"),
        ((-0.13, 0.3), (0.08, 0.2), "no significant difference from the baseline"),
        ((-0.13, 0.0001), (0.08, 0.2), "sampled score lower and greedy scores: no significant difference"),
        ((-0.13, NAN), (0.08, NAN), "not tested"),
    ],
)
def test_the_headline_is_what_the_tests_over_seeds_allow(
    evidence: list[EvidenceRow], sampled: tuple[float, float], greedy: tuple[float, float], finding: str
) -> None:
    of = {"sampled": sampled, "greedy": greedy}
    rows = [compared("kl_only", mode, *found, 3) for mode, found in of.items()]
    rows += [compared("bundle", mode, 0.01, 0.9, 3) for mode in of]
    rows += [compared("kl_strong", mode, -0.2, 0.0001, 1) for mode in of]  # a single run shows nothing
    found = summary(tabulate([*of_three(evidence), *rows], THREE))
    parts = (
        ["bundle and kl_only – no significant difference from the baseline"]
        if finding == "no significant difference from the baseline"
        else ["bundle – no significant difference from the baseline", f"kl_only – {finding}"]
    )
    assert answer(found).startswith(
        f"With KL: {'; '.join(parts)}. Held-out, minus baseline over the same seeds: bundle ("
    )
    assert (
        "(the published comparison, with KL 0.01; 3 seeds) sampled +1.0 [0.0, 2.0] and greedy +1.0 [0.0, 2.0]; "
        "kl_only (KL 0.01, 3 seeds) sampled "
    ) in answer(found)
    assert answer(found).endswith("kl_strong (KL 0.5, 1 seed) sampled -20.0 and greedy -20.0.")
    is_undone = any(p > 0.05 for _, p in (sampled, greedy))  # intervals here leave out 0
    assert ("Holm-adjusted p" in notes(found)) == is_undone


@pytest.mark.parametrize(
    ("changes", "is_published"),
    [
        ({}, True),
        ({"schedule": Schedule(kind="cosine", warmup_steps=40)}, True),
        ({"kl": 0.05}, False),
        ({"kl_form": "k2_loss"}, False),
        ({"entropy": 0.0}, False),
        ({"schedule": Schedule()}, False),
        ({"schedule": Schedule(kind="cosine")}, False),
        ({"ratio": "sequence"}, False),
        ({"learning_rate": 1e-3}, False),
    ],
)
def test_only_the_published_settings_are_called_the_published_comparison(
    evidence: list[EvidenceRow], changes: dict[str, object], is_published: bool
) -> None:
    arms = tuple(arm.model_copy(update=changes) if arm.name == "bundle" else arm for arm in ARMS)
    assert (
        "bundle (the published comparison" in answer(summary(tabulate(evidence, Study(), arms=arms)))
    ) is is_published


def test_one_seed_is_no_verdict(default: Tabulated, evidence: list[EvidenceRow]) -> None:
    alone = tuple(arm.model_copy(update={"seeds": (0,)}) for arm in ARMS)
    rows = [row for row in evidence if not (row.against and row.at == "last")]
    rows += [compared(arm, mode, -0.2, 0.0001, 1) for arm in ("kl_only", "kl_strong") for mode in ("sampled", "greedy")]
    found = summary(tabulate(rows, Study(arms=alone), arms=alone))
    assert answer(found).startswith("One seed cannot show a difference.")
    assert "not to other seeds" in notes(found)
    assert "[" not in answer(found)
    assert not notes(summary(default))  # bundle has three
    for each in (found, summary(default)):
        assert all(math.isnan(mark.low) for row in each.rows if "1 seed" in ENGLISH(row.label) for _, mark in row.marks)


def test_the_plot_shows_differences_over_the_same_seeds(default: Tabulated) -> None:
    marks = {ENGLISH(row.label): dict(row.marks) for row in summary(default).rows}
    assert list(marks) == ["kl_only (1 seed)", "bundle", "kl_strong (1 seed)"]  # by their coefficient
    for kind, mode in (("a", "sampled"), ("b", "greedy")):
        for name, found in marks.items():
            arm = name.partition(" ")[0]
            seeds = default.view.common(arm, "baseline")
            sides = [[default.view.held_out(run_of(of, seed), mode) for seed in seeds] for of in (arm, "baseline")]
            own, base = (sum(row.value for row in side if row is not None) / len(seeds) for side in sides)
            assert found[kind].value == pytest.approx(100 * (own - base), abs=1e-6)  # type: ignore[index]


def test_each_lack_is_said(evidence: list[EvidenceRow]) -> None:
    def headline(rows: list[EvidenceRow], **changes: object) -> str:
        return answer(summary(tabulate(rows, Study(), **changes)))

    unfinished = "No run to compare has finished."
    assert headline([]) == unfinished
    assert headline([row for row in evidence if "baseline" not in row.subject]) == unfinished
    plain = tuple(arm for arm in ARMS if not arm.kl)
    assert headline(evidence, arms=plain, document_arm="entropy_only") == "No arm has KL."
    greedy = [row for row in evidence if row.mode != "sampled"]
    assert headline(greedy).startswith("With KL: bundle – greedy scores: no significant difference.")
