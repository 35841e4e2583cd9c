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
from claim_files import NOISE, judge, published

from lever_pipe.report.claims.evaluate import JudgedClaim
from lever_pipe.report.claims.quantities import WHOLE_IS_ZERO
from lever_pipe.report.claims.reward_ours import OurRewards, together
from lever_pipe.report.claims.reward_runs import DOCUMENTS, NONE_OF_OURS
from lever_pipe.report.claims.texts import PRINTED_ONLY
from lever_pipe.report.claims.verdicts import VERDICTS, Finding
from lever_pipe.report.tables.intention.agent_runs import read_agent_runs

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


def sides(folder: Path, study: Study, **changes: object) -> dict[str, OurRewards]:
    paths = agent_runs.collect(folder, study)
    runs = read_agent_runs(paths["curves"], paths["runs"])
    arms = (agent_runs.claim_arms(study), "baseline", "bundle", "sampled")
    return {
        name: replace(OurRewards(runs, *arms, name, lambda n, sd: NOISE, 0.13), **changes)  # type: ignore[arg-type]
        for name in DOCUMENTS
    }


def judged(folder: Path, study: Study, **changes: object) -> dict[str, JudgedClaim]:
    found = judge(published(), sides(folder, study, **changes))
    return {name: of for name, of in found.items() if of.claim.document in DOCUMENTS}


@pytest.fixture(scope="module")
def default(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, JudgedClaim]:
    return judged(tmp_path_factory.mktemp("default"), Study())


@pytest.fixture(scope="module")
def stepped(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, JudgedClaim]:
    return judged(tmp_path_factory.mktemp("stepped"), Study(skill=behind_then_ahead))


def test_sentences_about_printed_numbers_are_not_asked_of_ours(default: Mapping[str, JudgedClaim]) -> None:
    assert {name for name, of in default.items() if of.ours.numbers == PRINTED_ONLY} == ABOUT_PRINTS
    assert all(default[name].ours.verdict == UNTESTABLE for name in ABOUT_PRINTS)


def test_every_other_sentence_has_numbers_of_ours(default: Mapping[str, JudgedClaim]) -> None:
    for name in set(default) - ABOUT_PRINTS:
        text = default[name].ours.numbers
        assert "published" not in text, name
        assert "printed" not in text, name
        assert "no KL" not in text, name  # ours are called by their arms
    assert default["003-mfu"].ours.numbers == NONE_OF_OURS
    assert default["003-seconds-cause"].ours.numbers == (
        "Every arm of ours computes the log-probabilities of the reference."
    )


EXPECTED = {
    # 0 up to step 20 against the ceiling from step 10 on: behind at steps 10 to 20, together before and after
    "003-step-10": CONTRADICTED,
    "004-late": CONTRADICTED,  # equal is not ahead
    "004-five-steps": CONTRADICTED,  # 25 against 10
    "004-faster": CONTRADICTED,
    "004-efficiency": CONTRADICTED,  # 25 steps against 10 of equal seconds
    # three of nine differences are the ceiling C, so their sd is C / 2: 2 C / 3 against 2.306 C / (2 sqrt(3)) = 0.666 C
    "004-early": SUPPORTED,
    "004-sharp-fall": CONTRADICTED,  # nobody falls
    "004-drawdown": UNDECIDED,
    "003-entropy-rises": CONTRADICTED,  # it falls by 0.002 a step
    "003-kl-constrained": CONTRADICTED,  # it rises by 0.0009 a step throughout
    "003-stability": UNDECIDED,  # one change of the same size each
    "003-small-difference": UNDECIDED,  # C / 3 +- 2.306 C / 6 holds 0.079 and much more
}


@pytest.mark.parametrize("name", EXPECTED)
def test_verdicts_by_hand(stepped: Mapping[str, JudgedClaim], name: str) -> None:
    assert stepped[name].ours.verdict == EXPECTED[name], stepped[name].ours.numbers
    assert stepped[name].ours.numbers.startswith(f"Seeds 0, 1 and 2: {EXPECTED[name]}. Numbers of seed 0.")


def test_a_cause_is_judged_by_the_arm_that_has_only_it(stepped: Mapping[str, JudgedClaim]) -> None:
    drift = stepped["003-kl-prevents-drift"].ours
    # 0.001 against 0.0009 a step at steps 1, 5, 10 ... 45, mean 22.6
    assert "mean over 10 steps: `kl_only` 0.0203, `baseline` 0.0226" in drift.numbers
    assert drift.numbers.startswith("No inference about training variance: one seed. Numbers of seed 0.")
    assert "Also different" not in drift.numbers
    held = stepped["004-kl-holds-back"].ours
    assert "`baseline` minus `kl_only`, mean over steps 5, 10 and 15: 0.000" in held.numbers
    # no arm has KL loss and entropy bonus without the schedule
    both = stepped["003-regularisation"].ours
    assert both.verdict == UNTESTABLE
    assert "Also different: learning-rate schedule (`baseline`: fixed) (`bundle`: warm-up of 5 steps" in both.numbers


