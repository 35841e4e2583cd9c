from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from lever_pipe.base import storage
from lever_pipe.base.errors import RecordError
from lever_pipe.report.page.tables import PageTable, read_tables, view
from lever_pipe.report.tables.table import Table

VALUES: dict[str, Any] = Table(
    id="001-x~1",
    document="001",
    title="Title",
    caption="Caption.",
    frame=pd.DataFrame(
        [
            ["0.12", "ours", "57.00 [54.1, 59.8]", "", "supported", "main"],
            ["0.12", "published", "56.10", "-1", "a remark", "other"],
        ],
        columns=["KL_BETA", "Source", "Shot 1", "Change", "Verdict", "Preset"],
    ),
    notes=("Published: x",),
    marks=("", "ab"),
    footnotes=("a: First.", "Second."),
).as_json()


def table(**changes: Any) -> PageTable:
    return PageTable.model_validate({**VALUES, **changes})


def shown(**changes: Any):  # type: ignore[no-untyped-def]
    return view(table(**changes), csv="a.csv", say=lambda text: f"<{text}>" if text == "supported" else text)


def test_what_a_stage_writes_is_what_the_page_reads(tmp_path: Path) -> None:
    storage.write_json(tmp_path / "t.json", [VALUES])
    assert read_tables([tmp_path / "t.json"]) == [table()]


def test_rows_and_columns_say_whose_numbers_they_hold() -> None:
    seen = shown(columns=["KL_BETA", "Source", "Ours", "Published", "Document", "Preset"])
    assert [row.kind for row in seen.rows] == ["ours", "published"]
    assert [column.kind for column in seen.columns] == ["", "", "ours", "published", "published", ""]
    assert [row.cells[1].look for row in seen.rows] == ["tag ours", "tag published"]


def test_an_interval_stands_small_behind_its_number() -> None:
    seen = shown()
    assert [(row.cells[2].text, row.cells[2].tail) for row in seen.rows] == [("57.00", "[54.1, 59.8]"), ("56.10", "")]
    assert seen.rows[0].cells[2].whole == "57.00 [54.1, 59.8]"


@pytest.mark.parametrize(
    ("cells", "is_number"),
    [
        (["1", "2.5"], True),
        (["57.00 [54.1, 59.8]", ""], True),
        (["-1 ± 0.2", "+3%"], True),
        (["7.97 (epoch 47)", "<0.001"], True),
        (["1,200", "5e-06"], True),
        (["0.12 x 0.06 = 0.0072", "1"], False),
        (["39.09, 42.14: held", "1"], False),
        (["", ""], False),
        (["2. KL Loss", "3"], False),
    ],
)
def test_a_column_of_numbers_is_known(cells: list[str], is_number: bool) -> None:
    seen = shown(columns=["A", "B"], rows=[["x", cell] for cell in cells])
    assert seen.columns[1].is_number is is_number


def test_the_first_column_names_its_row_and_stands_left_even_if_it_sorts_by_number() -> None:
    first = shown().columns[0]
    assert first.is_number
    assert first.look == "brief"


def test_verdicts_have_a_look_and_names_stand_as_code() -> None:
    seen = shown()
    assert (seen.rows[0].cells[4].text, seen.rows[0].cells[4].look) == ("<supported>", "verdict yes")
    assert seen.rows[1].cells[4].look == ""
    assert [row.cells[5].text for row in seen.rows] == ["`main`", "`other`"]


def test_marks_lead_to_footnotes() -> None:
    seen = shown()
    assert [row.marks for row in seen.rows] == ["", "ab"]
    assert seen.footnotes == (("a", "First."), ("b", "Second."))


def test_texts_are_those_that_are_spoken() -> None:
    spoken: list[str] = []
    view(table(), csv="", say=lambda text: spoken.append(text) or text)  # type: ignore[func-returns-value]
    assert sorted(spoken) == sorted(table().texts())


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"rows": [["1"]]}, "every row must have 6 cells"),
        ({"marks": ["a"]}, "1 marks for 2 rows"),
        ({"marks": ["c", ""]}, "a mark names no footnote"),
        ({"extra": 1}, "extra"),
    ],
)
def test_a_malformed_table_is_named(tmp_path: Path, changes: dict[str, Any], fault: str) -> None:
    storage.write_json(tmp_path / "t.json", [{**VALUES, **changes}])
    with pytest.raises(RecordError, match=rf"t.json: expected a table; found '001-x~1': .*{fault}"):
        read_tables([tmp_path / "t.json"])


def test_a_missing_key_is_named(tmp_path: Path) -> None:
    storage.write_json(tmp_path / "t.json", [{key: value for key, value in VALUES.items() if key != "caption"}])
    with pytest.raises(RecordError, match="caption: Field required"):
        read_tables([tmp_path / "t.json"])


def test_two_tables_of_one_id_are_refused(tmp_path: Path) -> None:
    storage.write_json(tmp_path / "t.json", [VALUES])
    with pytest.raises(RecordError, match="'001-x~1' twice"):
        read_tables([tmp_path / "t.json"] * 2)


def test_a_file_that_is_no_list_is_refused(tmp_path: Path) -> None:
    storage.write_json(tmp_path / "t.json", {})
    with pytest.raises(RecordError, match="expected a list of tables"):
        read_tables([tmp_path / "t.json"])


def test_a_series_is_set_a_line_an_item() -> None:
    rows = [["x", "first: 1; second: 2 (a; b)"], ["y", "plain; words"], ["z", "一 1；二 2"]]
    seen = view(table(columns=["A", "B"], rows=rows, marks=[]), csv="", say=str)
    lines = [row.cells[1].lines for row in seen.rows]
    assert lines == [["first: 1;", "second: 2 (a; b)"], ["plain; words"], ["一 1；", "二 2"]]
