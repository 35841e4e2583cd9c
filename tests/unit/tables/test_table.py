from __future__ import annotations

from lever_pipe.tables.table import Table, beside, frame_of, markdown_grid


def test_a_published_row_stands_below_ours() -> None:
    rows = beside({"KL_BETA": "0.15"}, ours={"Shot 1": "40.00"}, published={"Shot 1": "58.80"})
    assert rows == [
        {"KL_BETA": "0.15", "Source": "ours", "Shot 1": "40.00"},
        {"KL_BETA": "0.15", "Source": "published", "Shot 1": "58.80"},
    ]


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


def test_an_empty_grid_has_its_head() -> None:
    assert markdown_grid(["a"], []) == "| a |\n| :-- |"
