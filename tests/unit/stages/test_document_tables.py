"""The tables of documents 000 to 002 from collected files, by way of the evidence."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import synthetic_results as synthetic
from claim_files import book
from sentences import messages

from lever_pipe.experiment.arms import Preset
from lever_pipe.experiment.collected import InputsAlone
from lever_pipe.experiment.report import ReportedRun, ShownStudy
from lever_pipe.report.catalogue import Translator, read_translation
from lever_pipe.report.cells import Estimate, EvidenceLedger
from lever_pipe.report.checks import evaluate_claims
from lever_pipe.report.comparability import guard
from lever_pipe.report.context import ReportContext
from lever_pipe.report.evidence import Evidence, read_evidence
from lever_pipe.report.format import number_text
from lever_pipe.report.inference.families import REFERENCE_BETA
from lever_pipe.report.lineage import read_lineage, read_published_lineage
from lever_pipe.report.selector import document_002
from lever_pipe.report.selector.documents import tables as document_tables
from lever_pipe.report.table import SOURCE, as_csv
from lever_pipe.stages.evidence import collect_evidence

RESOURCES = Path(__file__).parents[3] / "resources"
CHINESE = read_translation(RESOURCES / "locale/zh/LC_MESSAGES/report.po")
TRANSLATORS = {"en": Translator("en"), "zh": Translator("zh", CHINESE)}
EPOCHS = (1, 2, 3)
IDS = {
    "000-curves",
    *(f"001-{kind}-epoch~{epoch}" for kind in ("training", "accuracy") for epoch in EPOCHS),
    *(f"002-accuracy-epoch~{epoch}" for epoch in EPOCHS),
    *(f"002-{kind}" for kind in ("training", "differences", "summary")),
    *(f"{section}-configuration" for section in ("001", "002")),
    *("published-beside-ours", "rl-data", "examples", "pools"),
}


class DocumentTables:
    """The built tables of a configuration, read as their CSV files are."""

    def __init__(self, folder: Path, size: synthetic.Size, *, is_world: bool = True) -> None:
        collected = synthetic.collect(folder, size)
        measured = synthetic.write_evidence(folder, size, collected)
        facts = synthetic.write_facts(folder)
        lineage = synthetic.write_lineage(folder, size, measured["intervals"])
        written = {"evidence": folder / "evidence.csv", "config": InputsAlone()}
        tables = [collected[name] for name in ("scores", "arms", "training", "arms_training")]
        collect_evidence(
            reference=synthetic.REFERENCE,
            reference_intention=RESOURCES / "reference" / "userrl-published.csv",
            tables=(measured["intervals"], measured["comparisons"], *tables),
            agent_tables=(),
            facts=(collected["rl_data"], *facts),
            tasks=(),
            emulated=(),
            **written,
        )
        self.evidence = Evidence(read_evidence(written["evidence"]))
        study = ShownStudy(name="lever", is_world=is_world, model="tiny-reader")
        run = ReportedRun(studies=(study,), main_preset="main", presets={"main": Preset()})
        lineages = {**read_lineage(lineage["lineage"]), **read_published_lineage(lineage["reference_lineage"])}
        context = ReportContext(self.evidence, run, lineages)
        self.context = replace(context, claims=evaluate_claims(book(), context))
        found = guard(list(document_tables(self.context)), lineages, "footnote")
        ledger = EvidenceLedger(self.evidence)
        self.tables = {table.id: table.noted(ledger) for table in found}
        assert len(self.tables) == len(found)

    def rows(self, name: str, language: str = "en") -> list[dict[str, str]]:
        """Return the lines of a table by the text of their heads."""
        return list(csv.DictReader(io.StringIO(as_csv(self.tables[name], TRANSLATORS[language]))))

    def row(self, name: str, *keys: str) -> dict[str, str]:
        """Return the line that begins with these cells."""
        (found,) = (row for row in self.rows(name) if tuple(row.values())[: len(keys)] == keys)
        return found

    def texts(self, name: str) -> list[str]:
        """Return lead, notes and footnotes of a table."""
        table = self.tables[name]
        return [messages(table), *(TRANSLATORS["en"].text(tuple(of)) for _, of in table.footnotes)]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> DocumentTables:
    return DocumentTables(tmp_path_factory.mktemp("full"), synthetic.FULL)


def test_every_table_is_there_in_both_languages(built: DocumentTables) -> None:
    assert set(built.tables) == IDS
    for name in IDS:
        english, chinese = (built.rows(name, language) for language in ("en", "zh"))
        assert english
        assert len(english) == len(chinese)


def test_lines_of_ours_have_no_gap(built: DocumentTables) -> None:
    for name, table in built.tables.items():
        for row in table.rows:
            gaps = {TRANSLATORS["en"].text(head) for head, cell in row.items() if cell is None}
            # only extremes have a remark; 0.15 is not compared with itself
            assert row.get(SOURCE) != "ours" or gaps <= {"Remark", "Holm p", "vs 0.15", "Assessment"}, (name, row)


def test_document_000_statistics(built: DocumentTables) -> None:
    # kl = 0.1 - 0.001 e + 0.01 i - 0.0001 (seed 0); i = 1 for 0.12, 3 for 0.15; mean of e over 1..50 is 25.5.
    # With seeds 1 and 2, of three epochs only, the first value would be 0.1090.
    mean = built.row("000-curves", "KL divergence", "Mean", "ours")
    assert (mean["KL_BETA=0.12"], mean["KL_BETA=0.15"], mean["Difference"]) == ("0.084400", "0.104400", "-0.020000")
    assert built.row("000-curves", "KL divergence", "First", "ours")["KL_BETA=0.12"] == "0.108900"
    # (0.0599 - 0.1089) / 0.1089 = -44.995 %
    assert built.row("000-curves", "KL divergence", "Change", "ours")["KL_BETA=0.12"] == "-45.00 %"
    # 8 + 0.001 (e - 30 - i)^2 is least at e = 31 and 33
    least = built.row("000-curves", "Validation loss", "Minimum", "ours")
    assert (least["KL_BETA=0.12"], least["KL_BETA=0.15"]) == ("8.000000 (epoch 31)", "8.000000 (epoch 33)")


def test_document_000_published(built: DocumentTables) -> None:
    change = built.row("000-curves", "KL divergence", "Change", "published")
    # the document prints -32.24 %, -32.01 % and -0.23 %
    assert (change["KL_BETA=0.12"], change["KL_BETA=0.15"], change["Difference"]) == ("-32.24 %", "-32.01 %", "-0.23 %")
    least = built.row("000-curves", "Validation loss", "Minimum", "published")
    assert (least["KL_BETA=0.12"], least["KL_BETA=0.15"]) == ("7.972695 (epoch 47)", "7.977539 (epoch 41)")
    assert built.row("000-curves", "Mean advantage", "Last", "published")["KL_BETA=0.15"] == "-0.00000009"


@pytest.mark.parametrize("epoch", EPOCHS)
@pytest.mark.parametrize("beta", [0.12, 0.145, 0.15, 0.155, 0.18])
def test_document_001_accuracy(built: DocumentTables, epoch: int, beta: float) -> None:
    row = built.row(f"001-accuracy-epoch~{epoch}", f"{beta:g}", "ours")
    for k in (1, 2, 3, 4):
        value = synthetic.grpo_accuracy(beta, epoch, 200, k)
        assert (row[f"Shot {k}"], row[f"Shot {k} low"]) == (f"{value:.2f}", number_text(value - 2, 1))  # as on the page
    against = 2 * (synthetic.ALL_BETAS.index(beta) - synthetic.ALL_BETAS.index(0.15))
    assert row["vs 0.15"] == (f"{against:+.2f}" if against else "")
    assert row["Holm p"] == (("0.010" if abs(against) > 4 else "0.500") if against else "")


def test_document_001_published(built: DocumentTables) -> None:
    other = built.row("001-accuracy-epoch~1", "0.145", "published")
    # (57.0 + 56.1 + 55.1 + 55.2) / 4 = 55.85; minus (58.8 + 56.6 + 53.9 + 55.2) / 4 = 56.125
    assert (other["Shot 1"], other["Average"], other["vs 0.15"]) == ("57.0", "55.85", "-0.28")
    assert built.row("001-accuracy-epoch~1", "0.15", "published")["vs 0.15"] == ""  # not compared with itself


def test_every_published_number_of_the_documents_is_shown(built: DocumentTables) -> None:
    """Of the files that the documents quote; a number that two of them print is shown once."""
    files = ("2025-12-20正确率.md", "KL_BETA_0145_0155对比.md", "KL_BETA_012_vs_015_训练曲线分析报告.md")
    displayed = {key.rpartition(":quoted=")[0] for key in _keys(built)}
    wanted = [
        row.key.rpartition(":quoted=")[0]
        for row in built.evidence
        if row.quoted in files and row.subject.startswith("published/grpo")
    ]
    assert len(wanted) > 100
    assert [key for key in wanted if key not in displayed] == []


def _keys(built: DocumentTables) -> Iterator[str]:
    for table in built.tables.values():
        for text in map(str, table.rows):
            yield from (part for part in text.split("'") if part.startswith("lever:published"))
    for row in built.evidence:
        yield from row.source.split(" ") if row.study == "report" else ()


def test_configurations(built: DocumentTables) -> None:
    base = built.row("002-configuration", "Base checkpoint")
    assert base["Ours"] == "RCE epoch 5 (val_loss 8.0000)"  # 8.5 - 0.1 * 5
    assert base["Document, 0.15"] == "RCE epoch 2 (val_loss 7.8863)"
    data = built.row("002-configuration", "RL data")
    assert "25.5 % positive" in data["Ours"]
    assert "53.3 % positive" in data["Document, 0.15"]
    batch = built.row("001-configuration", "Batch size (queries)")
    assert (batch["Ours"], batch["Document"]) == ("1", "1")


@pytest.mark.parametrize("epoch", EPOCHS)
@pytest.mark.parametrize("beta", [0.12, 0.15, 0.18])
def test_document_002_accuracy(built: DocumentTables, epoch: int, beta: float) -> None:
    for samples in (100, 200, 400, 800):
        row = built.row(f"002-accuracy-epoch~{epoch}", f"{beta:g}", str(samples), "ours")
        values = [float(row[f"Shot {k}"]) for k in (1, 2, 3, 4)]
        expected = [synthetic.grpo_accuracy(beta, epoch, samples, k) for k in (1, 2, 3, 4)]
        assert values == pytest.approx(expected, abs=0.005)


def test_document_002_differences(built: DocumentTables) -> None:
    # 0.18 is 4 above 0.15 (p 0.5) and 8 above 0.12 (p 0.01)
    row = built.row("002-differences", "1", "3", "ours")
    assert (row["0.18 vs 0.15"], row["0.18 vs 0.12"]) == ("+4.00", "+8.00")
    assert row["Assessment"] == "against 0.15 not separated (p 0.500); against 0.12 separated (p 0.010)"
    published = built.row("002-differences", "1", "1", "published")
    assert (published["0.18 vs 0.15"], published["Assessment"]) == ("-1.80", "")
    summary = built.row("002-summary", "0.12", "published")
    assert summary["Epoch 1 mean difference"] == "-0.28"  # as the document has it
    assert summary["Best shot (epoch 1)"] == "shot 3 (+1.20)"
    assert summary["Assessment"].startswith("slightly below the reference")
    assert built.row("002-summary", "0.15", "ours")["Epoch 1 mean difference"] == "reference"
    assert built.row("002-differences", "1", "2", "published")["0.12 vs 0.15"] == "-0.50"
    # published 0.12, 0.15, 0.18: 57.0, 58.8, 57.0; then 55.1, 53.9, 55.1; then 55.2 three times
    trends = [built.row("002-differences", "1", k, "published")["Trend"] for k in ("1", "3", "4")]
    assert trends == ["rises, then falls", "falls, then rises", "equal"]
    assert built.row("002-differences", "1", "1", "ours")["Trend"] == "rises"


def test_data(built: DocumentTables) -> None:
    share = built.row("rl-data", "Trajectories with a correct answer (%)")
    assert (share["ours"], share["published"]) == ("25.50", "53.3")
    assert built.row("rl-data", "dropped_rows_error")["ours"] == "3"  # a fact without a name is shown all the same
    assert built.row("pools", "Accuracy of the best answer in the pool (%)")["Value"] == "86.26"


def test_a_small_configuration_says_what_is_missing(tmp_path: Path) -> None:
    small = DocumentTables(tmp_path, synthetic.SMOKE)
    table = small.tables["001-accuracy-epoch~1"]
    assert TRANSLATORS["en"].text(table.title) == "Accuracy at 16 samples, GRPO epoch 1"
    assert "Without KL_BETA 0.12, 0.145, 0.155 and 0.18: not part of this configuration." in small.texts(table.id)[0]
    assert "002-differences" not in small.tables
    assert "KL_BETA=0.12" not in small.rows("000-curves")[0]


@pytest.mark.parametrize(
    ("accuracies", "text"), [((50.0, 50.0, 49.0), "shot 1 and 2 (50.0)"), ((49.0, 50.0, 49.0), "shot 2 (50.0)")]
)
def test_equal_shots_tie(accuracies: tuple[float, ...], text: str) -> None:
    side: Any = SimpleNamespace(
        context=SimpleNamespace(shots=(1, 2, 3)), accuracy=lambda *location: Estimate(accuracies[location[-1] - 1], 1)
    )
    assert TRANSLATORS["en"].text(document_002._best_shot(side, REFERENCE_BETA, 1)) == text
