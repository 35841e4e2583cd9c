from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import synthetic_results as synthetic

from lever_pipe.base.errors import RecordError
from lever_pipe.report.tables.text import bracketed, number
from lever_pipe.stages.tabulate_documents import tabulate_documents

Tables = dict[str, dict[str, Any]]

DOCUMENT_IDS = {
    *(f"000-{m}" for m in ("kl", "kl_loss", "ppo_loss", "loss", "val_loss", "mean_ratio", "mean_advantage")),
    *(f"001-{kind}-epoch~{e}" for kind in ("training", "accuracy") for e in (1, 2, 3)),
    *(f"002-{kind}-beta~{b}" for kind in ("configuration", "training") for b in ("0.18", "0.15", "0.12")),
    *(f"002-accuracy-epoch~{e}-beta~{b}" for e in (1, 2, 3) for b in ("0.18", "0.15", "0.12")),
    *(f"002-{kind}-epoch~{e}" for kind in ("difference", "by-shot") for e in (1, 2, 3)),
    "002-summary",
}


def tabulate(folder: Path, size: synthetic.Size, data: str = "world") -> Path:
    tabulate_documents(**inputs_of(folder, size), **outputs_of(folder), config=synthetic.tabulate_config(size, data))
    return folder


def inputs_of(folder: Path, size: synthetic.Size) -> dict[str, Any]:
    collected = synthetic.collect(folder, size)
    evidence = synthetic.write_evidence(folder, size, collected)
    del evidence["breakdown"]
    lineage = synthetic.write_lineage(folder, size, evidence["intervals"])
    del collected["steps_csv"], collected["ties_csv"], collected["costs"]
    return {**collected, **evidence, **lineage, **synthetic.write_facts(folder), "reference": synthetic.REFERENCE}


def outputs_of(folder: Path) -> dict[str, Path]:
    return {"tables": folder / "tables.json", "csv": folder / "csv"}


def load(folder: Path) -> Tables:
    return {table["id"]: table for table in json.loads((folder / "tables.json").read_text())}


def cells(tables: Tables, name: str, *keys: str) -> dict[str, str]:
    """Return the row of a table whose first cells are `keys`."""
    table = tables[name]
    found = [row for row in table["rows"] if tuple(row[: len(keys)]) == keys]
    assert len(found) == 1, (name, keys, found)
    return dict(zip(table["columns"], found[0], strict=True))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tabulate(tmp_path_factory.mktemp("full"), synthetic.FULL)


@pytest.fixture(scope="module")
def tables(folder: Path) -> Tables:
    return load(folder)


def test_every_table_of_the_documents_is_there_without_a_question_mark(tables: Tables) -> None:
    assert set(tables) >= DOCUMENT_IDS
    for table in tables.values():
        assert "?" not in json.dumps([table["columns"], table["rows"], table["caption"]]), table["id"]
        assert len(table["rows"]) > 0


def test_our_rows_have_no_gap(tables: Tables) -> None:
    for name in DOCUMENT_IDS:
        columns = tables[name]["columns"]
        for row in tables[name]["rows"]:
            if row[1] == "ours":
                gaps = {column for column, text in zip(columns, row, strict=True) if not text}
                # only extremes have a remark; 0.15 is not compared with itself; a pair needs no standard error
                assert gaps <= {"Remark", "Holm p", "Standard error"}, (name, row)


def test_document_000_statistics(tables: Tables) -> None:
    # kl = 0.1 - 0.001 e + 0.01 i - 0.0001 (seed 0); i = 1 for 0.12, 3 for 0.15; mean of e over 1..50 is 25.5
    mean = cells(tables, "000-kl", "Mean", "ours")
    assert (mean["KL_BETA=0.12"], mean["KL_BETA=0.15"], mean["Difference"]) == ("0.084400", "0.104400", "-0.020000")
    assert cells(tables, "000-kl", "First", "ours")["KL_BETA=0.12"] == "0.108900"
    assert cells(tables, "000-kl", "Last", "ours")["KL_BETA=0.12"] == "0.059900"
    # (0.0599 - 0.1089) / 0.1089 = -44.995 %
    assert cells(tables, "000-kl", "Change", "ours")["KL_BETA=0.12"] == "-45.00%"
    # 8 + 0.001 (e - 30 - i)^2 is least at e = 31 and 33
    least = cells(tables, "000-val_loss", "Minimum", "ours")
    assert (least["KL_BETA=0.12"], least["KL_BETA=0.15"]) == ("8.000000 (epoch 31)", "8.000000 (epoch 33)")
    assert cells(tables, "000-mean_advantage", "Mean", "ours")["KL_BETA=0.12"] == "0.00000000"
    assert "0.12 epochs 1-50, seed 0" in tables["000-kl"]["caption"]


