"""A sweep next to a study: the study's numbers are unchanged; the sweep's are from its own arms only."""

from __future__ import annotations

import csv
import io
from typing import Any

import agent_runs
import numpy as np
import pandas as pd
import pytest
from agent_runs import ARMS, Study
from agent_tables import TRANSLATORS, evidence_of, tabulate
from sentences import messages

from lever_pipe.experiment.agent_evaluation import PrimaryEndpoint
from lever_pipe.experiment.evaluation import PrimaryCells
from lever_pipe.experiment.sweeps import Sweep, SweptCell
from lever_pipe.report.evidence import EvidenceRow
from lever_pipe.report.figures.sweeps import cells as sweep_figure
from lever_pipe.report.inference.families import arms_of, family_of_sweep
from lever_pipe.report.sweeps import tables
from lever_pipe.report.table import as_csv
from lever_pipe.statistics.comparison import holm

WRITTEN = (ARMS[0], ARMS[4])
NAMES = ("kl_0_1__rate_1", "kl_0_1__rate_2", "kl_0_5__rate_2")
CELLS = tuple(ARMS[4].model_copy(update={"name": name}) for name in NAMES)
VALUES = dict(zip((*NAMES[:1], "bundle", *NAMES[1:]), ((0.1, 1), (0.01, 2), (0.1, 2), (0.5, 2)), strict=True))
SWEEP = Sweep(
    name="s",
    arm="bundle",
    over={"kl": (0.01, 0.1, 0.5), "rate": (1, 2)},
    cells=tuple(SweptCell(arm=arm, values={"kl": kl, "rate": rate}) for arm, (kl, rate) in VALUES.items()),
)
LISTED = {"kl": (0.1, 0.01, 0.1, 0.5), "rate": (1, 2, 2, 2)}
SENTENCES: dict[str, Any] = {"arms": WRITTEN, "sweeps": (SWEEP,)}


def skill(arm: str, seed: int, step: int) -> float:
    """The third cell is the best one, the second like the swept arm."""
    return 0.4 + 0.005 * step + 0.01 * seed + 0.35 * (arm == NAMES[2]) - 0.08 * (arm == NAMES[0])


STUDY = Study(arms=(*WRITTEN, *CELLS), steps=25, skill=skill, n_test=24, lengths={(NAMES[1], 1): 20})


@pytest.fixture(scope="module")
def frames(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, pd.DataFrame]]:
    """Return what `compare_arms` writes of the written arms, of these with the sweep, and of the swept arms alone."""
    alone = Study(**{**vars(STUDY), "arms": (ARMS[4], *CELLS)})
    calls: dict[str, tuple[Study, dict[str, Any]]] = {
        "written": (Study(**{**vars(STUDY), "arms": WRITTEN}), {}),
        "both": (STUDY, {**SENTENCES, "swept": CELLS}),
        "swept": (alone, {"reference_arm": "bundle"}),
    }
    found = {}
    for name, (study, changes) in calls.items():
        paths = agent_runs.compare(tmp_path_factory.mktemp(name), study, **changes)
        found[name] = {of: pd.read_csv(paths[of]) for of in ("endpoints", "comparisons")}
    return found


def test_a_sweep_moves_no_number_of_the_written_arms(frames: dict[str, dict[str, pd.DataFrame]]) -> None:
    for of in ("endpoints", "comparisons"):
        both = frames["both"][of]
        selected = both[~both["arm"].isin(NAMES)].reset_index(drop=True)
        pd.testing.assert_frame_equal(selected, frames["written"][of])


def test_its_comparisons_are_those_of_its_arms_alone_with_a_family_of_their_own(
    frames: dict[str, dict[str, pd.DataFrame]],
) -> None:
    both, alone = frames["both"]["comparisons"], frames["swept"]["comparisons"]
    own, alone = both[both["arm"].isin(NAMES)], alone[alone["role"] == "primary"]
    assert set(own["reference"]) == {"bundle"}
    assert set(own["role"]) == {"secondary"}
    assert list(own["family"]) == ["sweep~s/" + name for name in alone["family"]]
    columns = ["endpoint", "arm", "difference", "low", "high", "p", "p_holm", "left_value", "right_value"]
    pd.testing.assert_frame_equal(own[columns].reset_index(drop=True), alone[columns].reset_index(drop=True))
    for _, rows in own.groupby("family"):
        assert len(rows) == 3
        assert list(rows["p_holm"]) == pytest.approx(list(holm(list(rows["p"]))), rel=1e-6)


@pytest.fixture(scope="module")
def evidence(tmp_path_factory: pytest.TempPathFactory) -> list[EvidenceRow]:
    return evidence_of(tmp_path_factory.mktemp("shown"), STUDY, **SENTENCES, swept=CELLS)


