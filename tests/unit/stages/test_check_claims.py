from __future__ import annotations

import csv
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import agent_runs
import claim_files
import pytest
import synthetic_page
from agent_runs import ARMS, Study
from claim_files import Ours
from lever_pipe.commands.glossary_tool import file_texts, untranslated

from lever_pipe.base.errors import RecordError
from lever_pipe.experiment.stage_configs import CheckClaimsConfig
from lever_pipe.report.claims.claim_tables import COLUMNS
from lever_pipe.report.claims.verdicts import VERDICTS
from lever_pipe.stages.check_claims import check_claims

SMALL = Study(arms=(ARMS[0], ARMS[4]), steps=30)
IDS = ["claims-summary", *(f"claims-00{d}" for d in range(5)), "claims-curves", "claims-curves-compared"]


def check(folder: Path, ours: Ours | None = Ours(), study: Study | None = None, **replaced: Path) -> Path:
    folder.mkdir(exist_ok=True)
    lever = claim_files.write_ours(folder, Ours() if ours is None else ours)
    files = {name: () if ours is None else (replaced.get(name, path),) for name, path in lever.items()}
    intention = {} if study is None else agent_runs.collect(folder, study)
    references = {
        "claims": claim_files.CLAIMS,
        "reference": claim_files.REFERENCE,
        "reference_intention": claim_files.REFERENCE_INTENTION,
        "reference_lineage": claim_files.REFERENCE_LINEAGE,
    }
    check_claims(
        **{name: replaced.get(name, path) for name, path in references.items()},
        **files,
        curves=(intention["curves"],) if intention else (),
        agent_runs=(intention["runs"],) if intention else (),
        judged=folder / "claims.csv",
        tables=folder / "claims.json",
        csv=folder / "claims",
        config=CheckClaimsConfig(
            main_preset="main",
            data="world",
            lvlm="tiny-reader",
            seed=42,
            arms=() if study is None else agent_runs.claim_arms(study),
            reference_arm="baseline",
            document_arm="bundle",
            scale="embedded world, tiny Qwen3",
        ),
    )
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return check(tmp_path_factory.mktemp("claims"))


@pytest.fixture(scope="module")
def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "claims.csv").open(encoding="utf-8", newline="") as handle:
        return list(csv.DictReader(handle))


@pytest.fixture(scope="module")
def tables(folder: Path) -> dict[str, dict[str, Any]]:
    return {table["id"]: table for table in json.loads((folder / "claims.json").read_text(encoding="utf-8"))}


def test_one_row_a_claim(rows: list[dict[str, str]]) -> None:
    assert tuple(rows[0]) == COLUMNS
    assert [row["id"] for row in rows] == [claim.id for claim in claim_files.book().claims]
    for row in rows:
        assert all(row.values()), row
        assert {row["published_verdict"], row["our_verdict"]} <= set(VERDICTS)


def test_the_summary_counts_the_rows(rows: list[dict[str, str]], tables: dict[str, dict[str, Any]]) -> None:
    summary = tables["claims-summary"]
    by_document = {row[0]: dict(zip(summary["columns"], row, strict=True)) for row in summary["rows"]}
    assert list(by_document) == ["000", "001", "002", "003", "004", "all"]
    for name, cells in by_document.items():
        chosen = [row for row in rows if name in ("all", row["document"])]
        assert cells["Claims"] == str(len(chosen))
        for side, column in (("Published", "published_verdict"), ("Ours", "our_verdict")):
            counts = Counter(row[column] for row in chosen)
            assert [cells[f"{side}: {verdict}"] for verdict in VERDICTS] == [str(counts[v]) for v in VERDICTS]


def test_the_summary_defines_every_verdict(tables: dict[str, dict[str, Any]]) -> None:
    for verdict in VERDICTS:
        assert f"{verdict}: " in tables["claims-summary"]["caption"].lower()


def test_the_tables_hold_every_claim(rows: list[dict[str, str]], tables: dict[str, dict[str, Any]]) -> None:
    assert list(tables) == IDS
    assert {table["document"] for table in tables.values()} == {"claims"}
    for name in ("000", "001", "002", "003", "004"):
        shown = [row for row in rows if row["document"] == name]
        cells = [
            dict(zip(tables[f"claims-{name}"]["columns"], row, strict=True)) for row in tables[f"claims-{name}"]["rows"]
        ]
        assert [(c["Claim"], c["Published verdict"], c["Our numbers"]) for c in cells] == [
            (row["claim"], row["published_verdict"], row["our_numbers"]) for row in shown
        ]


def test_captions_say_whose_numbers_they_are(tables: dict[str, dict[str, Any]]) -> None:
    world = "Ours: preset `main`, embedded world."
    assert tables["claims-000"]["caption"].startswith(f"{world} Published: OK-VQA with Qwen2.5-VL-3B-Instruct.")
    assert tables["claims-003"]["caption"].startswith("Published: IntentionGym with Qwen3-8B.")
    assert tables["claims-curves"]["caption"].startswith("Published: IntentionGym with Qwen3-8B.")


