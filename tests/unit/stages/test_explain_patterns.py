from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from emulated_study import REFERENCE, frames

from lever_pipe.base.errors import RecordError
from lever_pipe.experiment.config import Emulate
from lever_pipe.experiment.stage_configs import ExplainPatternsConfig
from lever_pipe.report.tables.explanations.pattern_study import Pattern
from lever_pipe.stages.explain_patterns import explain_patterns

INPUTS = ("scores", "prompts", "agreement", "training")


def explain(folder: Path, emulate: Emulate = Emulate()) -> list[Pattern]:
    made = frames(emulate)
    for name in INPUTS:
        getattr(made, name).to_csv(folder / f"{name}.csv", index=False)
    return run(folder, emulate)


def run(folder: Path, emulate: Emulate) -> list[Pattern]:
    return explain_patterns(
        **{name: folder / f"{name}.csv" for name in INPUTS}, reference=REFERENCE,
        reference_lineage=REFERENCE.parent / "lineage.yaml",
        patterns=folder / "patterns.csv", tables=folder / "tables.json", csv=folder / "tables",
        config=ExplainPatternsConfig(
            emulate=emulate, samples=(100, 200, 400, 800), shots=(1, 2, 3, 4), data="world", lvlm="x"
        ),
    )  # fmt: skip


def test_every_file_is_written_and_says_the_same(tmp_path: Path) -> None:
    found = explain(tmp_path)
    with (tmp_path / "patterns.csv").open(encoding="utf-8", newline="") as handle:
        rows = list(csv.DictReader(handle))
    assert [row["pattern"] for row in rows] == [pattern.id for pattern in found]
    assert [row["verdict"] for row in rows] == [pattern.verdict for pattern in found]
    tables = json.loads((tmp_path / "tables.json").read_text(encoding="utf-8"))
    assert tables[0]["id"] == "why-patterns"
    assert {table["document"] for table in tables} == {"why"}
    assert {path.stem for path in (tmp_path / "tables").iterdir()} == {table["id"] for table in tables}
    for table in tables:
        assert table["caption"].startswith("Ours: preset `published`, embedded world."), table["id"]
    bases = next(table for table in tables if table["id"] == "why-accuracy-bases")
    assert "Base RCE epoch: 2, the other rows: 5." in " ".join(bases["footnotes"])
    assert any(bases["marks"])


def test_the_same_files_give_the_same_bytes(tmp_path: Path) -> None:
    written = []
    for _ in range(2):
        explain(tmp_path)
        written.append([(tmp_path / name).read_bytes() for name in ("patterns.csv", "tables.json")])
    assert written[0] == written[1]


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"scores\.csv: expected a file"):
        run(tmp_path, Emulate())
