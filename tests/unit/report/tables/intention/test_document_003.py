from __future__ import annotations

import math

import pytest
from agent_runs import ARMS, Study
from agent_tables import Tabulate, Tabulated
from claim_files import KL, NO_KL, STEPS

from lever_pipe.report.tables.intention.document_003 import SAMPLED_COLUMNS

OURS, PUBLISHED = "ours (embedded world, 0.23 M)", "published (Qwen3-8B, IntentionGym)"
ESTIMATES = ["1.85", "1.90", "1.95", "2.00", "2.05", "2.10", "2.15"]
PRINTED = ["-0.123", "+0.142", "-0.132", "-0.035", "-0.030", "-0.222", "-0.260", "-0.027", "-0.197"]


def test_every_row_says_of_which_scale_it_is(default: Tabulated) -> None:
    for name, table in default.tables.items():
        if table.document in ("003", "004"):
            assert set(table.frame["Source"]) <= {OURS, PUBLISHED}, name
            assert "Ours: embedded world, tiny Qwen3, 227,808 parameters." in table.caption, name
            assert "Published: IntentionGym with Qwen3-8B." in table.caption, name


def test_the_tables_of_the_document(default: Tabulated) -> None:
    assert [name for name, table in default.tables.items() if table.document == "003"] == [
        *("003-configuration", "003-validation-reward", "003-losses", "003-lengths", "003-efficiency")
    ]


def test_the_configuration(default: Tabulated) -> None:
    def cells(setting: str, source: str) -> tuple[str, str]:
        row = default.row("003-configuration", Setting=setting, Source=source)
        return row["no KL"], row["KL bundle"]

    assert cells("Model", "published") == ("Qwen3-8B", "Qwen3-8B")
    assert cells("KL loss", "published") == cells("KL loss", "ours") == ("no", "yes (coefficient 0.01)")
    assert cells("Entropy coefficient", "published") == ("0", "0.01")
    assert cells("Learning rate", "published") == ("1e-6", "not stated")
    assert cells("Learning rate", "ours") == ("0.0002", "0.0002")
    assert cells("Learning-rate schedule", "published") == ("fixed", "warmup+cosine")
    assert cells("Learning-rate schedule", "ours") == ("fixed", "warm-up of 5 steps, then cosine")
    assert cells("Responses a prompt", "published") == cells("Responses a prompt", "ours") == ("8", "8")
    assert cells("Planned steps", "published") == ("not stated", "not stated")
    assert cells("Stated steps (document: trained)", "published") == ("485", "465")
    assert not default.rows("003-configuration", Setting="Stated steps", Source="ours")
    assert "ours by the sum of the turn rewards, the published runs by one that is not stated" in (
        default.tables["003-configuration"].caption
    )
    assert cells("Last evaluated step", "published") == ("45", "45")
    assert cells("Planned steps", "ours") == cells("Executed steps", "ours") == ("45", "45")
    assert cells("Training seeds", "ours") == ("seeds 0, 1 and 2",) * 2


def test_every_printed_reward_estimate_and_difference(default: Tabulated) -> None:
    rows = default.rows("003-validation-reward", Source="published")
    assert [row["Step"] for row in rows] == [*map(str, STEPS), "best"]
    estimates = [f"{text} (estimate)" for text in ESTIMATES]
    assert [row["no KL"] for row in rows[:-1]] == ["1.818", *estimates, "2.202"]
    assert [row["KL bundle"] for row in rows[:-1]] == [f"{value:.3f}" for value in KL]
    marks = ["", *[" (to an estimate)"] * 7, ""]
    assert [row["Difference"] for row in rows[:-1]] == [a + b for a, b in zip(PRINTED, marks, strict=True)]
    assert not any(row[column] for row in rows for column in SAMPLED_COLUMNS)
    best = rows[-1]
    assert (best["no KL"], best["KL bundle"], best["Difference"]) == ("2.202 (step 45)", "2.123 (step 40)", "-0.079")
    assert f"{max(NO_KL):.3f}" == "2.202"


def test_our_rewards_are_means_over_seeds(default: Tabulated) -> None:
    rows = default.rows("003-validation-reward", Source="ours")
    assert [row["Step"] for row in rows] == [*map(str, range(0, 50, 5)), "best"]
    runs = default.shown.runs
    for row in rows[:-1]:
        for mode, suffix in (("greedy", ""), ("sampled", ", sampled")):
            values = [
                math.fsum(runs.validation(arm, seed, mode)[int(row["Step"])] for seed in range(3)) / 3
                for arm in ("baseline", "bundle")
            ]
            # three decimals
            assert float(row[f"no KL{suffix}"]) == pytest.approx(values[0], abs=5.01e-4)
            assert float(row[f"Difference{suffix}"]) == pytest.approx(values[1] - values[0], abs=5.01e-4)


