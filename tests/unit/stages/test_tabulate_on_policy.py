from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import on_policy_files
import pandas as pd
import pytest
from on_policy_files import Size

from lever_pipe.base.errors import ComparisonError, LeverPipeError, RecordError
from lever_pipe.experiment.stage_configs import TabulateOnPolicyConfig
from lever_pipe.stages.tabulate_on_policy import tabulate_on_policy

Tables = dict[str, dict[str, Any]]
NAMES = ("gains", "betas", "marks", "mark-differences", "cost", "drawn-ties", "gains-by-shots", "cells")


def tabulate(folder: Path, size: Size, **changes: Any) -> Path:
    return run(folder, on_policy_files.write(folder, size), size, **changes)


def run(folder: Path, inputs: dict[str, Path], size: Size, **changes: Any) -> Path:
    values = {"main_preset": "main", "data": "world", "lvlm": "tiny-reader", "samples": size.samples}
    config = TabulateOnPolicyConfig.model_validate({**values, "shots": size.shots, **changes})
    outputs = {"tables": folder / "tables.json", "csv": folder / "csv"}
    tabulate_on_policy(**inputs, **outputs, config=config)  # type: ignore[arg-type]
    return folder / "tables.json"


def load(path: Path) -> Tables:
    return {table["id"]: table for table in json.loads(path.read_text())}


def row(table: dict[str, Any], *keys: str) -> dict[str, str]:
    """Return the row of a table whose first cells are `keys`."""
    found = [row for row in table["rows"] if tuple(row[: len(keys)]) == keys]
    assert len(found) == 1, (table["id"], keys, found)
    return dict(zip(table["columns"], found[0], strict=True))


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Tables:
    return load(tabulate(tmp_path_factory.mktemp("full"), Size()))


def test_every_table_is_there_says_whose_numbers_it_holds_and_is_a_file(tmp_path: Path) -> None:
    found = load(tabulate(tmp_path, Size()))
    assert set(found) == {f"on-policy-{name}" for name in (*NAMES, "ties")}
    for name, table in found.items():
        preset = "every preset" if name == "on-policy-ties" else "preset `main`"
        assert table["caption"].startswith(f"Ours: {preset}, embedded world. ")
        assert table["document"] == "on_policy"
        assert {(tmp_path / "csv" / f"{name}.{kind}").exists() for kind in ("csv", "md")} == {True}


def test_gains_are_the_paired_differences_with_prompts_and_tests(tables: Tables) -> None:
    found = row(tables["on-policy-gains"], "on-policy", "0", "3")
    # seed 0 at 400 samples, mean over shots: 40 + 2.5 - 2 + 0.5 x 6 x 3; 3 epochs of 800 prompts after 4000
    assert (found["Seeds"], found["Prompts"], found["Accuracy"]) == ("1", "6400", "49.50 [47.5, 51.5]")
    assert {found[name] for name in ("Gain", *(f"Gain, shot {k}" for k in (1, 2, 3, 4)))} == {"+9.00 [8.0, 10.0]"}
    assert (found["p"], found["Holm p"]) == ("0.002", "0.010")
    offline = row(tables["on-policy-gains"], "offline", "0.15", "3")
    assert (offline["Seeds"], offline["Prompts"], offline["Gain"]) == ("3", "4000", "+0.75 [-0.3, 1.8]")
    base = row(tables["on-policy-gains"], "RCE base")
    assert (base["Accuracy"], base["Gain"]) == ("41.50 [39.5, 43.5]", "")


