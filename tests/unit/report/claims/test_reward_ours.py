"""Our side of documents 003 and 004, on runs whose curves are known.

The reference finds a share of the details that rises from 0.6 to 0.9; `bundle` is behind at first and catches up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import agent_runs
import pytest
from agent_runs import ARMS as ARMS_OF_ONE
from agent_runs import Study as AnyStudy
from claim_files import DOCUMENTS, judge_ours, reward_runs, said
from scipy import stats

from lever_pipe.report import sources
from lever_pipe.report.cells import PValue, numbers_in
from lever_pipe.report.claims.agents import OurAgents
from lever_pipe.report.claims.judged import JudgedClaim
from lever_pipe.report.claims.verdicts import VERDICTS
from lever_pipe.report.evidence import Evidence

SUPPORTED, UNDECIDED, CONTRADICTED, UNTESTABLE = VERDICTS
ARMS = tuple(
    arm.model_copy(update={"seeds": (0, 1, 2)}) if arm.name == "kl_only" else arm for arm in ARMS_OF_ONE
)  # as in the default configuration
Study = partial(AnyStudy, arms=ARMS)


def behind_then_ahead(arm: str, seed: int, step: int) -> float:
    """Nothing is drawn: an arm finds all details or none, so that every curve is a step."""
    return float(step >= {"baseline": 10, "bundle": 25}.get(arm, 10))


def sides(folder: Path, study: AnyStudy, mode: str = "greedy") -> dict[str, OurAgents]:
    paths = agent_runs.collect(folder, study)
    evidence = Evidence([*sources.curves(paths["curves"]), *sources.runs(paths["runs"])])
    arms = (agent_runs.claim_arms(study), "baseline", "bundle")
    return {name: OurAgents(reward_runs(evidence, name, mode), *arms) for name in DOCUMENTS}


def judged(folder: Path, study: AnyStudy, mode: str = "greedy") -> dict[str, JudgedClaim]:
    found = judge_ours(sides(folder, study, mode))
    return {name: of for name, of in found.items() if of.claim.document in DOCUMENTS}


@pytest.fixture(scope="module")
def stepped(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, JudgedClaim]:
    return judged(tmp_path_factory.mktemp("stepped"), Study(skill=behind_then_ahead))


EXPECTED = {
    # 0 up to step 20 against the ceiling from step 10 on: behind at steps 10 to 20, together before and after, and so
    # with every seed, so that what differs at all differs with p = 0
    "003-step-10": CONTRADICTED,
    "004-late": UNDECIDED,  # equal
    "004-five-steps": CONTRADICTED,  # 25 against 10
    "004-faster": CONTRADICTED,
    "004-early": SUPPORTED,
    "004-sharp-fall": UNDECIDED,  # nobody falls
    "004-drawdown": UNDECIDED,
    "003-entropy-rises": CONTRADICTED,  # it falls by 0.002 a step
    "003-kl-constrained": UNDECIDED,  # it rises by 0.0009 a step throughout
    "003-stability": UNDECIDED,  # one change of the same size each
    "003-small-difference": CONTRADICTED,  # C / 3 with every seed
}


@pytest.mark.parametrize("name", EXPECTED)
def test_verdicts_by_hand(stepped: Mapping[str, JudgedClaim], name: str) -> None:
    of = stepped[name]
    assert of.ours.verdict == EXPECTED[name], said(of.ours)
    assert ("training" if "entropy" in name or "kl" in name else "greedy validation") in said(of.ours)
    assert "3 seeds: " in said(of.ours)
    assert ("baseline" in said(of.ours)) is (name not in ("003-entropy-rises", "003-kl-constrained"))  # of one run


def test_a_cause_is_judged_by_the_arm_that_has_only_it(stepped: Mapping[str, JudgedClaim]) -> None:
    drift = said(stepped["003-kl-prevents-drift"].ours)
    # 0.001 against 0.0009 a step at steps 1, 5, 10 ... 45, mean 22.6: 0.0226 - 0.0203
    assert drift.startswith(
        "training, kl_only against baseline, 3 seeds: +0.0023 [0.0023, 0.0023] in the claim's favour"
    )
    assert "also different" not in drift
    assert "kl_only against baseline, 3 seeds: 0.0000" in said(stepped["004-kl-holds-back"].ours)
    # no arm has KL loss and entropy bonus without the schedule
    both = stepped["003-regularisation"].ours
    assert both.verdict == UNTESTABLE
    assert "also different: lr_schedule" in said(both)


def test_an_arm_with_both_regularisers_makes_them_testable(tmp_path: Path) -> None:
    both = ARMS[4].model_copy(update={"name": "regularised", "schedule": ARMS[0].schedule, "seeds": (1, 2)})
    study = Study(arms=(ARMS[0], ARMS[4], both), steps=30)
    regularised = sides(tmp_path, study)["003"].pair({"kl_loss_coef", "entropy_coeff"})
    found = judged(tmp_path, study)
    for name in ("003-regularisation", "003-collapse"):
        assert "regularised" in said(found[name].ours), name
        assert found[name].ours.verdict != UNTESTABLE, name
    (gap,) = (n for n in numbers_in(found["003-regularisation"].ours.numbers) if not isinstance(n, PValue))
    of_seeds = [replace(regularised, seeds=(seed,)) for seed in (1, 2)]
    assert gap.value == pytest.approx(sum(of.comparison.mean for of in of_seeds) / 2)  # signed: seeds may disagree
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


def test_insignificance_is_a_question_to_the_seeds(stepped: Mapping[str, JudgedClaim]) -> None:
    # `bundle` is behind at three of nine steps with every seed alike
    found = stepped["004-insignificant"].ours
    assert found.verdict == CONTRADICTED
    assert "t over seeds p <0.001" in said(found)


@pytest.mark.parametrize("seeds", [(0,), (0, 1)])
def test_one_seed_shows_nothing(tmp_path: Path, seeds: tuple[int, ...]) -> None:
    arms = tuple(arm.model_copy(update={"seeds": seeds}) for arm in (ARMS[0], ARMS[1], ARMS[4]))
    found = judged(tmp_path, Study(arms=arms, skill=behind_then_ahead))
    told = {name: said(of.ours) for name, of in found.items()}
    assert len(told) > 20
    assert ("One seed tells nothing of others." in told.values()) is (len(seeds) == 1)
    assert all(found[name].ours.verdict == UNTESTABLE for name in told) is (len(seeds) == 1)


def test_a_comparison_has_one_p_that_is_adjusted_for_all(tmp_path: Path) -> None:
    of = sides(tmp_path, Study())
    found = judge_ours(of)
    every = [each for each in found.values() if each.claim.is_of_agents]
    tests: dict[str, set[float]] = {}
    for each in every:
        for number in numbers_in(each.ours.numbers):
            if isinstance(number, PValue) and number.how:
                tests.setdefault(number.how, set()).add(number.value)
    assert all(len(values) == 1 for values in tests.values())
    assert said(found["004-more-stable"].ours) == said(found["003-stability"].ours)
    runs = of["004"].pair(None)
    best = [of.curves["nokl"].most - of.curves["kl"].most for of in (replace(runs, seeds=(s,)) for s in runs.seeds)]
    (p,) = (n.value for n in numbers_in(found["004-lower-best"].ours.numbers) if isinstance(n, PValue))
    alone = stats.ttest_1samp(best, 0).pvalue
    assert alone <= p <= min(1.0, len(tests) * alone)
