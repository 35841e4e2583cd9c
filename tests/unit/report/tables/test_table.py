from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lever_pipe.report.tables.table import Table, beside, frame_of, groups_of, markdown_grid
from lever_pipe.report.tables.text import INTERVAL, bracketed, number, signed


def test_a_published_row_stands_below_ours() -> None:
    rows = beside({"KL_BETA": "0.15"}, ours={"Shot 1": "40.00"}, published={"Shot 1": "58.80"}, groups=("a", "b"))
    assert frame_of(rows, ["KL_BETA", "Source", "Shot 1"]).to_numpy().tolist() == [
        ["0.15", "ours", "40.00"],
        ["0.15", "published", "58.80"],
    ]
    assert groups_of(rows) == ("a", "b")


def test_nothing_published_leaves_no_row_and_nothing_of_ours_leaves_none_at_all() -> None:
    assert len(beside({}, ours={"a": "1"}, published={"a": ""})) == 1
    assert beside({}, ours={"a": ""}, published={"a": "1"}) == []


def test_columns_without_any_entry_are_dropped() -> None:
    frame = frame_of([{"a": "1", "c": ""}, {"a": "2", "b": "3"}], ["a", "b", "c"])
    assert list(frame.columns) == ["a", "b"]
    assert frame.to_numpy().tolist() == [["1", ""], ["2", "3"]]


def test_forms_of_a_table() -> None:
    frame = frame_of([{"a": "1"}, {"a": "2", "b": "x|y"}], ["a", "b"])
    table = Table("id", "000", "Title", "Caption.", frame, ("Note",))
    assert table.as_csv() == "a,b\n1,\n2,x|y\n"
    assert table.as_json()["rows"] == [["1", ""], ["2", "x|y"]]
    assert "| 1 | – |\n| 2 | x\\|y |" in table.as_markdown()
    assert table.as_markdown().startswith("# Title\n\n| a | b |\n| :-- | --: |\n")
    assert table.as_markdown().endswith("Caption.\n\n- Note\n")


def test_intervals_have_columns_of_their_own_in_csv() -> None:
    frame = frame_of([{"a": "x", "b": "57.00 [54.1, 59.9]", "c": "+0.12 [-1.0, 1.2]"}, {"a": "y", "b": "58.8"}], "abc")
    assert Table("id", "000", "T", "C.", frame).as_csv() == (
        "a,b,b low,b high,c,c low,c high\nx,57.00,54.1,59.9,+0.12,-1.0,1.2\ny,58.8,,,,,\n"
    )


@given(value=st.floats(-100, 100), low=st.floats(-100, 100), high=st.floats(-100, 100), signs=st.booleans())
def test_a_printed_interval_reads_back(value: float, low: float, high: float, signs: bool) -> None:
    printed = signed(value, 2) if signs else number(value, 2)
    found = INTERVAL.fullmatch(bracketed(printed, low, high))
    assert found is not None
    assert found["value"] == printed
    assert (float(found["low"]), float(found["high"])) == pytest.approx((low, high), abs=0.0501)  # one decimal


def test_footnotes_stand_below_their_letters() -> None:
    frame = frame_of([{"a": "1", "b": "2"}, {"a": "3", "b": "4"}], ["a", "b"])
    table = Table("id", "000", "T", "C.", frame, marks=("", "a"), footnotes=("a: other base",))
    assert "| 1 | 2 |\n| 3 (a) | 4 |\n\na: other base\n\nC." in table.as_markdown()


def test_an_empty_grid_has_its_head() -> None:
    assert markdown_grid(["a"], []) == "| a |\n| :-- |"
