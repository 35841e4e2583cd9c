from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from lever_pipe.report.claims.texts import METRICS, by_value, counted, named

VALUES = st.text("ab01 ;,:", min_size=1).filter(lambda text: text == text.strip())
"""Values of run cards: any joint may stand in them."""


def test_runs_of_one_value_stand_together() -> None:
    text = by_value("base checkpoint", {"0.12": "RCE epoch 5", "0.15": "RCE epoch 2", "0.18": "RCE epoch 5"})
    assert text == "base checkpoint (0.12 and 0.18: RCE epoch 5) (0.15: RCE epoch 2)"


@given(values=st.dictionaries(st.sampled_from(["0.12", "0.145", "0.15", "0.18"]), VALUES, min_size=1))
def test_what_by_value_writes_reads_back(values: dict[str, str]) -> None:
    text = by_value("field", values)
    read = re.findall(r" \(([0-9., and]+?): ([^()]*)\)", text)
    assert {run: value for runs, value in read for run in re.findall(r"0\.\d+", runs)} == values
    assert "field" + "".join(f" ({runs}: {value})" for runs, value in read) == text


def test_one_is_singular() -> None:
    assert [counted(n, "seed") for n in (0, 1, 2)] == ["0 seeds", "1 seed", "2 seeds"]


def test_no_name_shows_how_a_column_is_called() -> None:
    assert named("mean_ratio") == "mean ratio"
    assert not [name for name in METRICS.values() if "_" in name]