def test_document_000_published(tables: Tables) -> None:
    change = cells(tables, "000-kl", "Change", "published")
    # the document prints -32.24%, -32.01% and -0.23%
    assert (change["KL_BETA=0.12"], change["KL_BETA=0.15"], change["Difference"]) == ("-32.24%", "-32.01%", "-0.23%")
    least = cells(tables, "000-val_loss", "Minimum", "published")
    assert (least["KL_BETA=0.12"], least["KL_BETA=0.15"]) == ("7.972695 (epoch 47)", "7.977539 (epoch 41)")
    assert cells(tables, "000-mean_advantage", "Last", "published")["KL_BETA=0.15"] == "-0.00000009"


def test_document_000_leaves_out_short_runs_of_other_seeds(tables: Tables) -> None:
    # with seeds 1 and 2 (three epochs only) the first value would be 0.1090 instead of seed 0's 0.1089
    assert cells(tables, "000-kl", "First", "ours")["KL_BETA=0.12"] == "0.108900"


def test_document_001_training(tables: Tables) -> None:
    row = cells(tables, "001-training-epoch~1", "0.155", "ours")
    # kl = 0.1 - 0.001 + 0.04; ppo = 0.0201; loss = 0.0201 + 0.155 * 0.139 = 0.041645
    assert (row["KL"], row["PPO Loss"], row["Train Loss"]) == ("0.13900", "0.02010", "0.04165")
    published = cells(tables, "001-training-epoch~1", "0.155", "published")
    assert list(published.values())[2:-1] == ["0.08164", "0.01438", "0.00172", "0.1703", "0.1966"]


def test_document_001_remarks_the_extremes_of_each_source(tables: Tables) -> None:
    # KL and loss grow with beta and the PPO loss is one for all, so 0.12 and 0.18 hold every extreme
    remarks = {row[0]: row[-1] for row in tables["001-training-epoch~1"]["rows"] if row[1] == "ours"}
    assert tables["001-training-epoch~1"]["columns"][-1] == "Remark"
    assert remarks == {
        "0.12": "smallest KL, lowest train loss", "0.145": "", "0.15": "", "0.155": "", "0.18": "largest KL"
    }  # fmt: skip
    published = {row[0]: row[-1] for row in tables["001-training-epoch~1"]["rows"] if row[1] == "published"}
    # of 0.08082, 0.08471, 0.08164 and 0.08134; losses 0.01620, 0.01989, 0.01438, 0.02038; PPO losses 0.00172 least
    assert published == {
        "0.12": "smallest KL", "0.145": "largest KL", "0.155": "lowest train loss, lowest PPO loss", "0.18": ""
    }  # fmt: skip


def with_interval(value: float) -> str:
    """Return a synthetic accuracy as printed: its interval reaches 2 points to each side."""
    return bracketed(number(value, 2), value - 2, value + 2)


@pytest.mark.parametrize("epoch", [1, 2, 3])
@pytest.mark.parametrize("beta", [0.12, 0.145, 0.15, 0.155, 0.18])
def test_document_001_accuracy(tables: Tables, epoch: int, beta: float) -> None:
    row = cells(tables, f"001-accuracy-epoch~{epoch}", f"{beta:g}", "ours")
    expected = [synthetic.grpo_accuracy(beta, epoch, 200, k) for k in (1, 2, 3, 4)]
    assert [row[f"Shot {k}"] for k in (1, 2, 3, 4)] == [with_interval(value) for value in expected]
    assert row["Average"] == with_interval(sum(expected) / 4)
    against = 2 * (synthetic.ALL_BETAS.index(beta) - synthetic.ALL_BETAS.index(0.15))
    assert row["vs 0.15"] == (f"{against:+.2f} [{against - 1:.1f}, {against + 1:.1f}]" if against else "reference")
    assert row["Holm p"] == (("0.010" if abs(against) > 4 else "0.500") if against else "")


