from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from claim_files import Ours, judge_ours, our_sides, said, sides_of, write_ours

from lever_pipe.report.claims.judged import JudgedClaim
from lever_pipe.report.claims.verdicts import VERDICTS
from lever_pipe.report.lineage import read_lineage

SUPPORTED, UNDECIDED, CONTRADICTED, UNTESTABLE = VERDICTS

FULL = Ours()


def of(folder: Path, configuration: Ours) -> dict[str, JudgedClaim]:
    return judge_ours(our_sides(folder, configuration))


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> dict[str, JudgedClaim]:
    return of(tmp_path_factory.mktemp("full"), FULL)


def test_no_claim_is_about_on_policy_runs(full: dict[str, JudgedClaim], tmp_path: Path) -> None:
    assert of(tmp_path, replace(FULL, drawn_betas=(0.0, 0.12, 0.15, 1.0))) == full


# KL falls with epoch and beta; PPO loss rises with the epoch and is one for all betas; loss = PPO + beta KL.
EXPECTED = {
    "000-kl-falls": UNDECIDED,  # one long seed a beta
    "000-penalty-lower": UNDECIDED,  # 0.00456 < 0.00525, but of one seed
    "000-ppo-steadier": UNDECIDED,  # waves of 0.12 and 0.15 thousandths: F = 1.56 over 48 changes, p = 0.13
    "001-identical-rows": SUPPORTED,
    "001-015-best": UNDECIDED,
}


@pytest.mark.parametrize("name", EXPECTED)
def test_our_verdict(full: dict[str, JudgedClaim], name: str) -> None:
    assert full[name].ours.verdict == EXPECTED[name], said(full[name].ours)


def test_study_intention_has_no_run(full: dict[str, JudgedClaim]) -> None:
    for name, found in full.items():
        if found.claim.document in ("003", "004"):
            assert said(found.ours) == "This configuration holds no run of study `intention`.".replace("`", ""), name
            assert found.ours.verdict == UNTESTABLE


@pytest.mark.parametrize(
    ("gain", "p", "expected"),
    [(1.0, 0.01, SUPPORTED), (1.0, 0.2, UNDECIDED), (-1.0, 0.01, CONTRADICTED), (-1.0, 0.2, UNDECIDED)],
)
def test_a_comparison_decides_by_holm(tmp_path: Path, gain: float, p: float, expected: str) -> None:
    found = of(tmp_path, replace(FULL, gain={0.15: gain}, p=p))
    for name in ("001-015-best", "001-015-because-of-beta", "002-012-below", "002-015-balance"):
        assert found[name].ours.verdict == expected, name
    # -0.9 to 1.1 round a gain of 1
    assert "(0.15 minus 0.12)" in said(found["002-012-below"].ours)
    assert "Holm p" in said(found["002-012-below"].ours)


def test_another_factor_makes_the_cause_untestable(tmp_path: Path) -> None:
    sides = our_sides(tmp_path, replace(FULL, gain={0.15: 1.0}, p=0.01))
    files = write_ours(tmp_path, replace(FULL, gain={0.15: 1.0}, p=0.01))
    text = files["lineage"].read_text()
    files["lineage"].write_text(
        text.replace("beta~0.15/epoch~1,base_checkpoint,abc", "beta~0.15/epoch~1,base_checkpoint,xyz")
    )
    changed = {name: replace(side, lineages=read_lineage(files["lineage"])) for name, side in sides.items()}  # type: ignore[type-var]
    found = judge_ours(changed)
    assert found["001-015-because-of-beta"].ours.verdict == UNTESTABLE
    assert said(found["001-015-because-of-beta"].ours).endswith("also different: Base checkpoint")
    assert found["001-015-best"].ours.verdict == SUPPORTED


def test_one_seed_is_no_inference(tmp_path: Path) -> None:
    # nine thousandths between two single runs are no order of betas
    for name in ("000-ppo-lower", "000-validation-better"):
        found = of(tmp_path, replace(FULL, seeds=(0,)))[name].ours
        assert found.verdict == UNDECIDED, name
        assert said(found).endswith("one seed: no inference about runs")


@pytest.mark.parametrize("is_shared", [True, False])
def test_an_order_of_betas_is_judged_over_the_seeds(tmp_path: Path, is_shared: bool) -> None:
    # every seed is a training-curve run whose KL falls, or rises with seed 2
    files = write_ours(tmp_path, replace(FULL, epochs=12, long_epochs=12))
    rows = pd.read_csv(files["training"])
    chosen = (rows["metric"] == "kl") & (rows["epoch"] == 12) & (rows["seed"] == 2)
    rows.loc[chosen, "value"] += 0.0 if is_shared else 0.2
    rows.to_csv(files["training"], index=False)
    found = judge_ours(sides_of(files, FULL))["000-kl-falls"].ours
    assert found.verdict == (SUPPORTED if is_shared else UNDECIDED)
    assert "paired t over 3 seeds, p" in said(found)


def test_nothing_trained_is_nothing_testable(tmp_path: Path) -> None:
    found = of(tmp_path, Ours(betas=(), long_betas=()))
    assert {of.ours.verdict for of in found.values()} == {UNTESTABLE}
