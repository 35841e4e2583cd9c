"""The claims of the documents: the file, what decides, the published verdicts by hand, and ours on known runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path

import agent_runs
import numpy as np
import pytest
from agent_runs import ARMS as ARMS_OF_ONE
from agent_runs import Study as AnyStudy
from claim_files import KL, NO_KL, RESOURCES, Ours, book, by_ours, changed, evaluated, group, references, sentence
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from lever_pipe.base.errors import RecordError
from lever_pipe.report import sources
from lever_pipe.report.catalogue import read_translation
from lever_pipe.report.cells import numbers_in
from lever_pipe.report.claims import Check, Claim, EvaluatedClaim, Finding, read_claims, verdict
from lever_pipe.report.verdicts import BETTER, CLASSES, FAILS, HOLDS, OF_CLAIMS, OPEN, UNDECIDED, UNTESTED, WORSE
from lever_pipe.statistics.comparison import holm

ARMS = tuple(
    arm.model_copy(update={"seeds": (0, 1, 2)}) if arm.name == "kl_only" else arm for arm in ARMS_OF_ONE
)  # as in the default configuration
Study = partial(AnyStudy, arms=ARMS)


def test_each_sentence_is_there_once() -> None:
    assert len({claim.id for claim in book()}) == len(book())
    claims = [claim for claim in book() if claim.table == "claims"]
    assert [claim.document for claim in claims] == sorted(claim.document for claim in claims)
    answers = {claim.claim for claim in book() if claim.claim}
    assert answers <= {claim.id for claim in claims}
    decisive = [claim for claim in claims if claim.decisive]
    assert {claim.document for claim in decisive} == {"000", "001", "002", "003", "004"}


def test_what_a_page_in_both_languages_shows_is_translated() -> None:
    chinese = read_translation(RESOURCES / "locale/zh/LC_MESSAGES/report.po")
    texts = [claim.quote for claim in book() if claim.decisive]
    for claim in book():
        if claim.table not in ("claims", "002-summary"):
            texts += [claim.quote, *filter(None, [claim.reason]), claim.otherwise]
    texts += [word for word in CLASSES if word not in (BETTER, WORSE, UNDECIDED)]  # of the grid's page, in English
    assert [text for text in texts if chinese.gettext(text) == text] == []


@pytest.mark.parametrize(
    "change",
    [
        *({"kind": "guess"}, {"measure": "falls"}, {"note": "x"}, {"id": "5"}, {"metric": ""}),
        *({"factor": "", "kind": "arms"}, {"bug": "", "kind": "repeats"}),
    ],
)
def test_an_entry_that_cannot_be_evaluated_is_refused(tmp_path: Path, change: dict[str, str]) -> None:
    entry = {"id": "000-x", "section": "1", "quote": "x", "kind": "order", "left": 0.1, "metric": "kl"} | change
    path = tmp_path / "claims.yaml"
    path.write_text(str([entry]), encoding="utf-8")
    with pytest.raises(RecordError) as caught:
        read_claims(path)
    assert next(iter(change)) in caught.value.found


def of_kind(kind: str, margin: float | None = None) -> Claim:
    return Claim(id="000-x", section="1", quote="", kind=kind, left=0.1, metric="kl", margin=margin)


@pytest.mark.parametrize(
    ("kind", "checks", "expected"),
    [
        ("order", [Check(0.1), Check(2.0)], HOLDS),
        ("order", [Check(0.1), Check(-2.0)], OPEN),
        ("order", [Check(-0.1), Check(-2.0)], FAILS),
        ("order", [Check(0.0)], FAILS),  # equal numbers are in no order
        ("order", [Check(-1.0, p=0.06)], OPEN),
        ("order", [Check(-1.0, p=0.04)], FAILS),
        ("difference", [Check(3.0, 2.0)], HOLDS),
        ("difference", [Check(1.0, 2.0)], OPEN),
        ("difference", [Check(-3.0, 2.0)], FAILS),
        ("difference", [Check(3.0, 2.0), Check(1.0, 2.0)], OPEN),
        ("difference", [Check(1.0, p=0.04)], HOLDS),
        ("difference", [Check(1.0, p=0.06)], OPEN),
        ("equal", [Check(-1.0, 2.0)], HOLDS),
        ("equal", [Check(-1.0, p=0.04)], FAILS),
    ],
)
def test_a_kind_gives_its_verdict(kind: str, checks: list[Check], expected: str) -> None:
    assert verdict(of_kind(kind), checks) == expected


def test_a_margin_holds_the_noise_as_well() -> None:
    found = [verdict(of_kind("equal", 0.3), [Check(value, 0.2)]) for value in (0.1, 0.2, -0.6)]
    assert found == [HOLDS, OPEN, FAILS]


@given(value=st.floats(1e-6, 100), noise=st.floats(1e-6, 100), p=st.floats(0, 1), checked=st.booleans())
def test_turning_a_claim_round_turns_its_verdict(value: float, noise: float, p: float, checked: bool) -> None:
    turned = {HOLDS: FAILS, OPEN: OPEN}
    for kind in ("order", "difference"):
        there, back = (verdict(of_kind(kind), [Check(x, noise, p if checked else None)]) for x in (value, -value))
        assert back == turned[there]


def noise_of(left: float, right: float, n: int) -> float:
    """1.96 standard errors of a difference of two accuracies in percent."""
    return 1.96 * math.hypot(*(math.sqrt(p * (100 - p) / n) for p in (left, right)))


def beyond(gap: float, noise: float) -> str:
    return HOLDS if gap > noise else FAILS if gap < -noise else OPEN


OTHERS = (57.0 + 56.1 + 55.1 + 55.2) / 4  # 0.12, 0.145, 0.155 and 0.18 at 200 samples
LABELLED_015 = (58.8 + 56.6 + 53.9 + 55.2) / 4
SD_OF_GAPS = float(np.std(np.subtract(KL, NO_KL), ddof=1))
# Each verdict from the numbers that the documents print, worked out here.
PUBLISHED = {
    "000-validation-better": OPEN,  # the mean and the last are lower, the minimum 7.977539 is not
    "000-ppo-steadier": UNTESTED,  # only mean, first and last are printed
    "001-identical-rows": HOLDS,
    "001-015-best": beyond(LABELLED_015 - OTHERS, noise_of(LABELLED_015, OTHERS, 200)),
    "001-015-because-of-beta": UNTESTED,
    "002-012-three-shots": beyond(55.1 - 53.9, noise_of(55.1, 53.9, 200)),
    "002-018-one-shot": OPEN if abs(57.0 - 58.8) < noise_of(57.0, 58.8, 200) else FAILS,
    "003-step-10": HOLDS if KL[1] > NO_KL[1] else FAILS,
    "003-length-stability": UNTESTED,
    "003-kl-constrained": FAILS if (0.114 - 0.084) / 5 > (0.084 - 0.003) / 39 else HOLDS,
    "003-kl-prevents-drift": UNTESTED,
    "003-regularisation": UNTESTED,
    "003-collapse": UNTESTED,
    "004-five-steps": beyond(45 - 40, 5),
    "004-faster": FAILS,
    "004-more-stable": OPEN,
    "004-drawdown": OPEN,
    "004-sharp-fall": HOLDS if 1.830 - 1.750 > 1.992 - 1.768 else FAILS,
    "004-early": beyond((0.123 + 0.148 + 0.072) / 3, 2.306 * SD_OF_GAPS / math.sqrt(3)),
    "004-late": OPEN,  # -0.120 and +0.197
    "004-insignificant": HOLDS,
    "004-exploration": UNTESTED,
}


@cache
def unchanged() -> Mapping[str, EvaluatedClaim]:
    return evaluated(references())


def test_the_p_of_published_changes_is_of_their_variances() -> None:
    ratio = np.var(np.diff(NO_KL), ddof=1) / np.var(np.diff(KL), ddof=1)
    p = unchanged()["004-more-stable"].published.p
    assert p is not None
    assert p.value == pytest.approx(2 * stats.f.sf(ratio, 7, 7))


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_verdict(name: str) -> None:
    found = unchanged()[name]
    assert found.published.verdict == PUBLISHED[name], sentence(found.published)
    assert found.ours.verdict == UNTESTED  # nothing of ours was run


CURVES, BETAS = "KL_BETA_012_vs_015_训练曲线分析报告.md", "KL_BETA_0145_0155对比.md"
SHOT_1 = {"metric": "accuracy", "shots": "1", "quoted": BETAS}
MUTATIONS: list[tuple[str, dict[str, str], str, str]] = [
    ("0.080000", {"subject": "published/grpo_balanced/beta~0.15/epoch~50", "metric": "kl"}, "000-kl-falls", OPEN),
    (
        "7.970000",
        {"subject": "published/grpo_balanced/beta~0.15", "metric": "val_loss", "at": "minimum", "quoted": CURVES},
        "000-validation-better",
        HOLDS,
    ),
    ("57.2", {"subject": "published/grpo/beta~0.145/epoch~1", **SHOT_1}, "001-identical-rows", FAILS),
    ("70.0", {"subject": "published/grpo/beta~0.18/epoch~1", **SHOT_1}, "002-018-one-shot", HOLDS),
    ("1.850", {"subject": "published/nokl", "metric": "val_reward", "at": "10"}, "003-step-10", HOLDS),
    ("0.085", {"subject": "published/kl", "metric": "kl_loss", "at": "45"}, "003-kl-constrained", HOLDS),
    ("0.200", {"subject": "published/kl", "metric": "entropy", "at": "45"}, "003-entropy-rises", OPEN),
    # falls by 1.123
    ("1.000", {"subject": "published/kl", "metric": "val_reward", "at": "45"}, "004-drawdown", FAILS),
    # 0.94 is no noise of sd 0.13
    ("1.200", {"subject": "published/nokl", "metric": "val_reward", "at": "40"}, "004-drawdown", HOLDS),
]


@pytest.mark.parametrize(("text", "wanted", "name", "expected"), MUTATIONS)
def test_a_changed_number_changes_the_verdict(text: str, wanted: dict[str, str], name: str, expected: str) -> None:
    assert evaluated(changed(text, **wanted))[name].published.verdict == expected


@given(at=st.integers(0, 2000))
@settings(max_examples=20, deadline=None)
def test_any_published_row_may_be_missing(at: int) -> None:
    rows = references()
    for of in evaluated(row for i, row in enumerate(rows) if i != at % len(rows)).values():
        assert of.published.verdict in OF_CLAIMS
        assert sentence(of.published)


def test_one_setting_apart_makes_a_cause_testable() -> None:
    rows = changed("same", metric="lr_schedule")
    schedule = evaluated(rows)
    assert schedule["003-regularisation"].published.verdict == OPEN  # p = 0.56
    assert "also different" not in sentence(schedule["003-regularisation"].published)
    assert schedule["004-exploration"].published.verdict == UNTESTED  # the entropy bonus still differs
    found = evaluated(changed("same", rows, metric="entropy_coeff"))["004-exploration"].published
    assert found.verdict == OPEN


# Ours of the selector: KL falls with epoch and beta; PPO loss rises with the epoch and is one for all betas.
def test_ours_of_one_long_seed_are_not_separated() -> None:
    found = by_ours(Ours())
    for name in ("000-kl-falls", "000-penalty-lower", "000-ppo-steadier"):
        assert found[name].verdict == OPEN
        assert sentence(found[name]).endswith("one seed: no inference about runs")
    assert found["001-identical-rows"].verdict == HOLDS
    assert found["001-015-best"].verdict == OPEN


@pytest.mark.parametrize("is_shared", [True, False])
def test_an_order_of_betas_is_evaluated_over_the_seeds(is_shared: bool) -> None:
    # every seed is a training-curve run whose KL falls, or rises with seed 2
    last = [f"preset~main/grpo/base~5/beta~{beta}/seed~2/epoch~12" for beta in (0.12, 0.15)]
    changes = {} if is_shared else {(policy, "kl"): 0.3 for policy in last}
    found = by_ours(Ours(epochs=12, long_epochs=12, changes=changes))["000-kl-falls"]
    assert found.verdict == (HOLDS if is_shared else OPEN)
    assert "3 seeds: " in sentence(found)


@pytest.mark.parametrize(
    ("gain", "p", "expected"), [(1.0, 0.01, HOLDS), (1.0, 0.2, OPEN), (-1.0, 0.01, FAILS), (-1.0, 0.2, OPEN)]
)
def test_a_comparison_decides_by_holm(gain: float, p: float, expected: str) -> None:
    found = by_ours(Ours(gain={0.15: gain}, p=p))
    for name in ("001-015-best", "001-015-because-of-beta", "002-012-below", "002-015-balance"):
        assert found[name].verdict == expected, name
    assert f"{gain:+.2f} (0.15 minus 0.12), adjusted p {p:.3f}" in sentence(found["002-012-below"])


def test_another_base_makes_the_cause_untested() -> None:
    ours = Ours(gain={0.15: 1.0}, p=0.01)
    lineages = ours.lineages()
    lineages[group(0.15, 1)]["base_checkpoint"] = "z"
    found = by_ours(ours, lineages)
    assert found["001-015-because-of-beta"].verdict == UNTESTED
    assert sentence(found["001-015-because-of-beta"]).endswith("also different: base_checkpoint")
    assert found["001-015-best"].verdict == HOLDS


def test_what_is_not_there_is_named() -> None:
    short = by_ours(Ours(long_epochs=3))["000-kl-falls"]
    assert (short.verdict, sentence(short)) == (UNTESTED, "There is no training curve of 0.12 and 0.15.")
    found = by_ours(Ours(betas=(0.12, 0.15), shots=(1, 2)))
    assert sentence(found["001-identical-rows"]) == "Not known: accuracy of 0.12."
    assert sentence(found["001-015-best"]) == "No comparison of 0.15 and 0.145 was made."
    assert {of.verdict for of in by_ours(Ours(betas=(), long_betas=())).values()} == {UNTESTED}


# Ours of the agent: the reference finds a rising share of the details; `bundle` trails and catches up.
def lower_then_higher(arm: str, seed: int, step: int) -> float:
    """Nothing is drawn: an arm finds all details or none, so that every curve is a step."""
    return float(step >= {"baseline": 10, "bundle": 25}.get(arm, 10))


def of_agents(folder: Path, study: AnyStudy, claims: Sequence[Claim] | None = None) -> dict[str, Finding]:
    paths = agent_runs.collect(folder, study)
    ours = [*sources.curves(paths["curves"]), *sources.runs(paths["runs"])]
    found = evaluated([*references(), *ours], study=study, claims=claims)
    return {name: of.ours for name, of in found.items() if of.claim.study == "intention"}


@pytest.fixture(scope="module")
def stepped(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Finding]:
    return of_agents(tmp_path_factory.mktemp("stepped"), Study(skill=lower_then_higher))


OURS = {
    # 0 up to step 20 against the ceiling from step 10 on: lower at steps 10 to 20, together before and after, and so
    # with every seed, so that what differs at all differs with p = 0
    "003-step-10": FAILS,
    "004-late": OPEN,  # equal
    "004-five-steps": FAILS,  # 25 against 10
    "004-faster": FAILS,
    "004-early": HOLDS,
    "004-sharp-fall": OPEN,  # no arm falls
    "004-drawdown": OPEN,
    "003-entropy-rises": FAILS,  # it falls by 0.002 a step
    "003-kl-constrained": OPEN,  # it rises by 0.0009 a step throughout
    "003-stability": OPEN,  # one change of the same size each
    "003-small-difference": FAILS,  # C / 3 with every seed
    "004-insignificant": FAILS,
}


@pytest.mark.parametrize("name", OURS)
def test_a_verdict_of_ours_by_hand(stepped: Mapping[str, Finding], name: str) -> None:
    of = stepped[name]
    assert of.verdict == OURS[name], sentence(of)
    assert ("training" if "entropy" in name or "kl" in name else "greedy validation") in sentence(of)
    assert "3 seeds: " in sentence(of)
    assert ("baseline" in sentence(of)) is (name not in ("003-entropy-rises", "003-kl-constrained"))  # of one run


def test_a_cause_is_evaluated_by_the_arm_that_has_only_it(stepped: Mapping[str, Finding]) -> None:
    # 0.001 against 0.0009 a step at steps 1, 5, 10 ... 45, mean 22.6: 0.0226 - 0.0203
    start = "training, kl_only against baseline, 3 seeds: +0.0023 [0.0023, 0.0023] in the claim's favour"
    assert sentence(stepped["003-kl-prevents-drift"]).startswith(start)
    assert "kl_only against baseline, 3 seeds: 0.0000" in sentence(stepped["004-kl-holds-back"])
    # no arm has KL loss and entropy bonus without the schedule
    both = stepped["003-regularisation"]
    assert both.verdict == UNTESTED
    assert "also different: schedule" in sentence(both)


def test_a_short_run_lacks_the_steps_that_claims_name(tmp_path: Path) -> None:
    found = of_agents(tmp_path, Study(steps=6, every=1, arms=(ARMS[0], ARMS[4])))
    assert {name for name in ("003-step-10", "004-middle-phase", "004-early") if found[name].verdict == UNTESTED} == {
        *("003-step-10", "004-middle-phase", "004-early")
    }
    assert found["004-five-steps"].verdict != UNTESTED


def test_of_several_arms_with_one_cause_the_documents_coefficient_is_taken(tmp_path: Path) -> None:
    strong = tuple(arm for arm in ARMS if arm.name in ("baseline", "bundle", "kl_strong"))
    strong = tuple(arm.model_copy(update={"seeds": (0, 1)}) for arm in strong)
    assert "kl_strong against baseline" in sentence(of_agents(tmp_path, Study(arms=strong))["003-kl-prevents-drift"])


@pytest.mark.parametrize("seeds", [(0,), (0, 1)])
def test_one_seed_separates_nothing(tmp_path: Path, seeds: tuple[int, ...]) -> None:
    arms = tuple(arm.model_copy(update={"seeds": seeds}) for arm in (ARMS[0], ARMS[1], ARMS[4]))
    found = of_agents(tmp_path, Study(arms=arms, skill=lower_then_higher))
    decided = [name for name, of in found.items() if of.verdict in (HOLDS, FAILS)]
    assert bool(decided) is (len(seeds) > 1), decided


def test_a_comparison_has_one_p_that_is_adjusted_for_all_tested_claims(tmp_path: Path) -> None:
    # An `equal` claim and one whose arms differ in more than the cause are not in the family.
    names = ("004-lower-best", "004-more-stable", "003-stability", "003-small-difference", "003-regularisation")
    found = of_agents(tmp_path, Study(), [claim for claim in book() if claim.id in names])
    assert sentence(found["004-more-stable"]) == sentence(found["003-stability"])
    alone = []
    for name in names[:2]:
        (mean,) = (number for number in numbers_in(found[name].numbers) if not number.is_p)
        t = mean.value / ((mean.high - mean.value) / stats.t.ppf(0.975, 2))
        alone.append(2 * stats.t.sf(abs(t), 2))
    adjusted = [of.p.value for name in names[:2] if (of := found[name]).p is not None]
    assert adjusted == pytest.approx(holm(alone))
