from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache

import numpy as np
import pandas as pd
import pytest
from claim_files import KL, NO_KL, judge, published, said

from lever_pipe.report.claims.judged import JudgedClaim
from lever_pipe.report.claims.verdicts import VERDICTS

SUPPORTED, UNDECIDED, CONTRADICTED, UNTESTABLE = VERDICTS


def beyond(gap: float, noise: float) -> str:
    return SUPPORTED if gap > noise else CONTRADICTED if gap < -noise else UNDECIDED


def noise_of(left: float, right: float, n: int) -> float:
    """1.96 standard errors of a difference of two accuracies in percent."""
    return 1.96 * math.hypot(*(math.sqrt(p * (100 - p) / n) for p in (left, right)))


OTHERS = (57.0 + 56.1 + 55.1 + 55.2) / 4  # 0.12, 0.145, 0.155 and 0.18 at 200 samples
LABELLED_015 = (58.8 + 56.6 + 53.9 + 55.2) / 4
SD_OF_GAPS = float(np.std(np.subtract(KL, NO_KL), ddof=1))

# Each verdict from the numbers that the documents print, worked out here.
PINNED = {
    "000-validation-better": UNDECIDED,  # the mean and the last are lower, the minimum 7.977539 is not
    "000-ppo-steadier": UNTESTABLE,  # only mean, first and last are printed
    "001-identical-rows": SUPPORTED,
    "001-015-best": beyond(LABELLED_015 - OTHERS, noise_of(LABELLED_015, OTHERS, 200)),
    "001-015-because-of-beta": UNTESTABLE,
    "002-012-three-shots": beyond(55.1 - 53.9, noise_of(55.1, 53.9, 200)),
    "002-018-one-shot": UNDECIDED if abs(57.0 - 58.8) < noise_of(57.0, 58.8, 200) else CONTRADICTED,
    "003-step-10": SUPPORTED if KL[1] > NO_KL[1] else CONTRADICTED,
    "003-length-stability": UNTESTABLE,
    "003-kl-constrained": CONTRADICTED if (0.114 - 0.084) / 5 > (0.084 - 0.003) / 39 else SUPPORTED,
    "003-kl-prevents-drift": UNTESTABLE,
    "003-milder-decline": UNTESTABLE,
    "003-regularisation": UNTESTABLE,
    "003-collapse": UNTESTABLE,
    "004-five-steps": beyond(45 - 40, 5),
    "004-faster": CONTRADICTED,
    "004-more-stable": UNDECIDED,
    "004-drawdown": UNDECIDED,
    "004-sharp-fall": SUPPORTED if 1.830 - 1.750 > 1.992 - 1.768 else CONTRADICTED,
    "004-early": beyond((0.123 + 0.148 + 0.072) / 3, 2.306 * SD_OF_GAPS / math.sqrt(3)),
    "004-late": UNDECIDED,  # -0.120 and +0.197
    "004-insignificant": SUPPORTED,
    "004-exploration": UNTESTABLE,
}


@cache
def unchanged() -> Mapping[str, JudgedClaim]:
    return judge(published())


def test_every_claim_is_judged_on_both_sides() -> None:
    for name, of in unchanged().items():
        assert of.published.verdict in VERDICTS, name
        assert said(of.published), name
        assert of.ours.verdict == UNTESTABLE


@pytest.mark.parametrize("name", PINNED)
def test_a_published_verdict(name: str) -> None:
    assert unchanged()[name].published.verdict == PINNED[name], said(unchanged()[name].published)


def lever(file: str, value: str, **wanted: str) -> Callable[[pd.DataFrame], None]:
    """Replace the value of the rows of a file that have these fields."""

    def change(rows: pd.DataFrame) -> None:
        chosen = rows["source_file"].str.endswith(f":{file}.md")
        for column, text in wanted.items():
            chosen &= rows[column] == text
        assert chosen.sum() == 1
        rows.loc[chosen, "value"] = value

    return change


def intention(run: str, metric: str, value: str, step: str | None = None) -> Callable[[pd.DataFrame], None]:
    def change(rows: pd.DataFrame) -> None:
        chosen = (rows["run"] == run) & (rows["metric"] == metric)
        if step is not None:
            chosen &= rows["step"] == step
        assert chosen.any()
        rows.loc[chosen, "value"] = value

    return change


