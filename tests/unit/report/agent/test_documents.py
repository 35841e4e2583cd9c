from __future__ import annotations

import numpy as np
import pytest
from agent_runs import ARMS, Study
from agent_tables import ENGLISH, Tabulated, tabulate
from claim_files import KL, NO_KL, STEPS
from hypothesis import given
from hypothesis import strategies as st

from lever_pipe.report.agent.document_004 import _remarks
from lever_pipe.report.agent.runs import run_of, values_of
from lever_pipe.report.cells import numbers_in
from lever_pipe.report.evidence import EvidenceRow
from lever_pipe.report.measures import measured
from lever_pipe.statistics.comparison import holm

OURS, PUBLISHED, SEEDS = "ours", "published", (0, 1, 2)
PRINTED = ["-0.123", "+0.142", "-0.132", "-0.035", "-0.030", "-0.222", "-0.260", "-0.027", "-0.197"]
ESTIMATES = ["1.85", "1.90", "1.95", "2.00", "2.05", "2.10", "2.15"]
IDS = [
    *("003-configuration", "003-validation-reward", "003-losses"),
    *("004-answer", "004-steps-to-best", "004-step-by-step", "004-changes", "004-stability", "004-assessment"),
    "advice",
]


def curves(default: Tabulated, arm: str, mode: str) -> list[list[float]]:
    """Return the rewards after the start of every seed."""
    return [list(values_of(default.view.curve(run_of(arm, seed), mode)).values())[1:] for seed in SEEDS]


def test_the_configuration(default: Tabulated) -> None:
    def cells(setting: str, source: str) -> tuple[str, str]:
        row = default.row("003-configuration", Setting=setting, Source=source)
        return row["no KL"], row["KL bundle"]

    assert cells("Model", PUBLISHED) == ("Qwen3-8B", "Qwen3-8B")
    assert cells("KL loss", PUBLISHED) == cells("KL loss", OURS) == ("no", "yes (0.01)")
    assert cells("Entropy coefficient", PUBLISHED) == cells("Entropy coefficient", OURS) == ("0", "0.01")
    assert (cells("Learning rate", PUBLISHED), cells("Learning rate", OURS)) == (
        ("1e-6", "not stated"),
        ("0.0002",) * 2,
    )
    assert cells("Learning-rate schedule", PUBLISHED) == ("fixed", "warmup+cosine")
    assert cells("Learning-rate schedule", OURS) == ("fixed", "5 steps of warm-up, then cosine")
    assert cells("Responses a prompt", PUBLISHED) == cells("Responses a prompt", OURS) == ("8", "8")
    assert (cells("Executed steps", PUBLISHED), cells("Executed steps", OURS)) == (("485", "465"), ("45", "45"))
    assert cells("Device", PUBLISHED) == ("3 GPUs (by its folder's name)",) * 2
    assert "no KL is our arm baseline" in default.messages("003-configuration")


def test_every_printed_reward_estimate_and_difference(default: Tabulated) -> None:
    rows = default.rows("003-validation-reward", Source=PUBLISHED)
    assert [row["Step"] for row in rows] == [*map(str, STEPS), "best"]
    assert [row["no KL"] for row in rows[:-1]] == ["1.818", *(f"{text} (estimate)" for text in ESTIMATES), "2.202"]
    assert [row["KL bundle"] for row in rows[:-1]] == [f"{value:.3f}" for value in KL]
    marks = ["", *[" (to an estimate)"] * 7, ""]
    assert [row["Difference"] for row in rows[:-1]] == [a + b for a, b in zip(PRINTED, marks, strict=True)]
    best = rows[-1]
    assert (best["no KL"], best["KL bundle"], best["Difference"]) == ("2.202 (step 45)", "2.123 (step 40)", "-0.079")


def test_our_rewards_are_means_over_seeds_in_both_decodings(default: Tabulated) -> None:
    rows = default.rows("003-validation-reward", Source=OURS)
    assert [row["Step"] for row in rows] == [*map(str, range(0, 50, 5)), "best"]
    for mode, suffix in (("greedy", ""), ("sampled", ", sampled")):
        means = [np.mean(curves(default, arm, mode), axis=0) for arm in ("baseline", "bundle")]
        displayed = [[float(row[f"{name}{suffix}"]) for row in rows[1:-1]] for name in ("no KL", "Difference")]
        assert displayed[0] == pytest.approx(means[0], abs=5.01e-4)  # three decimals
        assert displayed[1] == pytest.approx(means[1] - means[0], abs=5.01e-4)