def test_document_001_published(tables: Tables) -> None:
    row = cells(tables, "001-accuracy-epoch~1", "0.15", "published")
    assert row["Shot 1"] == "58.80"
    other = cells(tables, "001-accuracy-epoch~1", "0.145", "published")
    # (57.0 + 56.1 + 55.1 + 55.2) / 4 = 55.85; minus (58.8 + 56.6 + 53.9 + 55.2) / 4 = 56.125
    assert (other["Average"], other["vs 0.15"]) == ("55.85", "-0.28")
    assert any("stores kl_beta=0.1" in note for note in tables["001-accuracy-epoch~1"]["notes"])


def test_published_numbers_equal_the_reference(tables: Tables) -> None:
    with synthetic.REFERENCE.open(encoding="utf-8", newline="") as handle:
        reference = [
            row
            for row in csv.DictReader(handle)
            if row["source_file"].endswith(":2025-12-20正确率.md") and row["metric"] == "vqa_acc_pct"
        ]
    assert len(reference) == 32
    for row in reference:
        shown = cells(tables, f"002-accuracy-epoch~{row['epoch']}-beta~0.15", row["samples"], "published")
        assert float(shown[f"Shot {row['shot']}"]) == float(row["value"])


def test_document_002_configuration(tables: Tables) -> None:
    row = cells(tables, "002-configuration-beta~0.15", "Base checkpoint")
    assert row["Ours"] == "RCE epoch 5 (val_loss=8.0000)"  # 8.5 - 0.1 * 5
    assert row["Document"] == "RCE epoch 2 (val_loss=7.8863)"
    data = cells(tables, "002-configuration-beta~0.15", "RL data")
    assert "25.5% positive" in data["Ours"]
    assert "53.3% positive" in data["Document"]


def test_document_002_training(tables: Tables) -> None:
    assert cells(tables, "002-training-beta~0.18", "2", "ours")["Beta"] == "0.180"
    assert cells(tables, "002-training-beta~0.12", "1", "published")["Val Loss"] == "5.11661"
    assert not [row for row in tables["002-training-beta~0.15"]["rows"] if row[1] == "published"]
    assert "Nothing published." in tables["002-training-beta~0.15"]["caption"]


@pytest.mark.parametrize("epoch", [1, 2, 3])
@pytest.mark.parametrize("beta", [0.12, 0.15, 0.18])
def test_document_002_accuracy(tables: Tables, epoch: int, beta: float) -> None:
    for samples in (100, 200, 400, 800):
        row = cells(tables, f"002-accuracy-epoch~{epoch}-beta~{beta:g}", str(samples), "ours")
        for k in (1, 2, 3, 4):
            assert row[f"Shot {k}"] == with_interval(synthetic.grpo_accuracy(beta, epoch, samples, k))


def test_document_002_differences(tables: Tables) -> None:
    row = cells(tables, "002-difference-epoch~1", "3", "ours")
    assert (row["0.18 vs 0.15"], row["0.18 vs 0.12"]) == ("+4.00 [3.0, 5.0]", "+8.00 [7.0, 9.0]")
    assert row["Standard error"] == ""  # the pair has an interval of its own
    published = cells(tables, "002-difference-epoch~1", "1", "published")
    # 57.0, 58.8 and 57.0 have the mean 57.6: 100 sqrt(0.576 * 0.424 / 200) = 3.49
    assert (published["0.18 vs 0.15"], published["Standard error"]) == ("-1.80", "3.5")
    summary = cells(tables, "002-summary", "0.12", "published")
    assert summary["Epoch 1 mean difference"] == "-0.28"  # as the document has it
    assert summary["Best shot (epoch 1)"] == "Shot 3 (+1.20)"
    shots = cells(tables, "002-by-shot-epoch~1", "Shot 2", "published")
    assert shots["KL_BETA=0.12"] == "56.10 (-0.50)"


def test_nothing_is_called_better(tables: Tables) -> None:
    text = json.dumps(list(tables.values())).lower()
    for word in ("better than", "worse", "improve", "significan", "outperform"):
        assert word not in text


