"""What the claims say where a number that they need is not there, or stands there unexpectedly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from claim_files import NOISE, REFERENCE, REFERENCE_INTENTION, RESOURCES, Ours, book, judge, our_sides, published
from hypothesis import given, settings
from hypothesis import strategies as st
from lever_pipe.commands.glossary_tool import untranslated
from lever_pipe.report.page.glossary import read_glossary

from lever_pipe.report.claims.book import Claim
from lever_pipe.report.claims.evaluate import judge_claims
from lever_pipe.report.claims.lever_published import COMPARED, FILES, FINAL, PublishedLever
from lever_pipe.report.claims.reward_claims import reaches_threshold_in_less_time, reaches_thresholds_sooner
from lever_pipe.report.claims.reward_runs import RewardRuns
from lever_pipe.report.claims.verdicts import VERDICTS, NotTestable
from lever_pipe.report.tables.frames import read_text_columns
from lever_pipe.statistics.curves import curve_statistics

Change = Callable[[pd.DataFrame], None]
LEVER = ("000", "001", "002")
INTENTION = ("003", "004")


def removed(at: int) -> Change:
    """Take one row away."""

    def change(rows: pd.DataFrame) -> None:
        rows.loc[rows.index[at], "metric"] = "removed"

    return change


def claims_of(documents: tuple[str, ...]) -> list[Claim]:
    return [claim for claim in book().claims if claim.document in documents]


def used_rows(documents: tuple[str, ...]) -> list[int]:
    """Return the rows of a reference that may decide a claim; of study `lever` those of the documents' files."""
    if documents == INTENTION:
        return list(range(len(read_text_columns(REFERENCE_INTENTION))))
    names = {name for files in FILES.values() for name in files} | {COMPARED, FINAL}
    files = read_text_columns(REFERENCE)["source_file"].str.rpartition(":")[2]
    return [at for at, name in enumerate(files) if name in names]


def without(metric: str, run: str = "kl", step: str | None = None) -> Change:
    def change(rows: pd.DataFrame) -> None:
        chosen = (rows["metric"] == metric) & (
            rows["run"].isin(["nokl", "kl-nokl"]) if run == "other" else rows["run"] == run
        )
        if step is not None:
            chosen &= rows["step"] == step
        assert chosen.any()
        rows.loc[chosen, "metric"] = "removed"

    return change


def with_value(metric: str, run: str, value: str) -> Change:
    def change(rows: pd.DataFrame) -> None:
        chosen = (rows["metric"] == metric) & (rows["run"] == run)
        assert chosen.any()
        rows.loc[chosen, "value"] = value

    return change


def with_row(run: str, step: str, metric: str, value: str) -> Change:
    def change(rows: pd.DataFrame) -> None:
        rows.loc[len(rows)] = ["003_more.txt", run, step, metric, value, ""]

    return change


@pytest.mark.parametrize(
    ("change", "name", "reason"),
    [
        (without("val_reward_estimated", "nokl"), "003-estimates", "No reward is marked as an estimate."),
        (without("val_reward_diff", "other"), "003-differences", "No difference is printed."),
        (without("val_reward_change_pct"), "004-changes-kl", "No change is printed."),
        (without("wandb_run"), "003-steps-in-time", "Not published: name of the log of `KL bundle`."),
        (with_value("wandb_run", "kl", "unnamed"), "003-steps-in-time", "The start of the run is not published."),
        (without("kl_loss", step="40"), "003-kl-constrained", "Fewer than three values of KL loss are printed."),
        (without("entropy"), "003-entropy-rises", "Fewer than two values of entropy are printed."),
        (with_value("response_length_tokens", "kl", "9000"), "003-lengths-together", "0 numbers of sequences fit"),
    ],
)
def test_what_is_missing_is_named(change: Change, name: str, reason: str) -> None:
    found = judge(published(intention=change))[name].published
    assert found.verdict == "not testable"
    assert found.numbers.startswith(reason)