def test_the_lead_counts_what_is_separated_and_the_caption_what_was_adjusted(tables: Tables) -> None:
    table = tables["on-policy-gains"]
    gain = "+9.00 [8.0, 10.0]"
    shots = "; ".join(f"{gain} at shot {k}" for k in (1, 2, 3, 4))
    assert table["lead"] == (
        f"On-policy GRPO with KL_BETA=0 after epoch 3, against its RCE base: {shots}; {gain} mean over shots. "
        # gains of 9, 7.5 and 6 points exceed 4, those of 0.75 do not
        "Separated from the RCE base (Holm p below 0.05), mean over shots: on-policy 3 of 3 KL_BETA above it and 0 "
        "below; offline 0 of 2 KL_BETA above it and 0 below."
    )
    for said in (
        "Holm p: adjusted for its family, 3 comparisons on-policy and 2 comparisons offline.",
        "those of the RL data that its RCE base learned from, without those of validation queries",
        "On-policy: one seed (0). Offline: 3 seeds (0, 1 and 2).",
        "Where one seed is compared, intervals and p values hold for further questions, for these very checkpoints",
    ):
        assert said in table["caption"], said


def test_a_loss_is_not_counted_as_a_gain(tmp_path: Path) -> None:
    inputs = on_policy_files.write(tmp_path, Size())
    comparisons = pd.read_csv(inputs["comparisons"])
    is_one = comparisons["left"].str.contains("on_policy/base~5/beta~1/") & (comparisons["shots"] == "mean")
    comparisons.loc[is_one, "difference"] = -6.0
    is_middle = comparisons["left"].str.contains("on_policy/base~5/beta~0.15/") & (comparisons["shots"] == "mean")
    comparisons.loc[is_middle, ["difference", "p", "p_holm"]] = [-3.0, 0.01, 0.06]  # adjusted, it is not separated
    comparisons.to_csv(inputs["comparisons"], index=False)
    lead = load(run(tmp_path, inputs, Size()))["on-policy-gains"]["lead"]
    assert "on-policy 1 of 3 KL_BETA above it and 1 below;" in lead


def test_by_shots_has_every_comparison_with_its_runs(tables: Tables) -> None:
    table = tables["on-policy-gains-by-shots"]
    assert len(table["rows"]) == (1 + 3 + 2) * 5
    found = row(table, "on-policy", "0.15", "3", "2")
    assert found["Accuracy"] == "47.50 [45.5, 49.5]"  # 40 + 2 - 2 + 0.5 x 5 x 3
    assert (found["Difference"], found["Detectable"], found["Seeds compared"]) == ("+7.50 [6.5, 8.5]", "3.00", "1")
    assert row(table, "offline", "0", "3", "mean")["Seeds compared"] == "3"


def test_cells_have_every_epoch_and_sample_count(tables: Tables) -> None:
    table = tables["on-policy-cells"]
    # RCE base, three and two betas by three epochs, three epochs of each mark; two sample counts
    assert len(table["rows"]) == (1 + 9 + 6 + 3 + 3) * 2
    found = row(table, "offline", "0.15", "2", "100")
    # mean over seeds 0 to 2: 40 + shots + 1 + 0.25 x 2
    assert [found[f"Shot {k}"] for k in (1, 4)] == ["42.50 [40.5, 44.5]", "45.50 [43.5, 47.5]"]
    assert found["Mean"] == "44.00 [42.0, 46.0]"
    assert row(table, "distillation", "", "1", "400")["Shot 1"] == "44.00 [42.0, 46.0]"  # 40 + 1 - 2 + 5


def test_cost_is_the_gain_over_the_same_seeds_by_prompts(tables: Tables) -> None:
    table = tables["on-policy-cost"]
    found = row(table, "on-policy", "0", "2")
    # +6 over seed 0 of the base, although all its seeds lie one point higher; 4000 of the base, 16 steps of 100 prompts
    assert (found["Prompts"], found["Gain"], found["Gain per 1,000 prompts"]) == ("5600", "+6.00", "+1.071")
    assert row(table, "REINFORCE", "", "1")["Gain per 1,000 prompts"] == "+0.208"  # 1 point for 4800 prompts
    offline = row(table, "offline", "0", "3")
    assert (offline["Prompts"], offline["Gain per 1,000 prompts"]) == ("4000", "+0.188")  # 0.75 / 4
    assert table["lead"] == (
        "Points for 1,000 prompts: on-policy with KL_BETA=0 +0.625 up to epoch 1 and +1.406 up to epoch 3; "
        "offline with KL_BETA=0 +0.063 up to epoch 1 and +0.188 up to epoch 3."
    )