def test_losses_stand_at_the_printed_steps(default: Tabulated) -> None:
    def cells(metric: str, run: str, source: str) -> list[str]:
        row = default.row("003-losses", Metric=metric, Run=run, Source=source)
        return [row[f"Step {step}"] for step in (1, 5, 40, 45)]

    assert cells("PG loss", "no KL", "published") == ["0.280", "0.033", "", ""]
    assert cells("PG loss", "KL bundle", "published") == ["0.201", "", "0.175", ""]
    assert cells("KL loss", "KL bundle", "published") == ["0.003", "", "0.084", "0.114"]
    assert cells("Entropy, all response tokens", "KL bundle", "published") == ["0.216", "", "0.256", "0.281"]
    assert cells("Gradient norm", "no KL", "published") == ["1.098", "1.160", "", ""]
    assert not default.rows("003-losses", Metric="KL loss", Run="no KL", Source="published")  # not logged
    # KL 0.0009 x step and 1e-4 a seed; 0.001 without the KL loss
    assert cells("KL loss", "KL bundle", "ours") == ["0.001", "0.005", "0.036", "0.041"]
    assert cells("KL loss", "no KL", "ours") == ["0.001", "0.005", "0.040", "0.045"]
    assert cells("Entropy, agent tokens", "KL bundle", "ours") == ["0.408", "0.400", "0.330", "0.320"]


def test_how_near_its_ceiling_a_curve_starts(default: Tabulated, tabulated: Tabulate) -> None:
    caption = default.tables["003-validation-reward"].caption
    # eight tasks with two to four details, worth 1.7, 2.4 and 2.8: mean ceiling (3 x 1.7 + 3 x 2.4 + 2 x 2.8) / 8
    start = default.shown.runs.mean_validation("baseline", "greedy")[0]
    assert f"at step 0, ours: greedy {100 * start / 2.2375:.1f} %, sampled " in caption
    assert "little room" not in caption
    found = tabulated(Study(arms=(ARMS[0], ARMS[4]), steps=10, skill=lambda *_: 1.0))
    caption = found.tables["003-validation-reward"].caption
    assert "greedy 100.0 %, sampled 100.0 %. Our greedy curves start near their ceiling" in caption


def test_lengths_are_called_what_they_are(default: Tabulated) -> None:
    published = {(row["Quantity"], row["Step"]): row for row in default.rows("003-lengths", Source="published")}
    assert published["Tokens of a device and step", "5"]["no KL"] == "about 59839"
    assert published["Tokens of a device and step", "10"]["KL bundle"] == "about 59544"
    assert published["Response length", "5"]["no KL"] == "about 2709"
    assert published["Response length", "10"]["KL bundle"] == "about 2980"
    assert ("Mean sequence length", "5") not in published
    # 64 episodes of 90 + sin(5 + seed) tokens, mean over seeds 0, 1 and 2
    wave = sum(math.sin(5 + seed) for seed in range(3)) / 3
    row = default.row("003-lengths", Quantity="Tokens of a device", Step="5", Source="ours")
    assert row["no KL"] == f"{64 * (90 + wave):.0f}"


def test_efficiency_without_a_peak(default: Tabulated) -> None:
    def cells(quantity: str, source: str) -> tuple[str, str]:
        row = default.row("003-efficiency", Quantity=quantity, Source=source)
        return row["no KL"], row["KL bundle"]

    assert cells("Seconds a step", "published") == ("193 to 205", "205 to 220")
    assert cells("Tokens a second and device", "published") == ("262 to 297", "247 to 285")
    assert cells("MFU of the update", "published") == ("0.306 to 0.340", "0.280 to 0.375")
    # 1.5 s, 0.1 s more with an evaluation, 0.01 s a seed
    assert cells("Seconds a step", "ours") == ("1.50 to 1.62",) * 2
    assert not default.rows("003-efficiency", Quantity="MFU", Source="ours")
    caption = default.tables["003-efficiency"].caption
    assert "No MFU of ours: no peak is known of this device." in caption
    assert "Every arm of ours computes the log-probabilities of the reference" in caption
    assert cells("Log-probabilities of the reference", "ours") == ("5.0", "5.0")
    parts = ("Rollout", "Log-probabilities of the policy", "Log-probabilities of the reference", "Update")
    assert sum(float(cells(part, "ours")[0]) for part in parts) == pytest.approx(90)  # 60 + 5 + 5 + 20 of the fixture
    assert "published seconds include evaluations and checkpoints, ours leave both out." in caption


def test_a_known_peak_gives_two_kinds_of_mfu(tabulated: Tabulate) -> None:
    study = Study(arms=(ARMS[0], ARMS[4]), steps=10, metrics={"mfu_update": 0.3, "mfu_step": 0.02}, device="cuda")
    found = tabulated(study, is_world=False, scale="Qwen3-0.6B on embedded tasks")
    row = found.row("003-efficiency", Quantity="MFU of the whole step")
    assert row["Source"] == "ours (Qwen3-0.6B on embedded tasks, 0.23 M)"
    assert row["no KL"] == "0.020 to 0.020"
    assert "says nothing about most of a step" in found.tables["003-efficiency"].caption