def test_any_one_published_reward_or_number_may_be_missing() -> None:
    chinese = read_glossary(sorted((RESOURCES / "glossary" / "zh").glob("*.yaml")))
    told, claims, rows = set(), claims_of(INTENTION), read_text_columns(REFERENCE_INTENTION)
    for at in used_rows(INTENTION):
        less = rows.copy()
        removed(at)(less)
        for judged in judge_claims(claims, {name: RewardRuns(less, name, NOISE) for name in INTENTION}, {}):
            assert judged.published.verdict in VERDICTS
            told.add(judged.published.numbers)
    assert not untranslated(chinese, told)
    assert not [text for text in told if "``" in text or "_" in text]


@given(at=st.sampled_from(used_rows(LEVER)))
@settings(max_examples=30)
def test_any_one_published_row_of_study_lever_may_be_missing(at: int) -> None:
    for judged in judge_claims(claims_of(LEVER), published(lever=removed(at)), {}):
        assert judged.published.verdict in VERDICTS
        assert judged.published.numbers


@pytest.mark.parametrize("metric", ["val_reward", "mean_sequence_length_tokens_as_labelled", "response_length_tokens"])
@pytest.mark.parametrize("run", ["kl", "nokl"])
def test_all_values_of_a_metric_may_be_missing(metric: str, run: str) -> None:
    for judged in judge_claims(claims_of(INTENTION), published(intention=without(metric, run)), {}):
        assert judged.published.verdict in VERDICTS
    found = judge(published(intention=without(metric, run)))
    names = {"val_reward": "003-steps-kl", "response_length_tokens": "003-response-longer"}
    assert found[names.get(metric, "003-sequence-length")].published.verdict == "not testable"


def test_a_change_needs_the_evaluation_before() -> None:
    for step in ("15", "20"):  # the changes of both stand on the reward at step 15
        found = judge(published(intention=without("val_reward", "nokl", "15")))["004-changes-nokl"].published
        assert (found.verdict, found.numbers) == (
            "not testable",
            "No reward of the run `no KL` is known at step 15.",
        ), step
    late = judge(published(intention=without("val_reward", "nokl", "45")))["004-changes-nokl"].published
    assert late.numbers == "No reward of the run `no KL` is known at step 45."


def test_numbers_of_nobody_and_of_both_are_named() -> None:
    date = judge(published(intention=without("report_date", "")))["003-steps-in-time"].published
    assert date.numbers == "Not published: report date."
    extra = judge(published(intention=without("time_per_step_diff_s_min", "other")))["003-seconds"].published
    assert extra.numbers == "Not published: smallest extra time of a step of `KL bundle minus no KL`."


def test_a_beta_without_a_training_curve_run_is_named() -> None:
    side = published()["000"]
    assert isinstance(side, PublishedLever)
    with pytest.raises(NotTestable, match=r"No training-curve run of KL_BETA 0\.18 is published\."):
        side.long_accuracy(0.18, 800, 1)


def test_two_values_are_not_one() -> None:
    row = with_row("kl", "20", "response_length_tokens", "2900")
    found = judge(published(intention=row))["003-response-longer"].published
    assert found.numbers == "More than one value is published: response length of `KL bundle`."


def test_a_later_reward_makes_the_decline_comparable() -> None:
    found = judge(published(intention=with_row("nokl", "50", "val_reward", "2.002")))["003-milder-decline"].published
    # milder by 0.082, and four evaluations of standard error 0.13 have a noise of 1.96 x 0.26
    assert found.verdict == "not supported"
    assert found.numbers.startswith(
        "KL bundle from step 40 to 45: -0.118; no KL from step 45 to 50: -0.200; noise 0.510. Also different: entropy"
    )
    lower = judge(published(intention=with_row("nokl", "50", "val_reward", "1.500")))["003-milder-decline"].published
    assert lower.verdict == "supported"  # 0.702 - 0.118 = 0.584


