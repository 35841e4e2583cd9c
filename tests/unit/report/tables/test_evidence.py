from __future__ import annotations

from pathlib import Path

import pytest
from lever_pipe.report.tables.evidence import (
    Estimate,
    Evidence,
    Interval,
    Pair,
    Paired,
    p_text,
    read_evidence,
    separated,
)

from lever_pipe.base.errors import RecordError

INTERVALS = "group,samples,shots,accuracy,low,high,n_runs,n_questions\n"
COMPARISONS = "family,left,right,samples,shots,difference,low,high,p,p_holm,detectable,n_runs,n_questions\n"


def evidence(folder: Path, intervals: str = "", comparisons: str = "") -> Evidence:
    (folder / "intervals.csv").write_text(INTERVALS + intervals)
    (folder / "comparisons.csv").write_text(COMPARISONS + comparisons)
    return read_evidence(folder / "intervals.csv", folder / "comparisons.csv")


def test_an_interval_is_found_by_group_samples_and_shots(tmp_path: Path) -> None:
    found = evidence(tmp_path, "a,100,1,50,45.04,55.06,3,100\na,100,mean,52,47,57,3,100\n")
    assert found.interval("a", 100, 1) == Interval(50.0, 45.04, 55.06, 3)
    assert found.interval("a", 100, 1).text() == "50.00 [45.0, 55.1]"
    assert found.interval("a", 100, "mean").value == 52.0


@pytest.mark.parametrize(("group", "samples", "shots"), [("b", 100, 1), ("a", 200, 1), ("a", 100, 2)])
def test_a_cell_without_an_interval_is_refused(tmp_path: Path, group: str, samples: int, shots: int) -> None:
    found = evidence(tmp_path, "a,100,1,50,45,55,3,100\n")
    with pytest.raises(RecordError, match=f"interval of {group} at {samples} samples, shots {shots}; found none"):
        found.interval(group, samples, shots)


def test_a_comparison_may_be_asked_in_either_direction(tmp_path: Path) -> None:
    found = evidence(tmp_path, comparisons="f,a,b,100,mean,1.5,-0.5,3.5,0.02,0.04,2.9,3,100\n")
    forward = Pair("f", "a", "b", 100, "mean")
    assert found.paired(forward) == Paired(1.5, -0.5, 3.5, 0.04, 2.9)
    assert found.paired(forward._replace(left="b", right="a")) == Paired(-1.5, -3.5, 0.5, 0.04, 2.9)
    assert found.paired(forward._replace(family="g")) is None
    assert found.paired(forward) is not None
    assert Paired(1.5, -0.5, 3.5, 0.04, 2.9).text() == "+1.50 [-0.5, 3.5]"


def test_a_comparison_is_found_whichever_part_of_its_kind_it_stands_in(tmp_path: Path) -> None:
    numbers = "1.5,-0.5,3.5,0.02,0.04,2.9,3,100\n"
    rows = ("f,a,b,100,mean,", "f-by-shots,a,b,100,1,", "f-by-shots-one-run,c,b,100,1,", "f-one-run,c,b,100,mean,")
    found = evidence(tmp_path, comparisons="".join(f"{row}{numbers}" for row in rows))
    assert all(found.paired(Pair("f", left, "b", 100, shots)) for left in ("a", "c") for shots in ("1", "mean"))


def test_separation_goes_by_the_adjusted_p() -> None:
    assert separated([Paired(1, 0, 2, 0.9, 1), Paired(1, 0, 2, 0.049, 1)])
    assert not separated([Paired(1, 0.5, 2, 0.05, 1)])
    assert not separated([])


@pytest.mark.parametrize(("p", "text"), [(0.0004, "<0.001"), (0.001, "0.001"), (0.0125, "0.013"), (1.0, "1.000")])
def test_p_text(p: float, text: str) -> None:
    assert p_text(p) == text


def test_another_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "intervals.csv").write_text("group,samples\na,1\n")
    (tmp_path / "comparisons.csv").write_text(COMPARISONS)
    with pytest.raises(RecordError, match="found no shots, accuracy, low, high, n_runs"):
        read_evidence(tmp_path / "intervals.csv", tmp_path / "comparisons.csv")


def test_cells_are_keys() -> None:
    assert Evidence({Estimate("a", 1, "1"): Interval(1, 0, 2, 1)}, {}).interval("a", 1, "1").low == 0