def test_document_002_assessments_and_trends(tables: Tables) -> None:
    # 0.18 lies 4 above 0.15 (p 0.5) and 8 above 0.12 (p 0.01)
    row = cells(tables, "002-difference-epoch~1", "3", "ours")
    assert row["Assessment"] == "vs 0.15 not separated (p 0.500); vs 0.12 separated (p 0.010)"
    # published: 57.0 against 58.8 and 57.0
    row = cells(tables, "002-difference-epoch~1", "1", "published")
    assert row["Assessment"] == "below one standard error"
    assert cells(tables, "002-summary", "0.15", "ours")["Assessment"] == "reference"
    summary = cells(tables, "002-summary", "0.18", "ours")
    assert summary["Epoch 2 mean difference"] == "+4.00 [3.0, 5.0]"
    assert summary["Assessment"] == "; ".join(f"epoch {e} not separated (p 0.500)" for e in (1, 2, 3))
    assert cells(tables, "002-summary", "0.12", "published")["Assessment"] == "below one standard error"
    assert cells(tables, "002-by-shot-epoch~1", "Shot 1", "ours")["Trend"] == "rises"
    # published 0.12, 0.15, 0.18: 57.0, 58.8, 57.0; then 55.1, 53.9, 55.1; then 55.2 three times
    trends = [cells(tables, "002-by-shot-epoch~1", f"Shot {k}", "published")["Trend"] for k in (1, 3, 4)]
    assert trends == ["rises, then falls", "falls, then rises", "equal"]


def test_every_caption_says_whose_numbers_they_are(tables: Tables, folder: Path) -> None:
    starts = {
        "001-accuracy-epoch~1": "Ours: preset `main`, embedded world. Published: OK-VQA with Qwen2.5-VL-3B-Instruct.",
        "002-training-beta~0.15": "Ours: preset `main`, embedded world. Ours: mean over",  # nothing was published
        "arm-published": "Ours: preset `published`, embedded world. VQA",
        "training-by-preset": "Ours: presets `main` and `published`, embedded world. Mean",
        "rl-data": "Ours: every preset, embedded world. Published: OK-VQA",
    }
    for name, start in starts.items():
        assert tables[name]["caption"].startswith(start)
    for name, table in tables.items():
        assert table["caption"].startswith("Ours: ") or table["document"] in ("how", "data", "world", "work"), name
        assert table["caption"] in (folder / "csv" / f"{name}.md").read_text(encoding="utf-8")


def test_the_expected_order_is_held_against_the_scores(tables: Tables) -> None:
    # RCE epoch 5 at 800 samples: 37 + shots / 4, below the 38 of the most similar until shot 4, where both are 38
    row = cells(tables, "world-order", "Most similar image and question below RCE, last epoch")
    assert (row["Shot 1"], row["Shot 4"], row["Mean"]) == (
        "38.00, 37.25: missed", "38.00, 38.00: missed", "38.00, 37.63: missed"
    )  # fmt: skip
    assert cells(tables, "world-order", "Random from 40 to 50")["Mean"] == "30.00: missed"
    assert cells(tables, "world-order", "Oracle at least 80")["Shot 2"] == "80.00: held"


def test_other_data_name_their_lvlm_and_have_no_expected_order(tmp_path: Path) -> None:
    tables = load(tabulate(tmp_path, synthetic.SMOKE, data="files"))
    assert tables["overview"]["caption"].startswith("Ours: preset `main`, tiny-reader. ")
    results = [table for table in tables.values() if table["document"] not in ("how", "data", "world", "work")]
    assert "world" not in json.dumps(results)
    assert "world-order" not in tables


def test_unknown_facts_about_the_rl_data_appear(tables: Tables) -> None:
    assert cells(tables, "rl-data", "Dropped rows error")["Ours"] == "3"