def test_betas_show_the_end_of_the_steps(tables: Tables) -> None:
    table = tables["on-policy-betas"]
    first, middle, last = (row(table, beta) for beta in ("0", "0.15", "1"))
    # the last 6 of 24 steps are 18 to 23, their mean 20.5; KL 0.1 a step by 1 + i, entropy 3 - 0.05 a step
    assert [found["Exact KL"] for found in (first, middle, last)] == ["2.0500", "1.0250", "0.6833"]
    assert first["Entropy"] == "1.975"
    assert (first["Difference"], middle["Difference"]) == ("", "-1.50 [-2.5, -0.5]")
    assert [found["Same choice, 1 shot"] for found in (first, middle, last)] == ["10.00", "20.00", "30.00"]
    assert middle["Same choice, 4 shots"] == "17.00"
    assert "Holm p: adjusted for 2 comparisons." in table["caption"]


def test_the_betas_lead_says_that_none_is_separated_and_where_the_divergence_halves(tables: Tables) -> None:
    assert tables["on-policy-betas"]["lead"] == (
        "No KL_BETA is separated from KL_BETA=0 at the mean over shots: the smallest Holm p is 0.500. "
        # half of 2.05 is 1.025 itself at 0.15, which is not below it
        "From KL_BETA=1 on the exact KL at the end is below half of that at KL_BETA=0 (2.050 nats a pick)."
    )


def test_the_betas_lead_names_the_smallest_separated_one(tmp_path: Path) -> None:
    size = Size(betas=(0.0, 0.1, 0.2, 0.3, 1.0))
    lead = load(tabulate(tmp_path, size))["on-policy-betas"]["lead"]
    # each step costs 1.5 points, and more than 4 are separated
    said = (
        "The smallest KL_BETA separated from KL_BETA=0 (Holm p below 0.05, mean over shots): 0.3, "
        "-4.50 points, and every larger one."
    )
    assert lead.startswith(said)


def test_a_gap_above_the_smallest_separated_beta_is_said(tmp_path: Path) -> None:
    size = Size(betas=(0.0, 0.1, 0.2))
    inputs = on_policy_files.write(tmp_path, size)
    comparisons = pd.read_csv(inputs["comparisons"])
    is_first = (comparisons["family"] == "on-policy-betas") & comparisons["left"].str.contains("beta~0.1/")
    comparisons.loc[is_first, "p_holm"] = 0.049
    comparisons.to_csv(inputs["comparisons"], index=False)
    assert (
        "mean over shots): 0.1, -1.50 points, but not every larger one."
        in load(run(tmp_path, inputs, size))["on-policy-betas"]["lead"]
    )


def test_a_divergence_that_rises_again_is_not_halved_before(tmp_path: Path) -> None:
    size = Size(betas=(0.0, 0.1, 0.2, 0.3, 0.4))
    inputs = on_policy_files.write(tmp_path, size)
    steps = pd.read_csv(inputs["steps"])
    # from 0.2 on they have 1/3, 1/4 and 1/5 of the first, but that of 0.3 is raised to all of it
    steps.loc[(steps["metric"] == "kl_exact") & (steps["kl_beta"] == 0.3), "value"] *= 4
    steps.to_csv(inputs["steps"], index=False)
    assert " From KL_BETA=0.4 on the exact KL" in load(run(tmp_path, inputs, size))["on-policy-betas"]["lead"]
    steps.loc[(steps["metric"] == "kl_exact") & (steps["kl_beta"] > 0), "value"] = 9.0
    steps.to_csv(inputs["steps"], index=False)
    lead = load(run(tmp_path, inputs, size))["on-policy-betas"]["lead"]
    assert " At no KL_BETA up to 0.4 the exact KL at the end is below half of that at KL_BETA=0 (2.050" in lead