def test_a_sweep_enters_no_other_table_and_has_its_own(evidence: list[EvidenceRow]) -> None:
    plain = [row for row in evidence if not row.subject.startswith(tuple(f"arm~{name}" for name in NAMES))]
    (with_sweep, without) = (tabulate(rows, STUDY, **SENTENCES) for rows in (evidence, plain))
    assert {name: as_csv(table, TRANSLATORS["en"]) for name, table in with_sweep.tables.items()} == {
        name: as_csv(table, TRANSLATORS["en"]) for name, table in without.tables.items()
    }
    assert list(tables(without.context)) == []
    (table,) = tables(with_sweep.context)
    rows = list(csv.DictReader(io.StringIO(as_csv(table, TRANSLATORS["en"]))))
    assert [row["Arm"] for row in rows] == list(VALUES)
    assert [(float(row["kl"]), float(row["rate"])) for row in rows] == list(VALUES.values())
    at = {"at": "last", "subset": "test", "mode": "sampled"}
    means = {arm: with_sweep.view.find(f"arm~{arm}", "normalised_reward", **at) for arm in VALUES}
    for row in rows:
        mean = means[row["Arm"]]
        assert mean is not None
        assert float(row["Sampled: Score"]) == pytest.approx(100 * mean.value, abs=0.051)
        assert bool(row["Sampled: Difference"]) == (row["Arm"] != "bundle") == bool(row["Greedy: Holm p"])
    text = messages(table)
    best = next(row for row in rows if row["Arm"] == NAMES[2])
    assert text.startswith(f"Sampled: The highest of 4 cells is kl 0.5 and rate 2 with {best['Sampled: Score']} [")
    assert f"to bundle (Holm p {best['Sampled: Holm p']})." in text
    assert "over the 3 tests of its column" in text
    assert f"Ended before step 25, in a run or more: {NAMES[1]}. Arms are compared by their last policies" in text
    best = {"evaluation": STUDY.evaluation.model_copy(update={"primary": PrimaryEndpoint(checkpoint="best")})}
    (table,) = tables(tabulate(evidence, STUDY, **SENTENCES, **best).context)
    assert f"{NAMES[1]}. Arms are compared by their best policies" in messages(table)


def test_two_keys_are_a_heat_map_and_a_list_is_points(evidence: list[EvidenceRow]) -> None:
    view = tabulate(evidence, STUDY, **SENTENCES)
    figure = sweep_figure("agent", view.context, TRANSLATORS["en"])
    assert figure is not None
    sampled, _ = figure.axes
    assert [label.get_text() for label in sampled.get_yticklabels()] == ["0.01", "0.1", "0.5"]
    assert [label.get_text() for label in sampled.get_xticklabels()] == ["1", "2"]
    (image,), (frame,) = sampled.images, sampled.patches
    rows = {arm: view.view.held_out(f"arm~{arm}", "sampled") for arm in VALUES}
    score = {arm: 100 * row.value for arm, row in rows.items() if row is not None}
    expected = [[np.nan, score["bundle"]], [score[NAMES[0]], score[NAMES[1]]], [np.nan, score[NAMES[2]]]]
    np.testing.assert_allclose(np.ma.filled(image.get_array(), np.nan), expected)
    assert frame.get_xy() == (0.5, -0.5)  # round the first row's second place
    apart = {text.get_text().rstrip("*") for text in sampled.texts if text.get_text().endswith("*")}
    compared = [row for row in evidence if row.against == "arm~bundle" and row.mode == "sampled"]
    assert apart == {f"{score[row.subject[4:]]:.1f}" for row in compared if row.p_holm < 0.05} != set()
    listed = tabulate(
        evidence, STUDY, **{**SENTENCES, "sweeps": (SWEEP.model_copy(update={"how": "list", "over": LISTED}),)}
    )
    points = sweep_figure("agent", listed.context, TRANSLATORS["en"])
    assert points is not None
    assert [label.get_text() for label in points.axes[0].get_yticklabels()] == ["0.1, 1", "0.01, 2", "0.1, 2", "0.5, 2"]


@pytest.mark.parametrize(
    ("key", "kind"), [("rce.learning_rate", "grpo/base~2"), ("on_policy.group", "on_policy/base~1")]
)
def test_a_selector_is_evaluated_at_the_reference_beta_of_its_latest_base(key: str, kind: str) -> None:
    groups = [
        f"preset~{preset}/{of}/beta~{beta}/epoch~{epoch}"
        for preset in ("a", "b", "c")
        for of in ("grpo/base~1", "grpo/base~2", "on_policy/base~1")
        for beta in ("0", "0.15", "1")
        for epoch in (1, 2)
    ]
    cells = tuple(SweptCell(arm=arm, values={key: i}) for i, arm in enumerate(("b", "a", "c")))
    sweep = Sweep(name="s", arm="a", over={key: (0, 2)}, cells=cells)
    arms = {arm.preset: arm for arm in arms_of(groups, "a")}
    found = family_of_sweep(sweep, arms, PrimaryCells(), (10, 40))
    names = {arm: f"preset~{arm}/{kind}/beta~0.15/epoch~2" for arm in "abc"}
    assert found.pairs == ((names["b"], names["a"]), (names["c"], names["a"]))
    assert (found.name, found.samples, found.shots, found.role) == ("sweep~s", 40, ("mean",), "secondary")
