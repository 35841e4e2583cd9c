from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from claim_files import Ours, judge_ours, our_sides, said, sides_of, write_ours

from lever_pipe.report.claims.evaluate import JudgedClaim
from lever_pipe.report.claims.verdicts import VERDICTS

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
    "000-penalty-012": SUPPORTED,
    "000-loss-sum-015": SUPPORTED,
    "000-kl-differences": UNTESTABLE,  # about printed numbers
    "000-penalty-lower": UNDECIDED,  # 0.00456 < 0.00525, but of one seed
    "000-validation-earlier": UNDECIDED,  # both least at epoch 30
    "000-advantages-equal": SUPPORTED,
    "000-advantages-tell": UNDECIDED,
    "000-ppo-steadier": UNDECIDED,  # waves of 0.12 and 0.15 thousandths: F = 1.56 over 48 changes, p = 0.13
    "000-converged": UNDECIDED,  # one long seed
    "000-beta-acts-on-penalty": UNDECIDED,  # KL 0.039 and 0.036: 8 %, more than half of the KL loss's 13 %
    "000-same-selections": CONTRADICTED,  # 90 %
    "000-weights-differ": UNTESTABLE,  # every parameter is trained
    "000-weights-too-small": CONTRADICTED,
    "000-same-accuracy": SUPPORTED,  # no beta gains anything
    "001-one-setup": SUPPORTED,
    "001-identity-epoch-2-018": SUPPORTED,
    "001-own-row-018": SUPPORTED,
    "001-kl-largest": CONTRADICTED,  # 0.12 has the largest
    "001-kl-is-update": SUPPORTED,  # sizes fall with beta as the KL does
    "001-kl-epoch-3": SUPPORTED,
    "001-advantages-alike": SUPPORTED,
    "001-advantage-spread": CONTRADICTED,  # 0.25 in every run
    "001-identical-rows": SUPPORTED,
    "001-only-015-differs": UNDECIDED,  # the others agree, but 0.15 agrees with them
    "001-015-best": UNDECIDED,
    "001-epochs-identical": CONTRADICTED,  # an epoch gains half a point
    "002-one-setup": SUPPORTED,
    "002-015-one-shot": UNDECIDED,  # all betas are alike
    "002-018-closer": SUPPORTED,
    "002-012-kl-faster": UNDECIDED,  # the wave of seed 0 alone tells them apart
    "002-018-stable": UNDECIDED,  # sd of the validation loss is beta: F = 2.25 with 2 and 2 degrees
    "002-012-explores": SUPPORTED,  # 0.06 (1 - 0.001 seed): t = 1,000
    "002-epoch-2-own-rows": SUPPORTED,
    "002-beta-small": SUPPORTED,  # 0 +- 0.1
}


@pytest.mark.parametrize("name", EXPECTED)
def test_our_verdict(full: dict[str, JudgedClaim], name: str) -> None:
    assert full[name].ours.verdict == EXPECTED[name], said(full[name].ours)


def test_all_four_verdicts_occur(full: dict[str, JudgedClaim]) -> None:
    assert {found.ours.verdict for found in full.values()} == set(VERDICTS)


def test_study_intention_has_no_run(full: dict[str, JudgedClaim]) -> None:
    for name, found in full.items():
        if found.claim.document in ("003", "004"):
            assert said(found.ours) == "This configuration holds no run of study `intention`.".replace("`", ""), name
            assert found.ours.verdict == UNTESTABLE


def test_our_numbers_are_logged_and_not_printed(full: dict[str, JudgedClaim]) -> None:
    # KL 0.1 - 0.02 - 0.018 + 0.0001 with seeds 0, 1 and 2; loss 0.022 + 0.18 x 0.0621
    assert said(full["001-identity-epoch-2-018"].ours) == "0.0220000 + 0.18 x 0.0621000 = 0.0331780, logged 0.0331780"


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
    # one point and its tenth do not fit into 0.28
    assert found["002-beta-small"].ours.verdict == CONTRADICTED


def test_another_factor_makes_the_cause_untestable(tmp_path: Path) -> None:
    sides = our_sides(tmp_path, replace(FULL, gain={0.15: 1.0}, p=0.01))
    files = write_ours(tmp_path, replace(FULL, gain={0.15: 1.0}, p=0.01))
    text = files["lineage"].read_text()
    files["lineage"].write_text(
        text.replace("beta~0.15/epoch~1,base_checkpoint,abc", "beta~0.15/epoch~1,base_checkpoint,xyz")
    )
    from lever_pipe.report.lineage import read_lineage

    changed = {name: replace(side, lineages=read_lineage(files["lineage"])) for name, side in sides.items()}  # type: ignore[type-var]
    found = judge_ours(changed)
    assert found["001-015-because-of-beta"].ours.verdict == UNTESTABLE
    assert said(found["001-015-because-of-beta"].ours).endswith("also different: Base checkpoint")
    assert found["001-015-best"].ours.verdict == SUPPORTED
    assert found["001-one-setup"].ours.verdict == CONTRADICTED