CURVES, BETAS = "KL_BETA_012_vs_015_训练曲线分析报告", "KL_BETA_0145_0155对比"
LEVER_MUTATIONS = [
    (lever(CURVES, "0.080000", kl_beta="0.15", epoch="50", metric="kl"), "000-kl-falls", UNDECIDED),
    (lever(CURVES, "7.970000", kl_beta="0.15", epoch="41", metric="val_loss"), "000-validation-better", SUPPORTED),
    (
        lever(BETAS, "57.2", kl_beta="0.145", epoch="1", metric="vqa_acc_pct", shot="1"),
        "001-identical-rows",
        CONTRADICTED,
    ),
    (lever(BETAS, "70.0", kl_beta="0.18", epoch="1", metric="vqa_acc_pct", shot="1"), "002-018-one-shot", SUPPORTED),
]
INTENTION_MUTATIONS = [
    (intention("nokl", "val_reward", "1.850", "10"), "003-step-10", SUPPORTED),
    (intention("kl", "kl_loss", "0.085", "45"), "003-kl-constrained", SUPPORTED),
    (intention("kl", "entropy", "0.200", "45"), "003-entropy-rises", UNDECIDED),
    (intention("kl", "val_reward", "1.000", "45"), "004-drawdown", CONTRADICTED),  # falls by 1.123
    (intention("nokl", "val_reward", "1.200", "40"), "004-drawdown", SUPPORTED),  # 0.94 is no noise of sd 0.13
]


@pytest.mark.parametrize(("change", "name", "expected"), LEVER_MUTATIONS)
def test_a_changed_number_of_study_lever(change: Callable[[pd.DataFrame], None], name: str, expected: str) -> None:
    assert judge(published(lever=change))[name].published.verdict == expected


@pytest.mark.parametrize(("change", "name", "expected"), INTENTION_MUTATIONS)
def test_a_changed_number_of_study_intention(change: Callable[[pd.DataFrame], None], name: str, expected: str) -> None:
    assert judge(published(intention=change))[name].published.verdict == expected


def test_a_large_gain_of_015_is_supported_and_a_large_loss_contradicts() -> None:
    def shifted(by: float) -> Callable[[pd.DataFrame], None]:
        def change(rows: pd.DataFrame) -> None:
            chosen = rows["source_file"].str.endswith(":2025-12-20正确率.md") & (rows["metric"] == "vqa_acc_pct")
            rows.loc[chosen, "value"] = [f"{float(value) + by:.2f}" for value in rows.loc[chosen, "value"]]

        return change

    # the noise is 9.7 points either way
    shifts = (12.0, 0.0, -3.0, -12.0)
    verdicts = [judge(published(lever=shifted(by)))["001-015-best"].published.verdict for by in shifts]
    assert verdicts == [SUPPORTED, UNDECIDED, UNDECIDED, CONTRADICTED]


def test_one_base_makes_the_cause_testable() -> None:
    def same_base(lineages: dict[str, dict[str, str]]) -> None:
        for fields in lineages.values():
            fields |= {"base_checkpoint": "one", "kl_beta_applied": "as labelled", "rl_data": "one"}

    found = judge(published(lineage=same_base))
    assert found["001-015-because-of-beta"].published.verdict == UNDECIDED  # within noise
    assert "also different" not in said(found["001-015-best"].published)


def test_one_schedule_makes_regularisation_testable_and_one_factor_the_kl_loss() -> None:
    def same(*metrics: str) -> Callable[[pd.DataFrame], None]:
        def change(rows: pd.DataFrame) -> None:
            rows.loc[rows["metric"].isin(metrics), "value"] = "same"

        return change

    one_schedule = judge(published(intention=same("lr_schedule")))
    assert one_schedule["003-regularisation"].published.verdict == UNDECIDED  # p = 0.56
    assert one_schedule["003-collapse"].published.verdict == UNDECIDED
    assert "also different" not in said(one_schedule["003-regularisation"].published)
    assert one_schedule["004-exploration"].published.verdict == UNTESTABLE  # the entropy bonus still differs
    found = judge(published(intention=same("lr_schedule", "entropy_coeff")))["004-exploration"].published
    assert found.verdict == UNDECIDED
    assert "also different" not in said(found)
