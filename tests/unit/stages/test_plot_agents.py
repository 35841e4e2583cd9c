from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from agent_runs import Study, compare, shown_config
from claim_files import REFERENCE_INTENTION
from scipy import stats

from lever_pipe.base.errors import RecordError
from lever_pipe.experiment.agent_stage_configs import PlotAgentsConfig
from lever_pipe.report.figures import agents
from lever_pipe.report.page import prose
from lever_pipe.report.tables import frames
from lever_pipe.stages.plot_agents import plot_agents

NAMES = {"agent_validation", "agent_validation_arms", "agent_training", "agent_arms", "published_rewards"}


def plot(found: dict[str, Path], folder: Path, study: Study) -> Path:
    plot_agents(
        **{name: found[name] for name in ("curves", "episodes_table", "endpoints", "comparisons")},
        reference_intention=REFERENCE_INTENTION,
        figures=folder / "figures",
        config=PlotAgentsConfig(**shown_config(study).model_dump()),
    )
    return folder / "figures"


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return compare(tmp_path_factory.mktemp("agents"))


def test_every_figure_is_there_with_words_of_its_own(found: dict[str, Path], tmp_path: Path) -> None:
    folder = plot(found, tmp_path, Study())
    assert {p.name for p in folder.iterdir()} == {f"{name}.{kind}" for name in NAMES for kind in ("svg", "png")}
    assert set(prose.CAPTIONS) >= NAMES
    drawn = (folder / "agent_validation_arms.svg").read_text()
    assert all(arm.name in drawn for arm in Study().arms)
    pair = (folder / "agent_validation.svg").read_text()
    assert [arm.name for arm in Study().arms if arm.name in pair] == ["baseline", "bundle"]
    assert "% of the ceiling" in (folder / "agent_arms.svg").read_text()
    assert "Ours: embedded world, tiny Qwen3." in drawn
    assert "Ours" not in (folder / "published_rewards.svg").read_text()


def test_equal_inputs_give_equal_bytes(found: dict[str, Path], tmp_path: Path) -> None:
    one, two = (plot(found, tmp_path / name, Study()) for name in ("one", "two"))
    assert all((two / path.name).read_bytes() == path.read_bytes() for path in one.iterdir())


def test_runs_without_held_out_tasks_have_no_figure_of_endpoints(tmp_path: Path) -> None:
    study = Study(has_test=False)
    folder = plot(compare(tmp_path, study), tmp_path / "plots", study)
    assert {path.stem for path in folder.iterdir()} == NAMES - {"agent_arms"}


def test_a_curve_file_without_its_columns_is_named(found: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "curves.csv").write_text("arm,seed\nbaseline,0\n")
    with pytest.raises(RecordError, match=r"curves.csv: expected the columns .* found no step"):
        plot({**found, "curves": tmp_path / "curves.csv"}, tmp_path, Study())


def test_the_band_of_one_run_is_the_t_interval_over_tasks() -> None:
    rewards = {"a": [1.0, 2.0], "b": [0.0, 1.0], "c": [3.0, 3.0]}
    keys = {"seed": 0, "step": 5, "ceiling": 9.0}
    rows = [{**keys, "task_id": t, "reward": r} for t, of in rewards.items() for r in of]
    point = agents.curve_with_band(pd.DataFrame(rows))[5.0]
    means = [1.5, 0.5, 3.0]
    half = stats.t.ppf(0.975, 2) * np.std(means, ddof=1) / np.sqrt(3)
    assert point.value == pytest.approx(np.mean(means))
    assert point.low == 0.0 > np.mean(means) - half  # no reward lies below
    assert point.high == pytest.approx(np.mean(means) + half)


def test_a_band_ends_at_the_ceiling() -> None:
    pairs = {"a": (2.0, 2.0), "b": (1.0, 3.0), "c": (4.0, 4.0)}
    rows = [{"seed": 0, "task_id": t, "step": 5, "reward": r, "ceiling": c} for t, (r, c) in pairs.items()]
    # mean 7 / 3, sd 1.53, half 3.79 beyond the mean ceiling of 3
    assert agents.curve_with_band(pd.DataFrame(rows))[5.0] == pytest.approx((7 / 3, 0.0, 3.0, 1))


def test_estimates_of_the_document_belong_to_no_line() -> None:
    figure = agents.published(frames.read_text_columns(REFERENCE_INTENTION))
    assert figure is not None
    lines = {str(line.get_label()): np.asarray(line.get_ydata()) for line in figure.axes[0].get_lines()}
    assert lines["no KL"].tolist() == [1.818, 2.14, 1.84, 1.83, 1.75, 1.788, 2.04, 2.003, 2.202]
    assert lines["KL bundle"].tolist() == [1.695, 1.992, 1.768, 1.915, 1.97, 1.828, 1.84, 2.123, 2.005]
    assert lines["no KL, estimated by document 003"].tolist() == [1.85, 1.9, 1.95, 2.0, 2.05, 2.1, 2.15]
    hollow = next(line for line in figure.axes[0].get_lines() if "estimated" in str(line.get_label()))
    assert hollow.get_markerfacecolor() == "none"
    assert hollow.get_linestyle() == "None"
