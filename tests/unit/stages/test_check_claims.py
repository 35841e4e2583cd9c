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
from agent_runs import ARMS, Study
from claim_files import RESOURCES, Ours

from lever_pipe.base.errors import RecordError
from lever_pipe.experiment.stage_configs import CheckClaimsConfig
from lever_pipe.report import sources
from lever_pipe.report.catalogue import Voice, read_catalogue
from lever_pipe.report.cells import Cell, EvidenceLedger
from lever_pipe.report.claims.judged import tables
from lever_pipe.report.claims.verdicts import VERDICTS
from lever_pipe.report.evidence import Evidence, read_evidence, write_evidence
from lever_pipe.report.table import Table
from lever_pipe.stages.evidence import check_claims

SMALL = Study(arms=(ARMS[0], ARMS[4]), steps=30)


class Run:
    """What the tables ask of a finished run."""

    def __init__(self, findings: list[dict[str, Any]], *studies: str) -> None:
        self.findings, self.studies = findings, studies

    def has(self, study: str) -> bool:
        return study in self.studies


def check(
    folder: Path, ours: Ours | None = Ours(), study: Study | None = None, claims: Path = claim_files.CLAIMS
) -> Path:
    folder.mkdir(exist_ok=True)
    rows = list(claim_files.references())
    lineage: tuple[Path, ...] = ()
    if ours is not None:
        files = claim_files.write_ours(folder, ours)
        rows += claim_files.our_rows(files)
        lineage = (files["lineage"],)
    if study is not None:
        paths = agent_runs.collect(folder, study)
        rows += [*sources.curves(paths["curves"]), *sources.runs(paths["runs"])]
    write_evidence(folder / "evidence.csv", Evidence(rows))
    check_claims(
        claims=claims,
        messages=claim_files.MESSAGES,
        evidence=folder / "evidence.csv",
        reference_lineage=claim_files.REFERENCE_LINEAGE,
        lineage=lineage,
        judged=folder / "claims.csv",
        findings=folder / "claims.json",
        config=CheckClaimsConfig(
            main_preset="main",
            seed=42,
            arms=() if study is None else agent_runs.claim_arms(study),
            reference_arm="baseline",
            document_arm="bundle",
        ),
    )
    return folder


def rows_of(folder: Path) -> list[dict[str, str]]:
    with (folder / "claims.csv").open(encoding="utf-8", newline="") as handle:
        return list(csv.DictReader(handle))


def tables_of(folder: Path, *studies: str) -> dict[str, Table]:
    findings = json.loads((folder / "claims.json").read_text(encoding="utf-8"))
    return {table.id: table for table in tables(Run(findings, *studies))}  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return check(tmp_path_factory.mktemp("claims"), study=SMALL)


def test_the_summary_counts_the_rows(folder: Path) -> None:
    rows = rows_of(folder)
    summary = tables_of(folder, "lever", "intention")["claims-summary"]
    counts = [[getattr(cell, "value", None) for cell in line.cells[1:]] for line in summary.lines]
    for name, (n, *by_verdict) in zip(("000", "001", "002", "003", "004", ""), counts, strict=True):
        own = [row for row in rows if row["document"].startswith(name)]
        assert n == len(own)
        found = [Counter(row[f"{side}_verdict"] for row in own) for side in ("published", "our")]
        assert by_verdict == [of[verdict] for of in found for verdict in VERDICTS]


def test_the_tables_hold_every_claim_once_and_ten_on_the_main_page(folder: Path) -> None:
    found = tables_of(folder, "lever", "intention")
    assert [table.section for table in found.values()][:2] == ["decisive", "decisive"]
    assert len(found["claims-decisive"].lines) == 10
    sections = {table.section for table in found.values()}
    assert sections == {"decisive", *(f"claims-00{i}" for i in range(5))}
    lines = [line for table in found.values() if table.section != "decisive" for line in table.lines]
    assert len(lines) == len({line.cells[0] for line in lines}) == len(claim_files.book().claims)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_every_cell_is_said_in_both_languages_and_has_its_evidence(folder: Path, language: str) -> None:
    texts = read_catalogue(sorted((RESOURCES / "messages" / language).glob("*.yaml")))
    ledger, voice = EvidenceLedger(Evidence(read_evidence(folder / "evidence.csv"))), Voice(language, texts)

    def said(cell: Cell) -> str:
        return voice.text(cell)

    for table in tables_of(folder, "lever", "intention").values():
        noted = table.noted(ledger)
        cells = [*(cell for line in noted.lines for cell in line.cells), *(of.head for of in noted.columns)]
        assert all(said(cell) for cell in [*cells, noted.title, *noted.notes])
    assert len({row.key for row in ledger.rows}) == len(ledger.rows) > 100


def test_equal_inputs_give_equal_bytes(folder: Path, tmp_path: Path) -> None:
    again = check(tmp_path, study=SMALL)
    for name in ("claims.csv", "claims.json"):
        assert (again / name).read_bytes() == (folder / name).read_bytes()


def test_our_numbers_move_our_verdicts_only(folder: Path, tmp_path: Path) -> None:
    before, after = rows_of(folder), rows_of(check(tmp_path, replace(Ours(), gain={0.15: 2.0}, p=0.001), SMALL))
    assert [row["published_verdict"] for row in after] == [row["published_verdict"] for row in before]
    changed = {new["id"] for old, new in zip(before, after, strict=True) if old["our_verdict"] != new["our_verdict"]}
    assert {"001-015-best", "002-012-below"} <= changed


def test_a_claim_that_cannot_be_computed_stops_the_stage(tmp_path: Path) -> None:
    broken = tmp_path / "claims.yaml"
    text = claim_files.CLAIMS.read_text(encoding="utf-8")
    broken.write_text(text.replace("curve_falls", "curve_rises"), encoding="utf-8")
    with pytest.raises(RecordError, match="unknown computation 'curve_rises' for document 000"):
        check(tmp_path, claims=broken)
    assert not (tmp_path / "claims.csv").exists()


def test_each_study_may_be_absent(tmp_path: Path) -> None:
    for name, ours, study in (("intention", None, SMALL), ("lever", Ours(), None), ("neither", None, None)):
        folder = check(tmp_path / name, ours, study)
        reasons: dict[str, set[str]] = {}
        for row in rows_of(folder):
            reasons.setdefault(row["document"], set()).add(row["our_numbers"])
        for document, said in reasons.items():
            missing = "intention" if document in ("003", "004") else "lever"
            is_absent = (study if missing == "intention" else ours) is None
            assert (said == {f"This configuration holds no run of study {missing}."}) == is_absent, (name, document)
        shown = tables_of(folder, name)
        documents = {"lever": {"000", "001", "002"}, "intention": {"003", "004"}}.get(name, set())
        assert {table.section[-3:] for table in shown.values() if table.section != "decisive"} == documents