def test_losses_stand_at_the_printed_steps(default: Tabulated) -> None:
    def cells(metric: str, run: str, source: str) -> list[str]:
        row = default.row("003-losses", Metric=metric, Run=run, Source=source)
        return [row[f"Step {step}"] for step in (1, 5, 40, 45)]

    assert cells("PG loss", "no KL", PUBLISHED) == ["0.280", "0.033", "", ""]
    assert cells("PG loss", "KL bundle", PUBLISHED) == ["0.201", "", "0.175", ""]
    assert cells("KL loss", "KL bundle", PUBLISHED) == ["0.003", "", "0.084", "0.114"]
    assert cells("Entropy, all", "KL bundle", PUBLISHED) == ["0.216", "", "0.256", "0.281"]
    assert not default.rows("003-losses", Metric="KL loss", Run="no KL", Source=PUBLISHED)  # not logged
    # KL 0.0009 x step and 1e-4 a seed; 0.001 without the KL loss
    assert cells("KL loss", "KL bundle", OURS) == ["0.001", "0.005", "0.036", "0.041"]
    assert cells("KL loss", "no KL", OURS) == ["0.001", "0.005", "0.040", "0.045"]


def test_the_core_answer(default: Tabulated) -> None:
    best = default.row("004-answer", Quantity="Best reward", Source=PUBLISHED)
    assert (best["no KL"], best["KL bundle"], best["Difference"]) == ("2.202", "2.123", "-0.079 (-3.6 %)")
    mean = default.row("004-answer", Quantity="Mean over evaluations", Source=PUBLISHED)
    assert (mean["no KL"], mean["KL bundle"], mean["Difference"], mean["p"]) == ("1.935", "1.904", "-0.031", "0.563")
    assert default.row("004-answer", Quantity="Rating")["no KL"] == "5 of 5 stars"
    assert default.messages("004-answer").startswith("Published curves: not separated (p 0.563). Ours, held-out, ")
    held_out = default.rows("004-answer", Quantity="Held-out")
    assert [row["Decoding"] for row in held_out] == ["greedy", "sampled"]
    for mode in ("greedy", "sampled"):
        row = default.row("004-answer", Quantity="Best reward", Source=OURS, Decoding=mode)
        best_of = [max(curve) for curve in curves(default, "baseline", mode)]
        assert float(row["no KL"]) == pytest.approx(sum(best_of) / 3, abs=5.01e-4)


def test_step_by_step_is_as_printed_with_computed_remarks(default: Tabulated) -> None:
    rows = default.rows("004-step-by-step", Source=PUBLISHED)
    assert [row["Step"] for row in rows] == [*map(str, STEPS)]
    assert ([float(row["no KL"]) for row in rows], [float(row["KL bundle"]) for row in rows]) == (NO_KL, KL)
    printed = [-0.123, -0.148, -0.072, 0.085, 0.220, 0.040, -0.200, 0.120, -0.197]
    assert [float(row["Difference"]) for row in rows] == pytest.approx(printed, abs=1e-9)
    sentence = {row["Step"]: row["Remark"] for row in rows}
    # the document calls step 25 a sharp fall; the fall at step 15 was larger
    assert sentence["15"] == "no KL ahead; both fall; largest fall of no KL; largest fall of KL bundle"
    assert sentence["40"] == "KL bundle ahead; no KL falls; KL bundle rises; best of KL bundle"
    assert default.row("004-step-by-step", Step="0")["Remark"] == ""  # the documents evaluated no start


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), min_size=1, max_size=6))
def test_remarks_of_any_two_curves(pairs: list[tuple[int, int]]) -> None:
    rows = [
        {step: EvidenceRow("intention", "x", "reward", float(pair[side])) for step, pair in enumerate(pairs)}
        for side in (0, 1)
    ]
    found = {step: ENGLISH(cell) for step, cell in _remarks(*rows).items()}
    assert list(found) == list(range(len(pairs)))
    for step, text in found.items():
        sign = np.sign(pairs[step][1] - pairs[step][0])
        assert text.split("; ")[0] == {1: "KL bundle ahead", -1: "no KL ahead", 0: "equal"}[int(sign)]
    for name, curve in zip(("no KL", "KL bundle"), rows, strict=True):
        assert [step for step, text in found.items() if f"best of {name}" in text] == [
            measured("best_step", values_of(curve))
        ]


