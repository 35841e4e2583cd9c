"""What the claims say where a number that they need is not there, or stands there unexpectedly."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from claim_files import (
    REFERENCE,
    REFERENCE_INTENTION,
    Ours,
    book,
    judge,
    judge_ours,
    our_sides,
    published,
    references,
    reward_runs,
    said,
    sides_of,
    write_ours,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from lever_pipe.report.claims.book import Claim
from lever_pipe.report.claims.evaluate import judge_claims
from lever_pipe.report.claims.lever_sides import OurLever, PublishedLever
from lever_pipe.report.claims.reward_claims import reaches_threshold_in_less_time, reaches_thresholds_sooner
from lever_pipe.report.claims.verdicts import VERDICTS, NotTestable
from lever_pipe.report.evidence import Evidence
from lever_pipe.report.reference import COMPARED, FILES, FINAL
from lever_pipe.report.sources import published_agents
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


def used_rows() -> list[int]:
    """Return the rows of study `lever` that may decide a claim: those of the documents' files."""
    names = {name for files in FILES.values() for name in files} | {COMPARED, FINAL}
    files = pd.read_csv(REFERENCE)["source_file"].str.rpartition(":")[2]
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
        (without("val_reward_estimated", "nokl"), "003-estimates", "Too few such numbers"),
        (without("val_reward_diff", "other"), "003-differences", "Too few such numbers"),
        (without("val_reward_change_pct"), "004-changes-kl", "Too few such numbers"),
        (without("wandb_run"), "003-steps-in-time", "Not published: name of the log."),
        (with_value("wandb_run", "kl", "unnamed"), "003-steps-in-time", "Too few such numbers"),
        (without("kl_loss", step="40"), "003-kl-constrained", "Too few such numbers"),
        (without("entropy"), "003-entropy-rises", "Too few such numbers"),
        (with_value("response_length_tokens", "kl", "9000"), "003-lengths-together", "Not exactly one number of"),
        (without("report_date", ""), "003-steps-in-time", "Not published: date of the report."),
        (without("time_per_step_diff_s_min", "other"), "003-seconds", "Not published: smallest extra time."),
        (with_row("kl", "20", "response_length_tokens", "2900"), "003-response-longer", "Not published: response"),
        (with_row("nokl", "40", "kl_loss", "0.2"), "003-kl-prevents-drift", "The runs have too few steps in common."),
        # the changes at both steps stand on the reward at step 15
        (without("val_reward", "nokl", "15"), "004-changes-nokl", "No reward of no KL is known at step 15."),
        (without("val_reward", "nokl", "45"), "004-changes-nokl", "No reward of no KL is known at step 45."),
    ],
)
def test_what_is_missing_is_named(change: Change, name: str, reason: str) -> None:
    found = judge(published(intention=change))[name].published
    assert found.verdict == "not testable"
    assert said(found).startswith(reason)


def test_any_one_published_reward_or_number_may_be_missing() -> None:
    claims, rows = claims_of(INTENTION), list(published_agents(REFERENCE_INTENTION))
    for row in rows:
        evidence = Evidence(other for other in rows if other is not row)
        for judged in judge_claims(claims, {name: reward_runs(evidence, name) for name in INTENTION}, {}):
            assert judged.published.verdict in VERDICTS
            assert said(judged.published)


@given(at=st.sampled_from(used_rows()))
@settings(max_examples=30)
def test_any_one_published_row_of_study_lever_may_be_missing(at: int) -> None:
    for judged in judge_claims(claims_of(LEVER), published(lever=removed(at)), {}):
        assert judged.published.verdict in VERDICTS
        assert said(judged.published)


@pytest.mark.parametrize("metric", ["val_reward", "mean_sequence_length_tokens_as_labelled", "response_length_tokens"])
@pytest.mark.parametrize("run", ["kl", "nokl"])
def test_all_values_of_a_metric_may_be_missing(metric: str, run: str) -> None:
    for judged in judge_claims(claims_of(INTENTION), published(intention=without(metric, run)), {}):
        assert judged.published.verdict in VERDICTS
    found = judge(published(intention=without(metric, run)))
    names = {"val_reward": "003-steps-kl", "response_length_tokens": "003-response-longer"}
    assert found[names.get(metric, "003-sequence-length")].published.verdict == "not testable"


def test_a_later_reward_makes_the_decline_comparable() -> None:
    found = judge(published(intention=with_row("nokl", "50", "val_reward", "2.002")))["003-milder-decline"].published
    # milder by 0.082, and four evaluations of standard error 0.13 have a noise of 1.96 x 0.26
    assert found.verdict == "not supported"
    assert said(found).startswith("last minus best: -0.118 (KL bundle) and -0.200 (no KL); 0.510 (noise)")
    lower = judge(published(intention=with_row("nokl", "50", "val_reward", "1.500")))["003-milder-decline"].published
    assert lower.verdict == "supported"  # 0.702 - 0.118 = 0.584


def reasons_of(*asked: Callable[[], object]) -> list[str]:
    found = []
    for ask in asked:
        with pytest.raises(NotTestable) as lack:
            ask()
        found.append(lack.value.reason.id.removeprefix("claims.why."))
    return found


def test_a_threshold_that_nobody_reaches_is_left_out() -> None:
    runs = reward_runs(references(), "004")
    assert reasons_of(
        lambda: list(reaches_thresholds_sooner(runs, sooner="kl", than="nokl", thresholds=(2.5, 3.0))),
        lambda: reaches_threshold_in_less_time(runs, sooner="kl", than="nokl", threshold=2.2),
        lambda: runs.reward("nokl", 50),
    ) == ["no_threshold", "never_reaches", "no_reward"]


def test_what_a_side_does_not_hold(tmp_path: Path) -> None:
    theirs, ours = published()["001"], our_sides(tmp_path, Ours())["002"]
    assert isinstance(theirs, PublishedLever)
    assert isinstance(ours, OurLever)
    assert reasons_of(
        lambda: theirs.same_selections(0.12, 0.18),
        lambda: theirs.lineage(0.3, 1),
        lambda: theirs.accuracy(0.18, 3, 200, 1),
        lambda: theirs.long_accuracy(0.18, 800, 1),
        lambda: ours.separation(0.12, 0.145, 1, 200, "mean"),
        lambda: ours.separation(0.12, 0.3, 1, 200, "mean"),
        lambda: ours.same_selections(0.12, 0.3),
    ) == [
        *("no_agreement", "no_lineage", "not_published", "no_curve"),
        *("no_comparison", "not_configured", "no_agreement"),
    ]


@pytest.mark.parametrize(
    ("file", "column", "value", "name", "reason"),
    [
        ("parameters", "share_differing", 0.0, "000-weights-too-small", "No share of differing weights is known."),
        ("training", "value", 1.0, "002-018-stable", "The seeds of a beta agree to the last digit."),
    ],
)
def test_numbers_of_ours_that_do_not_differ(
    tmp_path: Path, file: str, column: str, value: float, name: str, reason: str
) -> None:
    files = write_ours(tmp_path, Ours())
    pd.read_csv(files[file]).assign(**{column: value}).to_csv(files[file], index=False)
    found = judge_ours(sides_of(files, Ours()))[name].ours
    assert (found.verdict, said(found)) == ("not testable", reason)


def test_a_negative_curve_has_a_drawdown_without_a_share() -> None:
    found = curve_statistics(range(5), [0.0, -1.0, -2.0, -1.5, -1.0])
    assert found.drawdown == 2.0
    assert found.relative_drawdown != found.relative_drawdown