def test_frozen_parameters_are_counted(tmp_path: Path) -> None:
    # 50.15 % against 100 * 263680 / 525824 = 50.146
    found = of(tmp_path, replace(FULL, trained="attention and layer norm"))
    assert found["000-weights-differ"].ours.verdict == SUPPORTED


def test_full_agreement_is_agreement(tmp_path: Path) -> None:
    found = of(tmp_path, replace(FULL, agreement=1.0))
    assert found["000-same-selections"].ours.verdict == SUPPORTED
    assert found["000-weights-too-small"].ours.verdict == SUPPORTED


def test_selections_are_compared_at_the_first_demonstration(full: dict[str, JudgedClaim], tmp_path: Path) -> None:
    # at 2 to 4 shots 45 % agree
    where = "same first demonstration at shot 1 after epoch 3, %"
    assert said(full["000-same-selections"].ours) == f"90.00, printed 100; {where}"
    assert said(full["000-weights-too-small"].ours).startswith(f"{where}: 90.00; ")
    assert of(tmp_path, replace(FULL, shots=(2, 4)))["000-same-selections"].ours.verdict == UNTESTABLE


def test_no_share_is_taken_of_zero(tmp_path: Path) -> None:
    files = write_ours(tmp_path, Ours())
    rows = pd.read_csv(files["training"])
    rows.assign(value=0.0).to_csv(files["training"], index=False)
    found = judge_ours(sides_of(files, FULL))
    for name in ("000-beta-acts-on-penalty", "000-converged", "001-kl-spread"):
        assert said(found[name].ours) == "The comparison needs a share of a number that is zero."


def test_one_seed_has_no_spread(tmp_path: Path) -> None:
    found = of(tmp_path, replace(FULL, seeds=(0,)))
    for name in ("001-low-loss-stable", "002-018-stable", "002-012-explores"):
        assert found[name].ours.verdict == UNTESTABLE
        assert said(found[name].ours).startswith("One seed of 0.1")
    # 000-ppo-lower: nine thousandths between two single runs are no order of betas
    for name in ("000-ppo-lower", "001-kl-largest", "002-018-closer", "002-015-one-shot"):
        assert found[name].ours.verdict == UNDECIDED, name
        assert said(found[name].ours).endswith("one seed: no inference about runs")


def test_a_small_configuration_names_what_is_missing(tmp_path: Path) -> None:
    small = Ours(betas=(0.0, 0.15), epochs=1, seeds=(0,), samples=(8, 16), shots=(1, 2), long_betas=())
    found = of(tmp_path, small)
    assert said(found["000-kl-falls"].ours) == "There is no training-curve run of KL_BETA 0.12."
    assert said(found["001-kl-largest"].ours) == "KL_BETA 0.145, epoch 1 is not part of this configuration."
    assert said(found["001-015-best"].ours) == "KL_BETA 0.12, epoch 1 is not part of this configuration."
    assert {of.ours.verdict for of in found.values()} == {UNTESTABLE}


def test_the_nearest_sample_count_stands_in(tmp_path: Path) -> None:
    found = of(tmp_path, replace(FULL, samples=(150, 600)))
    assert said(found["001-identical-rows"].ours).startswith("shots 1 to 4: 52.50 /")
    # 100, 200 and 400 lie nearest to 150, 150 and 600 (of 250 and 200 away), 800 to 600
    assert said(found["002-015-one-shot"].ours).count("samples") == 4


def test_nothing_trained_is_nothing_testable(tmp_path: Path) -> None:
    found = of(tmp_path, Ours(betas=(), long_betas=()))
    assert {of.ours.verdict for of in found.values()} == {UNTESTABLE}


@pytest.mark.parametrize(("gain", "expected"), [(1.0, SUPPORTED), (-1.0, CONTRADICTED), (0.0, UNDECIDED)])
def test_an_order_of_betas_is_judged_over_the_seeds(tmp_path: Path, gain: float, expected: str) -> None:
    # all seeds of a beta gain alike, so that any difference is separated
    assert of(tmp_path, replace(FULL, gain={0.15: gain}))["002-015-one-shot"].ours.verdict == expected


def test_an_order_that_seeds_do_not_share_is_not_decided(tmp_path: Path) -> None:
    files = write_ours(tmp_path, FULL)
    rows = pd.read_csv(files["training"])
    chosen = (rows["metric"] == "kl") & (rows["kl_beta"] == 0.145) & (rows["seed"] == 0)
    rows.loc[chosen, "value"] += 0.1  # the largest of seed 0, and not of seeds 1 and 2
    rows.to_csv(files["training"], index=False)
    found = judge_ours(sides_of(files, FULL))["001-kl-largest"].ours
    assert found.verdict == UNDECIDED
    assert "paired t over 3 seeds, p 0.4" in said(found)
