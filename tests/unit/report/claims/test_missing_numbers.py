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
    reward_runs,
    said,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from lever_pipe.report.claims.book import Claim
from lever_pipe.report.claims.judged import judge_claims
from lever_pipe.report.claims.verdicts import VERDICTS
from lever_pipe.report.evidence import Evidence
from lever_pipe.report.reference import FILES
from lever_pipe.report.sources import published_agents

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
    names = {name for files in FILES.values() for name in files}
    files = pd.read_csv(REFERENCE)["source_file"].str.rpartition(":")[2]
    return [at for at, name in enumerate(files) if name in names]


def without(metric: str, run: str = "kl", step: str | None = None) -> Change:
    def change(rows: pd.DataFrame) -> None:
        chosen = (rows["metric"] == metric) & (rows["run"] == run)
        if step is not None:
            chosen &= rows["step"] == step
        assert chosen.any()
        rows.loc[chosen, "metric"] = "removed"

    return change


def with_row(run: str, step: str, metric: str, value: str) -> Change:
    def change(rows: pd.DataFrame) -> None:
        rows.loc[len(rows)] = ["003_more.txt", run, step, metric, value, ""]

    return change


@pytest.mark.parametrize(
    ("change", "name", "reason"),
    [
        (without("kl_loss", step="40"), "003-kl-constrained", "Too few such numbers"),
        (without("entropy"), "003-entropy-rises", "Too few such numbers"),
        (with_row("nokl", "40", "kl_loss", "0.2"), "003-kl-prevents-drift", "The runs have too few steps in common."),
        (without("val_reward", "nokl", "20"), "004-sharp-fall", "No reward of no KL is known at step 20."),
        (without("val_reward"), "004-more-stable", "Fewer than 5 evaluations lie at the same steps"),
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


def test_a_later_reward_makes_the_decline_comparable() -> None:
    found = judge(published(intention=with_row("nokl", "50", "val_reward", "2.002")))["003-milder-decline"].published
    # milder by 0.082, and four evaluations of standard error 0.13 have a noise of 1.96 x 0.26
    assert found.verdict == "not supported"
    assert said(found).startswith("last minus best: -0.118 (KL bundle) and -0.200 (no KL); 0.510 (noise)")
    lower = judge(published(intention=with_row("nokl", "50", "val_reward", "1.500")))["003-milder-decline"].published
    assert lower.verdict == "supported"  # 0.702 - 0.118 = 0.584


def test_a_selector_that_is_not_there_is_named(tmp_path: Path) -> None:
    found = judge_ours(our_sides(tmp_path, Ours(betas=(0.12, 0.15), shots=(1, 2))))
    assert said(found["001-identical-rows"].ours) == "Shot 3 is not part of this configuration."
    assert said(found["001-015-best"].ours) == "KL_BETA 0.145, epoch 1 is not part of this configuration."
    assert said(found["002-012-three-shots"].ours) == "No comparison of 0.12 and 0.15 was made."