def test_the_statistics_of_the_published_curves(tables: dict[str, dict[str, Any]]) -> None:
    cells = {row[0]: row[1:] for row in tables["claims-curves"]["rows"]}
    assert tables["claims-curves"]["columns"] == ["Statistic", "no KL", "KL bundle"]
    assert cells["Mean"] == ["1.9346", "1.9040"]
    assert cells["Standard deviation of changes"] == ["0.2027", "0.1947"]
    assert cells["Largest drawdown"] == ["0.390", "0.224"]
    assert cells["Steps of the largest drawdown"] == ["10 to 25", "10 to 15"]
    assert cells["Largest in percent of the ceiling"] == ["82.2", "79.3"]
    compared = dict(tables["claims-curves-compared"]["rows"])
    assert compared["Paired t, p"] == "0.563"
    assert compared["Label swaps of changes, p"] == "0.781"
    assert compared["Fewest episodes whose mean can print every value"] == "40"
    assert float(compared["Chance that a flat run falls as far as no KL"]) == pytest.approx(0.31, abs=0.005)


def test_each_table_has_its_files(folder: Path) -> None:
    names = {path.name for path in (folder / "claims").iterdir()}
    assert names == {f"{name}.{kind}" for name in IDS for kind in ("csv", "md")}


def test_equal_inputs_give_equal_bytes(folder: Path, tmp_path: Path) -> None:
    again = check(tmp_path)
    for name in ("claims.csv", "claims.json"):
        assert (again / name).read_bytes() == (folder / name).read_bytes()


def test_our_numbers_move_our_verdicts_only(rows: list[dict[str, str]], tmp_path: Path) -> None:
    with (check(tmp_path, replace(Ours(), gain={0.15: 2.0}, p=0.001)) / "claims.csv").open(newline="") as handle:
        moved = list(csv.DictReader(handle))
    assert [row["published_verdict"] for row in moved] == [row["published_verdict"] for row in rows]
    changed = {
        after["id"] for before, after in zip(rows, moved, strict=True) if before["our_verdict"] != after["our_verdict"]
    }
    assert {"001-015-best", "002-012-below", "001-only-015-differs", "000-same-accuracy"} <= changed


def test_a_claim_that_cannot_be_computed_stops_the_stage(tmp_path: Path) -> None:
    broken = tmp_path / "claims.yaml"
    text = claim_files.CLAIMS.read_text(encoding="utf-8")
    broken.write_text(text.replace("loss_claims.curve_falls", "loss_claims.curve_rises"), encoding="utf-8")
    with pytest.raises(RecordError, match=r"000-kl-falls: unknown computation 'loss_claims\.curve_rises'"):
        check(tmp_path, claims=broken)
    assert not (tmp_path / "claims.csv").exists()


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="expected a file; found none"):
        check(tmp_path, agreement=tmp_path / "none.csv")


def test_each_study_may_be_absent(tmp_path: Path) -> None:
    lever = "This configuration holds no run of study `lever`."
    intention = "This configuration holds no run of study `intention`."
    for name, ours, study in (("intention", None, SMALL), ("lever", Ours(), None), ("neither", None, None)):
        with (check(tmp_path / name, ours, study) / "claims.csv").open(newline="", encoding="utf-8") as handle:
            rows = list(csv.DictReader(handle))
        reasons = {
            row["document"]: {of["our_numbers"] for of in rows if of["document"] == row["document"]} for row in rows
        }
        for document, said in reasons.items():
            missing = intention if document in ("003", "004") else lever
            is_absent = study is None if document in ("003", "004") else ours is None
            assert (said == {missing}) == is_absent, (name, document)


def test_our_runs_of_study_intention_are_described(tmp_path: Path) -> None:
    tables = json.loads((check(tmp_path, None, SMALL) / "claims.json").read_text(encoding="utf-8"))
    captions = {table["id"]: table["caption"] for table in tables}
    told = "Ours: embedded world, tiny Qwen3. Ours without KL: arm `baseline`; ours with the KL bundle: arm `bundle`."
    for name in ("claims-summary", "claims-003", "claims-004"):
        assert captions[name].startswith(told), name
    assert "seed by seed (0, 1 and 2) on the sampled curve after the start" in captions["claims-003"]
    assert captions["claims-000"].startswith("Published: OK-VQA")


def test_a_study_with_some_of_its_files_is_refused(tmp_path: Path) -> None:
    files = claim_files.write_ours(tmp_path, Ours())
    empty: dict[str, tuple[Path, ...]] = dict.fromkeys(files, ())
    with pytest.raises(RecordError, match="study lever: expected one file of each kind; found 0 of training"):
        check_claims(
            claims=claim_files.CLAIMS,
            reference=claim_files.REFERENCE,
            reference_intention=claim_files.REFERENCE_INTENTION,
            reference_lineage=claim_files.REFERENCE_LINEAGE,
            **{**empty, "scores": (files["scores"],)},
            curves=(),
            agent_runs=(),
            judged=tmp_path / "claims.csv",
            tables=tmp_path / "claims.json",
            csv=tmp_path / "claims",
            config=CheckClaimsConfig(main_preset="main", data="world", lvlm="tiny-reader", seed=42),
        )


@pytest.mark.parametrize("study", [Study(steps=30), Study(arms=ARMS[:1] + ARMS[4:5], steps=6, every=3)])
def test_every_text_about_our_runs_has_a_translation(tmp_path: Path, study: Study) -> None:
    path = check(tmp_path, None, study) / "claims.json"
    assert untranslated(synthetic_page.chinese(), list(file_texts([path], ()))) == []