def test_stability(default: Tabulated) -> None:
    def cells(statistic: str) -> tuple[str, str]:
        row = default.row("004-stability", Statistic=statistic, Source=PUBLISHED)
        return row["no KL"], row["KL bundle"]

    assert cells("Largest change") == ("17.7 (printed: 14.1)", "17.5 (printed: 15.4)")
    assert cells("Standard deviation of changes") == ("0.2027", "0.1947")
    assert cells("Largest drawdown") == ("0.390", "0.224")
    row = default.row("004-stability", Statistic="Total variation", Source=OURS, Decoding="sampled")
    mean = np.mean([np.abs(np.diff(curve)).sum() for curve in curves(default, "bundle", "sampled")])
    assert float(row["KL bundle"]) == pytest.approx(mean, abs=5.01e-4)


def test_no_winner_without_a_test(default: Tabulated) -> None:
    published = default.rows("004-assessment", Source=PUBLISHED)
    assert [(row["Dimension"].partition(":")[0], row["Winner as printed"]) for row in published] == [
        ("Best reward", "no KL (KL -3.6 %)"),
        ("Step of the best reward", "KL bundle (-5 steps)"),
        ("Stability", "KL bundle"),
        ("Early", "no KL"),
        ("Middle", "KL bundle"),
        ("Late", "no KL (KL -3.6 %)"),
    ]
    tests = [each.published.p for each in default.context.claims_of("004-assessment")]
    adjusted = [f"not separated (p {p:.3f})" for p in holm([p.value for p in tests if p is not None])]
    adjusted.insert(1, "not separated (one evaluation apart)")
    assert [row["By the test"] for row in published] == adjusted
    assert (published[4]["no KL"], published[4]["KL bundle"]) == ("0.290", "0.142")
    assert published[3]["KL bundle"] == "1.818"  # (1.695 + 1.992 + 1.768) / 3


def test_a_comparison_has_one_p_on_every_page(default: Tabulated) -> None:
    """The best reward is in the table of advice and in the assessment: one verdict, one row of the evidence."""
    sources: dict[str, set[str]] = {"advice": set(), "004-assessment": set()}
    for name, found in sources.items():
        cells = [cell for row in default.tables[name].rows for cell in row.values()]
        p_values = [default.context.evidence.at(n.source) for cell in cells for n in numbers_in(cell) if n.is_p]
        found |= {row.key for row in p_values if "val_reward best [" in row.how}
    assert len(sources["advice"]) == 1
    assert sources["advice"] == sources["004-assessment"]
    by_test = default.row("004-assessment", Dimension="Best", Source=OURS, Decoding="greedy")["By the test"]
    assert by_test.startswith("not separated (p ")
    for sentence in ("Against: it may limit", "Leave it out for the highest"):
        assert default.row("advice", **{"The document": sentence})["Verdict"] == "not separated"


def test_drift_is_evaluated_by_the_arm_of_kl_alone(default: Tabulated) -> None:
    row = default.row("advice", **{"The document": "For: the KL loss keeps"})
    assert "(kl_only)" in row["Ours"]
    assert row["Ours"].endswith("one seed: no inference about runs")
    assert row["Verdict"] == "not separated"


def test_one_seed_has_no_verdict(evidence: list[EvidenceRow]) -> None:
    arms = tuple(arm.model_copy(update={"seeds": (0,)}) for arm in ARMS)
    selected = [row for row in evidence if not any(f"seed~{seed}" in f"{row.subject}{row.against}" for seed in (1, 2))]
    single = [row._replace(runs=1) if row.runs == 3 else row for row in selected]
    study = Study(arms=arms)
    found = tabulate(single, study, arms=arms)
    assert {row["By the test"] for row in found.rows("004-assessment", Source=OURS)} == {""}
    verdicts = {row["Verdict"] for row in found.rows("advice")}
    assert verdicts == {"not evaluated", "not separated", "not tested", ""}
    text = found.messages("004-answer").partition("Ours, ")[2].partition(" p: ")[0]
    assert text.count("one seed cannot show it.") == 2
    assert not any(word in text for word in ("separated", "["))


def test_without_published_numbers_ours_stand_alone(evidence: list[EvidenceRow]) -> None:
    found = tabulate([row for row in evidence if not row.subject.startswith("published")], Study())
    assert list(found.tables)[: len(IDS)] == IDS
    assert not found.rows("003-validation-reward", Source=PUBLISHED)


def test_without_the_documents_arm_only_the_arms_are_shown(evidence: list[EvidenceRow]) -> None:
    found = tabulate([row for row in evidence if "bundle" not in row.subject], Study())
    assert [name for name in found.tables if name in IDS] == []
    assert found.tables["agent-arms"].section == "agent"


def test_nothing_of_nothing() -> None:
    assert tabulate([], Study()).tables == {}