def test_the_kl_of_both_runs_makes_the_drift_a_question_of_causes() -> None:
    found = judge(published(intention=with_row("nokl", "40", "kl_loss", "0.2")))["003-kl-prevents-drift"].published
    assert found.verdict == "not testable"
    assert found.numbers.startswith(
        "mean over 1 step: KL bundle 0.0840, no KL 0.200. Also different: entropy coefficient"
    )


def test_equal_steps_make_a_metric_comparable() -> None:
    def change(rows: pd.DataFrame) -> None:
        chosen = (rows["metric"] == "pg_loss") & (rows["run"] == "kl") & (rows["step"] == "40")
        rows.loc[chosen, "step"] = "5"

    found = judge(published(intention=change))["003-pg-loss"].published
    # 1 - 0.175 / 0.201 = 12.9 %, 1 - 0.033 / 0.280 = 88.2 %
    assert found.numbers.startswith("KL bundle 12.9 %; no KL 88.2 %")
    assert found.verdict == "supported"


def test_a_threshold_that_nobody_reaches_is_left_out() -> None:
    runs = RewardRuns(read_text_columns(REFERENCE_INTENTION), "004", NOISE)
    with pytest.raises(NotTestable, match="No run reaches a threshold"):
        reaches_thresholds_sooner(runs, sooner="kl", than="nokl", thresholds=(2.5, 3.0))
    with pytest.raises(NotTestable, match=r"The run `KL bundle` never reaches 2\.2"):
        reaches_threshold_in_less_time(runs, sooner="kl", than="nokl", threshold=2.2)
    with pytest.raises(NotTestable, match="No reward of the run `no KL` is known at step 50"):
        runs.reward("nokl", 50)


def test_what_the_published_side_does_not_hold() -> None:
    side = published()["001"]
    assert isinstance(side, PublishedLever)
    with pytest.raises(NotTestable, match=r"agreement of 0\.12 and 0\.18"):
        side.same_selections(0.12, 0.18)
    with pytest.raises(NotTestable, match=r"How the run of 0\.3, epoch 1 came to be is not known"):
        side.lineage(0.3, 1)
    with pytest.raises(NotTestable, match=r"Not published: accuracy of 0\.18, epoch 3"):
        side.accuracy(0.18, 3, 200, 1)


def test_what_our_side_does_not_hold(tmp_path: Path) -> None:
    side = our_sides(tmp_path, Ours())["002"]
    assert not isinstance(side, RewardRuns)
    with pytest.raises(NotTestable, match=r"No comparison of 0\.12 and 0\.145 after epoch 1 was made"):
        side.separation(0.12, 0.145, 1, 200, "mean")
    with pytest.raises(NotTestable, match=r"KL_BETA 0\.3, epoch 1 is not part"):
        side.separation(0.12, 0.3, 1, 200, "mean")
    with pytest.raises(NotTestable, match=r"No agreement of 0\.12 and 0\.3 was measured"):
        side.same_selections(0.12, 0.3)


def test_equal_weights_explain_equal_selections(tmp_path: Path) -> None:
    side = our_sides(tmp_path, Ours())["000"]
    unmoved = replace(side, parameters=side.parameters.assign(share_differing="0"))  # type: ignore[union-attr,type-var]
    found = judge(published(), {"000": unmoved})["000-weights-too-small"].ours
    assert (found.verdict, found.numbers) == ("not testable", "No parameter differs.")


def test_seeds_that_agree_have_no_spread(tmp_path: Path) -> None:
    side = our_sides(tmp_path, Ours())["002"]
    equal = side.results.training.assign(value=1.0)  # type: ignore[union-attr]
    changed = replace(side, results=replace(side.results, training=equal))  # type: ignore[union-attr,type-var]
    found = judge(published(), {"002": changed})["002-018-stable"].ours
    assert (found.verdict, found.numbers) == ("not testable", "The seeds of a beta agree to the last digit.")


def test_a_negative_curve_has_a_drawdown_without_a_share() -> None:
    found = curve_statistics(range(5), [0.0, -1.0, -2.0, -1.5, -1.0])
    assert found.drawdown == 2.0
    assert found.relative_drawdown != found.relative_drawdown