def test_an_arm_with_both_regularisers_makes_them_testable(tmp_path: Path) -> None:
    both = ARMS[4].model_copy(update={"name": "regularised", "schedule": ARMS[0].schedule, "seeds": (1,)})
    found = judged(tmp_path, Study(arms=(ARMS[0], ARMS[4], both), steps=30))
    for name in ("003-regularisation", "003-collapse", "003-overfitting", "003-response-longer"):
        assert "`regularised`" in found[name].ours.numbers, name
        assert found[name].ours.verdict != UNTESTABLE, name
        assert "Numbers of seed 1." in found[name].ours.numbers, name
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
    found = judged(tmp_path, Study(arms=(ARMS[0], other), steps=30))["003-stability"].ours.numbers
    assert "learning rate (`baseline`: 0.0002) (`bundle`: 0.0005)" in found
    assert "trajectory score (`baseline`: sum) (`bundle`: mean)" in found


def test_a_log_without_sampled_evaluations_is_judged_greedily(tmp_path: Path) -> None:
    one = {"seeds": (0,)}
    arms = (ARMS[0].model_copy(update=one), ARMS[4].model_copy(update=one))
    found = judged(tmp_path, Study(arms=arms, engine="verl", steps=465, executed=45, has_test=False, modes=("greedy",)))
    assert "mean over 9 evaluations" in found["003-small-difference"].ours.numbers
    assert found["003-overfitting"].ours.numbers == NONE_OF_OURS


def test_insignificance_is_a_question_to_the_seeds(stepped: Mapping[str, JudgedClaim], tmp_path: Path) -> None:
    # `bundle` is behind at three of nine steps with every seed, alike
    three = stepped["004-insignificant"].ours
    assert (three.verdict, three.numbers[-40:]) == (CONTRADICTED, "(lower in 3 of 3), Student's t, p <0.001")
    arms = tuple(arm.model_copy(update={"seeds": tuple(range(6))}) for arm in (ARMS[0], ARMS[4]))
    six = judged(tmp_path, Study(arms=arms, skill=behind_then_ahead))["004-insignificant"].ours
    assert six.verdict == CONTRADICTED
    assert six.numbers.startswith("Over all seeds: `bundle` minus `baseline`, mean over 6 seeds: -")
    assert six.numbers.endswith("(lower in 6 of 6), Student's t, p <0.001")


def test_a_p_over_evaluations_is_of_the_two_runs(stepped: Mapping[str, JudgedClaim]) -> None:
    assert "p is for these two curves only" in stepped["003-small-difference"].ours.numbers
    assert "p is for these two curves only" not in stepped["003-small-difference"].published.numbers


def test_no_share_is_taken_of_zero(tmp_path: Path) -> None:
    nothing = dict.fromkeys(("entropy", "seconds_step", "tokens_per_second_per_device"), 0.0)
    found = judged(tmp_path, Study(metrics=nothing, skill=lambda arm, seed, step: 0.0))
    assert {of.ours.verdict for of in found.values()} <= {*VERDICTS}
    for name in ("003-entropy-rises", "003-throughput"):
        assert found[name].ours == Finding(UNTESTABLE, WHOLE_IS_ZERO)


def test_a_short_run_names_what_it_lacks(tmp_path: Path) -> None:
    found = judged(tmp_path, Study(arms=(ARMS[0], ARMS[4]), steps=6, every=3))
    assert found["003-step-10"].ours.numbers == "Our arm `bundle` was not evaluated at step 10."
    assert found["003-stability"].ours.numbers == "Our runs hold fewer than 5 evaluations at the same steps."
    assert {of.ours.verdict for of in found.values()} <= set(VERDICTS)


def test_arms_without_a_common_seed_are_not_testable(tmp_path: Path) -> None:
    other = ARMS[4].model_copy(update={"seeds": (7,)})
    found = judged(tmp_path, Study(arms=(ARMS[0], other), steps=30))
    assert found["003-stability"].ours == Finding(UNTESTABLE, "The two arms have no seed in common.")


@pytest.mark.parametrize(
    ("findings", "verdict", "numbers"),
    [
        ({0: (SUPPORTED, "a"), 1: (SUPPORTED, "b")}, SUPPORTED, "Seeds 0 and 1: supported. Numbers of seed 0. a"),
        (
            {0: (SUPPORTED, "a"), 1: (CONTRADICTED, "b"), 2: (SUPPORTED, "c")},
            UNDECIDED,
            "Seeds 0 and 2: supported. Seed 1: contradicted. Numbers of seed 0. a",
        ),
        ({0: (UNTESTABLE, "why."), 1: (UNTESTABLE, "why.")}, UNTESTABLE, "why."),
        (
            {0: (UNTESTABLE, "why."), 1: (SUPPORTED, "b")},
            UNDECIDED,
            "Seed 0: not testable. Seed 1: supported. Numbers of seed 1. b",
        ),
        (
            {4: (CONTRADICTED, "a")},
            CONTRADICTED,
            "No inference about training variance: one seed. Numbers of seed 4. a",
        ),
    ],
)
def test_seeds_must_agree(findings: dict[int, tuple[str, str]], verdict: str, numbers: str) -> None:
    found = {seed: Finding(of, text) for seed, (of, text) in findings.items()}  # type: ignore[arg-type]
    assert together(found) == Finding(verdict, numbers)  # type: ignore[arg-type]