def test_overview_is_mean_and_spread_over_seeds_and_draws(tables: Tables) -> None:
    row = cells(tables, "overview", "GRPO, KL_BETA=0.15, epoch 3")
    # 40 + 6 + 1.5 + 0.25 - 3 = 44.75; seeds lie 1 apart
    assert (row["Runs"], row["Shot 1"], row["sd over runs"]) == ("3", "44.75 [42.8, 46.8]", "1.00")
    random = cells(tables, "overview", "Random from the pool")
    # 29 and 31: sd = sqrt(2)
    assert (random["Runs"], random["Shot 4"], random["sd over runs"]) == ("2", "30.00 [28.0, 32.0]", "1.41")
    zero_shot = cells(tables, "overview", "Zero-shot")
    assert (zero_shot["Shot 1"], zero_shot["sd over runs"]) == ("10.00 [8.0, 12.0]", "")
    assert "a range of 10.00 points over 6 settings" in tables["overview"]["lead"]
    # 0.18 is best; 0 lies 10 below it: p 0.01
    assert "Separated from the highest KL_BETA: GRPO, KL_BETA=0, epoch 3; " in tables["overview"]["lead"]


def test_random_subsets(tables: Tables) -> None:
    row = cells(tables, "random-subsets", "RCE epoch 5", "100")
    # prefix 40.25 at 1 shot; subsets lie 0..3 points above it: mean 1.5, sd sqrt(5/3) = 1.29
    assert row["Shot 1"] == "41.75 ± 1.29"


def test_rl_data_beside_the_document(tables: Tables) -> None:
    row = cells(tables, "rl-data", "Trajectories with a correct answer (%)")
    assert (row["Ours"], row["Published"]) == ("25.5", "53.3")


def test_other_presets_have_tables_of_their_own(tables: Tables) -> None:
    assert "arm-published" in tables
    assert not [row for row in tables["arm-published"]["rows"] if row[0] == "Zero-shot"]
    row = cells(tables, "training-by-preset", "published", "5", "0.18", "3")
    assert row["KL (k3)"] == "0.14700"


def test_folder_holds_a_csv_and_a_markdown_file_a_table(folder: Path, tables: Tables) -> None:
    names = {path.name for path in (folder / "csv").iterdir()}
    assert names == {f"{name}.{kind}" for name in tables for kind in ("csv", "md")}
    with (folder / "csv" / "002-accuracy-epoch~1-beta~0.15.csv").open(newline="") as handle:
        rows = list(csv.reader(handle))
    shots = [name for k in (1, 2, 3, 4) for name in (f"Shot {k}", f"Shot {k} low", f"Shot {k} high")]
    assert rows[0] == ["Samples", "Source", *shots]
    assert rows[1][2:5] == ["46.75", "44.8", "48.8"]  # 40 + 6 + 0.5 + 0.25
    assert rows[2][2::3] == ["63.20", "65.80", "60.80", "61.80"]
    assert rows[2][3] == ""  # no interval was published


def test_equal_inputs_give_equal_bytes(folder: Path, tmp_path: Path) -> None:
    again = tabulate(tmp_path, synthetic.FULL)
    assert (again / "tables.json").read_bytes() == (folder / "tables.json").read_bytes()


def test_a_small_configuration_says_what_is_missing(tmp_path: Path) -> None:
    tables = load(tabulate(tmp_path, synthetic.SMOKE))
    caption = tables["001-accuracy-epoch~1"]["caption"]
    assert "The document has 200 samples; this configuration evaluates 16." in caption
    assert "Without KL_BETA 0.12, 0.145, 0.155 and 0.18" in caption
    assert "Without epoch 2 and 3" in caption
    assert tables["000-kl"]["columns"] == ["Statistic", "Source", "KL_BETA=0.15"]
    assert "?" not in json.dumps(list(tables.values()))


def test_one_seed_fewer_gives_a_correct_smaller_page(tmp_path: Path) -> None:
    size = replace(synthetic.FULL, seeds=(0, 1), arms=())
    tables = load(tabulate(tmp_path, size))
    assert set(tables) >= DOCUMENT_IDS
    row = cells(tables, "001-accuracy-epoch~1", "0.18", "ours")
    # 40 + 10 + 0.5 + 0.25 - 1 = 49.75 over three seeds; seeds 0 and 1 lie 1 below and at it
    assert row["Shot 1"] == with_interval(49.25)
    assert "Ours: mean over 2 seeds (0 and 1)." in tables["001-accuracy-epoch~1"]["caption"]


