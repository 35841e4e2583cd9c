"""Every text that a stage writes for the page has a translation, and no translation changes a number."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import on_policy_files
import pytest
import synthetic_page
import test_compare_policies
import test_explain_patterns
import test_measure_agreement
import test_tabulate_on_policy
from test_compare_policies import Size

from lever_pipe.base import storage
from lever_pipe.commands.glossary_tool import file_texts, main, page_texts, untranslated
from lever_pipe.experiment.config import Emulate
from lever_pipe.report.page.numbers import numbers_in

files = test_measure_agreement.files  # a fixture


def assert_translated(tables: Path) -> None:
    glossary = synthetic_page.chinese()
    texts = list(file_texts([tables], []))
    assert texts
    assert untranslated(glossary, texts) == []
    for text in texts:
        assert sorted(numbers_in(glossary.translate(text)[0])) == sorted(numbers_in(text)), text


@pytest.mark.parametrize(
    "size",
    [
        Size(),
        Size(seeds=(0,), epochs=(1,), betas=("0", "0.15")),
        Size(presets=("main", "other"), gain=0.3, shots=(1,)),
    ],
)
def test_comparisons(tmp_path: Path, size: Size) -> None:
    assert_translated(test_compare_policies.run(tmp_path, size)["tables"])


@pytest.mark.parametrize(
    "size",
    [
        on_policy_files.Size(),
        on_policy_files.Size(drawn_seeds=(0, 1, 2), presets=("main", "other")),
        on_policy_files.Size(betas=(0.0, 0.1, 0.2, 0.3, 1.0)),
        on_policy_files.Size(betas=(0.1,), shots=(1,), marks=(), seeds=(0,), epochs=1),
    ],
)
def test_on_policy(tmp_path: Path, size: on_policy_files.Size) -> None:
    assert_translated(test_tabulate_on_policy.tabulate(tmp_path, size))


def test_agreement(files: dict[str, Any]) -> None:
    test_measure_agreement.run(files)
    assert_translated(files["tables"])


@pytest.mark.parametrize(
    "emulate", [Emulate(), Emulate(kl_betas=(0.12, 0.145, 0.15), grpo_epochs=1), Emulate(kl_betas=(0.12, 0.15))]
)
def test_emulated_faults(tmp_path: Path, emulate: Emulate) -> None:
    test_explain_patterns.explain(tmp_path, emulate)
    assert_translated(tmp_path / "tables.json")


def test_the_pages_own_words() -> None:
    assert untranslated(synthetic_page.chinese(), page_texts()) == []


def test_the_tool_lists_what_is_missing(tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(synthetic_page.ROOT)
    table = {
        "id": "x",
        "document": "001",
        "title": "Mean",
        "lead": "",
        "caption": "Mean over seeds. Nobody knows this.",
        "factor": "",
        "notes": [],
        "groups": [],
        "marks": [],
        "footnotes": [],
        "columns": ["Mean", "Median height"],
        "rows": [],
    }
    storage.write_json(tmp_path / "t.json", [table])
    assert main(["glossary", "zh", str(tmp_path / "t.json")]) == 1
    assert capsys.readouterr().out.splitlines() == ["Nobody knows this.", "Median height"]
    assert main(["glossary", "zh"]) == 0