def test_logged_metrics_are_means_over_seeds(tmp_path: Path) -> None:
    tables = load(tabulate(tmp_path, Size(drawn_seeds=(0, 1, 2))))
    # seed s logs 10 s % more: 2.05 x 1.1
    assert row(tables["on-policy-betas"], "0")["Exact KL"] == "2.2550"
    assert row(tables["on-policy-gains"], "on-policy", "0", "3")["Prompts"] == "6400"
    assert "On-policy: 3 seeds (0, 1 and 2). Offline: 3 seeds (0, 1 and 2)." in tables["on-policy-gains"]["caption"]


def test_a_gain_is_the_mean_over_the_seeds_that_both_have(tmp_path: Path) -> None:
    size = Size(drawn_seeds=(0, 1))
    inputs = on_policy_files.write(tmp_path, size)
    scores = pd.read_csv(inputs["scores"])
    scores.loc[scores["policy"].str.contains("on_policy/base~5/beta~0/seed~1/"), "accuracy"] += 2
    scores.to_csv(inputs["scores"], index=False)
    # 9 of seed 0 and 11 of seed 1, for 6400 prompts
    found = row(load(run(tmp_path, inputs, size))["on-policy-cost"], "on-policy", "0", "3")
    assert (found["Gain"], found["Gain per 1,000 prompts"]) == ("+10.00", "+1.563")


def test_steps_are_those_of_the_preset_whatever_their_order(tmp_path: Path, tables: Tables) -> None:
    size = Size(presets=("main", "other"))
    inputs = on_policy_files.write(tmp_path, size)
    steps = pd.read_csv(inputs["steps"])[::-1]
    steps.loc[(steps["preset"] == "other") & (steps["metric"] == "kl_exact"), "value"] *= 3
    steps.to_csv(inputs["steps"], index=False)
    found = load(run(tmp_path, inputs, size))
    assert found["on-policy-betas"]["rows"] == tables["on-policy-betas"]["rows"]
    assert row(found["on-policy-betas-other"], "0")["Exact KL"] == "6.1500"  # 3 x 2.05


def test_ties_are_shares_in_percent(tables: Tables) -> None:
    stored = tables["on-policy-ties"]
    found = row(stored, "`hard_plus_soft`")
    assert [found[name] for name in ("Queries", "All kept", "Best 3 kept", "Best 5 kept")] == [
        "160",
        "62.5",
        "21.9",
        "40.0",
    ]
    drawn = row(tables["on-policy-drawn-ties"], "0")
    # 0.5 - 0.01 a step: the mean of 0 to 23 is 11.5, that of 18 to 23 is 20.5
    assert [drawn[f"Hard reward, {where}"] for where in ("whole run", "last quarter")] == ["38.5", "29.5"]
    assert drawn["Reward used, whole run"] == "90.0"


def test_marks_stand_in_order_with_their_differences(tables: Tables) -> None:
    names = ["Random from the pool", "RCE epoch 5", "REINFORCE, epoch 3", "On-policy GRPO, KL_BETA=0, epoch 3"]
    names += ["Oracle distillation, epoch 3", "Pool oracle (knows the answers)"]
    table = tables["on-policy-marks"]
    assert [found[0] for found in table["rows"]] == names
    assert row(table, "REINFORCE, epoch 3")["Shot 2"] == "43.00 [41.0, 45.0]"  # 40 + 2 - 2 + 3
    differences = tables["on-policy-mark-differences"]
    assert len(differences["rows"]) == 5 * 5
    found = row(differences, names[3], names[2], "mean")
    assert (found["Difference"], found["Holm p"], found["Seeds compared"]) == ("+6.00 [5.0, 7.0]", "0.010", "1")
    assert differences["lead"].startswith(
        "REINFORCE against RCE base: +3.00 [2.0, 4.0] points, mean over shots, not separated (Holm p 0.500). "
        "On-policy GRPO against REINFORCE: +6.00 [5.0, 7.0] points, mean over shots, separated (Holm p 0.010). "
    )