def test_one_beta_fewer_gives_a_correct_smaller_page(tmp_path: Path) -> None:
    betas = tuple(beta for beta in synthetic.ALL_BETAS if beta != 0.145)
    tables = load(tabulate(tmp_path, replace(synthetic.FULL, betas=betas, arms=())))
    assert set(tables) >= DOCUMENT_IDS
    shown = [row[0] for row in tables["001-accuracy-epoch~1"]["rows"] if row[1] == "ours"]
    assert shown == ["0.12", "0.15", "0.155", "0.18"]
    assert "Without KL_BETA 0.145: not part of this configuration." in tables["001-accuracy-epoch~1"]["caption"]
    assert not [row for row in tables["overview"]["rows"] if "0.145" in row[0]]


def test_one_epoch_fewer_gives_a_correct_smaller_page(tmp_path: Path) -> None:
    tables = load(tabulate(tmp_path, replace(synthetic.FULL, epochs=2, arms=())))
    gone = {name for name in DOCUMENT_IDS if "epoch~3" in name}
    assert gone
    assert set(tables) & DOCUMENT_IDS == DOCUMENT_IDS - gone
    assert tables["002-summary"]["columns"][2:4] == ["Epoch 1 mean difference", "Epoch 2 mean difference"]
    assert [row[0] for row in tables["overview"]["rows"]][-1] == "GRPO, KL_BETA=0.18, epoch 2"


def test_on_policy_runs_change_no_table(tables: Tables, tmp_path: Path) -> None:
    """The full results hold some, whose numbers would show wherever they were taken for the published objective."""
    assert load(tabulate(tmp_path, replace(synthetic.FULL, drawn_betas=()))) == tables


def test_betas_that_no_document_has_are_shown_instead(tmp_path: Path) -> None:
    size = synthetic.Size(betas=(0.0,), epochs=1, seeds=(0,), samples=(200,), shots=(1,), long_betas=(), arms=())
    tables = load(tabulate(tmp_path, size))
    assert cells(tables, "001-accuracy-epoch~1", "0", "ours")["Shot 1"] == with_interval(
        38.75
    )  # 40 + 0.5 + 0.25 - 1 - 1
    assert "Every KL_BETA of this configuration is shown instead." in tables["001-accuracy-epoch~1"]["caption"]


def test_a_file_with_other_columns_is_refused(tmp_path: Path) -> None:
    inputs = inputs_of(tmp_path, synthetic.SMOKE)
    inputs["scores"] = inputs["training"]
    with pytest.raises(RecordError, match="expected the columns policy"):
        tabulate_documents(**inputs, **outputs_of(tmp_path), config=synthetic.tabulate_config(synthetic.SMOKE))


def test_a_cell_without_its_interval_is_refused(tmp_path: Path) -> None:
    inputs = inputs_of(tmp_path, synthetic.SMOKE)
    lines = inputs["intervals"].read_text().splitlines()
    kept = [line for line in lines if not line.startswith("preset~main/grpo/base~5/beta~0.15/epoch~1,16,2,")]
    assert len(kept) == len(lines) - 1
    inputs["intervals"].write_text("\n".join(kept) + "\n")
    with pytest.raises(RecordError, match=r"beta~0.15/epoch~1 at 16 samples, shots 2; found none"):
        tabulate_documents(**inputs, **outputs_of(tmp_path), config=synthetic.tabulate_config(synthetic.SMOKE))


def test_facts_are_tables(tables: Tables) -> None:
    assert cells(tables, "pools", "Best answer")["Value"] == "86.26"
    assert cells(tables, "work", "Prompts asked")["Sum over jobs"] == "2,000"  # 1200 + 800
    assert cells(tables, "work", "Seconds")["Sum over jobs"] == "3.75"
    assert cells(tables, "world-probes", "Exact 1")["VQA accuracy (%)"] == "96.9"
    assert cells(tables, "world-checks", "Stock: equal")["Value"] == "88"
    assert cells(tables, "standard-errors", "800")["Standard error"] == "1.8"  # 100 sqrt(0.25 / 800) = 1.77


def test_one_seed_says_nothing_about_training_variance(tmp_path: Path, tables: Tables) -> None:
    sentence = "No inference about training variance: one seed."
    small = load(tabulate(tmp_path, synthetic.SMOKE))
    assert sentence in small["001-accuracy-epoch~1"]["caption"]
    assert sentence not in tables["001-accuracy-epoch~1"]["caption"]
