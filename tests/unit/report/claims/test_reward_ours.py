"""Our side of documents 003 and 004, on runs whose curves are known.

The reference finds a share of the details that rises from 0.6 to 0.9; `bundle` is behind at first and catches up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import agent_runs
import pytest
from agent_runs import ARMS, Study
from claim_files import DOCUMENTS, judge_ours, reward_runs, said

from lever_pipe.report import sources
from lever_pipe.report.cells import Name
from lever_pipe.report.claims.evaluate import JudgedClaim, OurAgents, together
from lever_pipe.report.claims.reward_runs import seeds_by_arm
from lever_pipe.report.claims.verdicts import VERDICTS, Finding
from lever_pipe.report.evidence import Evidence

SUPPORTED, UNDECIDED, CONTRADICTED, UNTESTABLE = VERDICTS
ABOUT_PRINTS = {
    *("003-estimates", "003-differences", "003-steps-kl", "003-steps-nokl", "003-steps-in-time"),
    *("003-warm-up-display", "003-continue", "003-stale-best", "003-best", "003-sequence-length"),
    *("003-lengths-together", "003-seconds", "003-percent", "003-changes"),
    *("004-best-difference", "004-percent-kl", "004-percent-nokl", "004-differences", "004-changes-nokl"),
    *("004-changes-kl", "004-largest-nokl", "004-largest-kl"),
}


def behind_then_ahead(arm: str, seed: int, step: int) -> float:
    """Nothing is drawn: an arm finds all details or none, so that every curve is a step."""
    return float(step >= {"baseline": 10, "bundle": 25}.get(arm, 10))


def sides(folder: Path, study: Study, mode: str = "sampled") -> dict[str, OurAgents]:
    paths = agent_runs.collect(folder, study)
    evidence = Evidence([*sources.curves(paths["curves"]), *sources.runs(paths["runs"])])
    seeds = seeds_by_arm(evidence.subjects("executed_steps", study="intention"))
    arms = (agent_runs.claim_arms(study), seeds, "baseline", "bundle")
    return {name: OurAgents(reward_runs(evidence, name, mode), *arms) for name in DOCUMENTS}


def judged(folder: Path, study: Study, mode: str = "sampled") -> dict[str, JudgedClaim]:
    found = judge_ours(sides(folder, study, mode))
    return {name: of for name, of in found.items() if of.claim.document in DOCUMENTS}


@pytest.fixture(scope="module")
def default(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, JudgedClaim]:
    return judged(tmp_path_factory.mktemp("default"), Study())


@pytest.fixture(scope="module")
def stepped(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, JudgedClaim]:
    return judged(tmp_path_factory.mktemp("stepped"), Study(skill=behind_then_ahead))


def test_sentences_about_printed_numbers_are_not_asked_of_ours(default: Mapping[str, JudgedClaim]) -> None:
    about = {name for name, of in default.items() if of.is_about_print}
    assert about == ABOUT_PRINTS - {name for name in ABOUT_PRINTS if default[name].claim.load}
    assert all(default[name].ours.verdict == UNTESTABLE for name in ABOUT_PRINTS)


def test_nothing_that_the_load_of_a_machine_decides_is_judged(default: Mapping[str, JudgedClaim]) -> None:
    loaded = {name: of for name, of in default.items() if of.claim.load}
    assert {"003-seconds-cause", "003-throughput", "003-mfu", "004-efficiency"} <= loaded.keys()
    assert {said(of.ours) for of in loaded.values()} == {"The load of a machine decides this."}


EXPECTED = {
    # 0 up to step 20 against the ceiling from step 10 on: behind at steps 10 to 20, together before and after
    "003-step-10": CONTRADICTED,  # with every seed alike
    "004-late": UNDECIDED,  # equal with every seed
    "004-five-steps": CONTRADICTED,  # 25 against 10
    "004-faster": CONTRADICTED,
    # three of nine differences are the ceiling C, so their sd is C / 2: 2 C / 3 against 2.306 C / (2 sqrt(3)) = 0.666 C
    "004-early": SUPPORTED,
    "004-sharp-fall": UNDECIDED,  # nobody falls
    "004-drawdown": UNDECIDED,
    "003-entropy-rises": CONTRADICTED,  # it falls by 0.002 a step
    "003-kl-constrained": UNDECIDED,  # it rises by 0.0009 a step throughout
    "003-stability": UNDECIDED,  # one change of the same size each
    "003-small-difference": UNDECIDED,  # C / 3 +- 2.306 C / 6 holds 0.079 and much more
}


@pytest.mark.parametrize("name", EXPECTED)
def test_verdicts_by_hand(stepped: Mapping[str, JudgedClaim], name: str) -> None:
    of = stepped[name]
    assert of.ours.verdict == EXPECTED[name], said(of.ours)
    ends = "paired t over 3 seeds, p" if of.claim.rule == "order" else "seed 0: "
    assert ends in said(of.ours)


def test_a_cause_is_judged_by_the_arm_that_has_only_it(stepped: Mapping[str, JudgedClaim]) -> None:
    drift = said(stepped["003-kl-prevents-drift"].ours)
    # 0.001 against 0.0009 a step at steps 1, 5, 10 ... 45, mean 22.6
    assert "mean over 10 steps: 0.0203 (kl_only) and 0.0226 (baseline)" in drift
    assert stepped["003-kl-prevents-drift"].ours.verdict == UNTESTABLE  # by steps of one run, which are alike
    assert "also different" not in drift
    assert "baseline minus kl_only: 0.000" in said(stepped["004-kl-holds-back"].ours)
    # no arm has KL loss and entropy bonus without the schedule
    both = stepped["003-regularisation"].ours
    assert both.verdict == UNTESTABLE
    assert "also different: lr_schedule" in said(both)


def test_an_arm_with_both_regularisers_makes_them_testable(tmp_path: Path) -> None:
    both = ARMS[4].model_copy(update={"name": "regularised", "schedule": ARMS[0].schedule, "seeds": (1,)})
    found = judged(tmp_path, Study(arms=(ARMS[0], ARMS[4], both), steps=30))
    for name in ("003-regularisation", "003-collapse", "003-overfitting", "003-response-longer"):
        assert "regularised" in said(found[name].ours), name
    for name in ("003-regularisation", "003-collapse"):
        assert found[name].ours.verdict != UNTESTABLE, name
    assert found["003-kl-prevents-drift"].ours.verdict == UNTESTABLE  # no arm differs in the KL loss alone


def test_of_several_arms_with_one_cause_the_documents_coefficient_is_taken(tmp_path: Path) -> None:
    side = sides(tmp_path, Study(steps=5))["003"]
    assert side.arm_for({"kl_loss_coef"}) == "kl_only"
    assert side.arm_for({"entropy_coeff"}) == "entropy_only"
    assert side.arm_for({"lr_schedule"}) == "schedule_only"
    assert side.arm_for({"kl_loss_coef", "entropy_coeff", "lr_schedule"}) == "bundle"
    assert side.arm_for({"learning_rate"}) == "bundle"  # none: that of the documents
    strong = replace(side, arms=[arm for arm in side.arms if arm.name != "kl_only"])
    assert strong.arm_for({"kl_loss_coef"}) == "kl_strong"


def test_other_settings_that_differ_are_named(tmp_path: Path) -> None:
    other = ARMS[4].model_copy(update={"learning_rate": 5e-4, "trajectory_score": "mean"})
    found = said(judged(tmp_path, Study(arms=(ARMS[0], other), steps=30))["003-stability"].ours)
    assert found.endswith("also different: entropy_coeff, lr_schedule, learning_rate and trajectory_score")


def test_insignificance_is_a_question_to_the_seeds(stepped: Mapping[str, JudgedClaim]) -> None:
    # `bundle` is behind at three of nine steps with every seed alike
    found = stepped["004-insignificant"].ours
    assert found.verdict == CONTRADICTED
    assert "t over seeds p <0.001" in said(found)


def test_no_share_is_taken_of_zero_and_a_flat_study_has_verdicts(tmp_path: Path) -> None:
    found = judged(tmp_path, Study(metrics={"entropy": 0.0}, skill=lambda arm, seed, step: 0.0))
    assert {of.ours.verdict for of in found.values()} <= {*VERDICTS}
    assert found["003-entropy-rises"].ours.verdict == UNDECIDED


def test_a_short_run_names_what_it_lacks(tmp_path: Path) -> None:
    found = judged(tmp_path, Study(arms=(ARMS[0], ARMS[4]), steps=6, every=3))
    assert said(found["003-step-10"].ours) == "No reward of bundle is known at step 10."
    assert said(found["003-stability"].ours) == "Fewer than 5 evaluations lie at the same steps of both runs."


def test_arms_without_a_common_seed_are_not_testable(tmp_path: Path) -> None:
    other = ARMS[4].model_copy(update={"seeds": (7,)})
    found = judged(tmp_path, Study(arms=(ARMS[0], other), steps=30))
    assert said(found["003-stability"].ours) == "The two arms have no seed in common."


def test_one_seed_orders_nothing(tmp_path: Path) -> None:
    arms = tuple(arm.model_copy(update={"seeds": (0,)}) for arm in (ARMS[0], ARMS[4]))
    found = judged(tmp_path, Study(arms=arms, skill=behind_then_ahead))
    for name in ("003-step-10", "004-faster", "004-late", "003-entropy-rises"):
        assert found[name].ours.verdict == UNDECIDED, name
        assert said(found[name].ours).endswith("one seed: no inference about runs"), name
    assert found["004-insignificant"].ours.verdict == UNTESTABLE


@pytest.mark.parametrize(
    ("findings", "verdict", "numbers"),
    [
        ({0: (SUPPORTED, "a"), 1: (SUPPORTED, "b")}, SUPPORTED, "seed 0: a"),
        (
            {0: (SUPPORTED, "a"), 1: (CONTRADICTED, "b"), 2: (SUPPORTED, "c")},
            UNDECIDED,
            "seed 0 and 2 supported and seed 1 contradicted; seed 0: a",
        ),
        ({0: (UNTESTABLE, "why."), 1: (UNTESTABLE, "why.")}, UNTESTABLE, "why."),
        (
            {0: (UNTESTABLE, "why."), 1: (SUPPORTED, "b")},
            UNDECIDED,
            "seed 1 supported and seed 0 not testable; seed 1: b",
        ),
        ({4: (CONTRADICTED, "a")}, CONTRADICTED, "one seed: no inference about runs; a"),
    ],
)
def test_seeds_must_agree(findings: dict[int, tuple[str, str]], verdict: str, numbers: str) -> None:
    found = together({seed: Finding(of, Name(text)) for seed, (of, text) in findings.items()})  # type: ignore[arg-type]
    assert (found.verdict, said(found)) == (verdict, numbers)
