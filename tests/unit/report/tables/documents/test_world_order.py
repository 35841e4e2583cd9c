from __future__ import annotations

import pandas as pd

from lever_pipe.report.tables.columns import SCORES_COLUMNS
from lever_pipe.report.tables.documents.world_order import world_order

LEVELS = {"zero_shot": 39.0, "random-0": 43.0, "random-1": 45.0, "similar_both": 58.0, "oracle": 87.0}


def row(policy: str, accuracy: float, **changes: object) -> dict[str, object]:
    made = dict.fromkeys(SCORES_COLUMNS) | {"policy": policy, "stage": "baseline", "subset": "prefix"}
    return made | {"samples": 800, "shots": 1, "accuracy": accuracy} | changes


def scores(rce: tuple[float, float], **levels: float) -> pd.DataFrame:
    """Two shots; zero-shot has none, two seeds of RCE lie 1 below and above, epoch 1 and 100 samples do not count."""
    rows = [
        row(name, level, shots=k)
        for name, level in {**LEVELS, **levels}.items()
        for k in ((0,) if name == "zero_shot" else (1, 2))
    ]
    for k, level in enumerate(rce, start=1):
        rows += [row(f"rce{s}", level + s, stage="rce", epoch=2, shots=k) for s in (-1, 1)]
        rows += [row("rce-early", 1.0, stage="rce", epoch=1, shots=k)]
        rows += [row("oracle", 1.0, samples=100, shots=k), row("oracle", 1.0, subset="random-0", shots=k)]
    return pd.DataFrame(rows, columns=list(SCORES_COLUMNS))


def cells(frame: pd.DataFrame, text: str) -> list[str]:
    (found,) = frame[frame["Expectation"] == text].to_numpy().tolist()
    return [str(cell) for cell in found[1:]]


def test_one_shot_count_can_miss_while_the_mean_holds() -> None:
    (table,) = world_order(scores((58.5, 63.0)))
    assert table.id == "world-order"
    assert list(table.frame.columns) == ["Expectation", "Shot 1", "Shot 2", "Mean"]
    assert len(table.frame) == 7
    # random is the mean of 43 and 45; 58.5 - 44 = 14.5 < 15, 63 - 44 = 19, mean 60.75 - 44 = 16.75
    gain = cells(table.frame, "RCE, last epoch, at least 15 points above random")
    assert gain == ["44.00, 58.50: missed", "44.00, 63.00: held", "44.00, 60.75: held"]
    others = table.frame[~table.frame["Expectation"].str.contains("15 points")]
    assert not others.map(lambda cell: "missed" in cell).to_numpy().any()
    assert cells(table.frame, "Zero-shot at most random")[0] == "39.00, 44.00: held"


def test_bounds_that_are_met_exactly() -> None:
    levels = {"zero_shot": 40.0, "random-0": 40.0, "random-1": 40.0, "oracle": 80.0, "similar_both": 55.0}
    (table,) = world_order(scores((55.0, 80.0), **levels))
    assert cells(table.frame, "Zero-shot at most random")[0].endswith(": held")
    assert cells(table.frame, "Random from 40 to 50")[0] == "40.00: held"
    assert cells(table.frame, "RCE, last epoch, at least 15 points above random")[0].endswith(": held")
    assert cells(table.frame, "Oracle at least 80")[0] == "80.00: held"
    # strict ones: 55 is not below 55, nor 80 below 80
    assert cells(table.frame, "Most similar image and question below RCE, last epoch")[0].endswith(": missed")
    assert cells(table.frame, "RCE, last epoch, below oracle")[1].endswith(": missed")


def test_an_expectation_without_scores_is_left_out() -> None:
    frame = scores((60.0, 60.0))
    (table,) = world_order(frame[frame["policy"] != "oracle"])
    assert len(table.frame) == 5
    assert world_order(frame.iloc[:0]) == []