def test_a_configuration_without_marks_or_baselines_has_no_rows_of_them(tmp_path: Path) -> None:
    size = Size(marks=())
    inputs = on_policy_files.write(tmp_path, size)
    intervals = pd.read_csv(inputs["intervals"])
    intervals[~intervals["group"].str.startswith("baseline/")].to_csv(inputs["intervals"], index=False)
    tables = load(run(tmp_path, inputs, size))
    assert "on-policy-mark-differences" not in tables
    assert [found[0] for found in tables["on-policy-marks"]["rows"]] == [
        "RCE epoch 5",
        "On-policy GRPO, KL_BETA=0, epoch 3",
    ]


def test_the_last_epoch_is_one_that_every_run_compared_with_it_has(tmp_path: Path) -> None:
    size = Size()
    inputs = on_policy_files.write(tmp_path, size)
    scores, comparisons = pd.read_csv(inputs["scores"]), pd.read_csv(inputs["comparisons"])
    scores[~((scores["stage"] == "distil") & (scores["epoch"] == 3))].to_csv(inputs["scores"], index=False)
    comparisons[:0].to_csv(inputs["comparisons"], index=False)  # none is made for an epoch that is not the last
    tables = load(run(tmp_path, inputs, size))
    assert row(tables["on-policy-gains"], "on-policy", "0")["Epoch"] == "2"
    assert row(tables["on-policy-gains"], "on-policy", "0")["Prompts"] == "5600"
    assert row(tables["on-policy-gains"], "offline", "0")["Epoch"] == "3"
    assert row(tables["on-policy-betas"], "0")["Exact KL"] == "1.3500"  # steps 12 to 15 of 16: 13.5


def test_another_preset_has_tables_of_its_own(tmp_path: Path) -> None:
    tables = load(tabulate(tmp_path, Size(presets=("main", "other"))))
    assert set(tables) == {f"on-policy-{name}{end}" for name in NAMES for end in ("", "-other")} | {"on-policy-ties"}
    other = tables["on-policy-gains-other"]
    assert other["title"].endswith(", preset other")
    assert other["caption"].startswith("Ours: preset `other`, embedded world. ")
    assert other["rows"] == tables["on-policy-gains"]["rows"]
    assert set(load(tabulate(tmp_path, Size(presets=("other",))))) == {
        *(f"on-policy-{name}-other" for name in NAMES),
        "on-policy-ties",
    }


def test_a_row_made_otherwise_is_refused_where_the_guard_is_strict(tmp_path: Path) -> None:
    inputs = on_policy_files.write(tmp_path, Size())
    lineage = pd.read_csv(inputs["lineage"])
    lineage.loc[lineage["group"].str.contains("on_policy/base~5/beta~1/"), "value"] = "another world"
    lineage.to_csv(inputs["lineage"], index=False)
    table = load(run(tmp_path, inputs, Size()))["on-policy-gains"]
    assert [found[1] for found, letters in zip(table["rows"], table["marks"], strict=True) if letters] == ["1"]
    with pytest.raises(ComparisonError, match="another world"):
        run(tmp_path, inputs, Size(), guard="strict")


def without(column: str) -> Callable[[pd.DataFrame], pd.DataFrame]:
    return lambda frame: frame.drop(columns=column)


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("ties", without("differ"), "found no differ"),
        ("comparisons", without("test"), "found no test"),
        ("comparisons", lambda frame: frame.assign(n_runs="many"), "expected numbers"),
        ("agreement", without("as_sequence"), "found no as_sequence"),
        ("steps", without("prompts"), "expected the columns"),
        ("costs", without("own_prompts"), "expected the columns"),
        ("costs", lambda frame: frame[frame["mode"] != "on_policy"], "expected the prompts of"),
        ("intervals", lambda frame: frame[frame["group"] != "preset~main/rce/epoch~5"], "expected an interval of"),
    ],
)
def test_a_malformed_file_is_refused(
    tmp_path: Path, name: str, change: Callable[[pd.DataFrame], pd.DataFrame], said: str
) -> None:
    inputs = on_policy_files.write(tmp_path, Size())
    change(pd.read_csv(inputs[name])).to_csv(inputs[name], index=False)
    with pytest.raises(LeverPipeError, match=said) as fault:
        run(tmp_path, inputs, Size())
    assert isinstance(fault.value, RecordError)
