from __future__ import annotations

import hashlib
import struct
from pathlib import Path

import matplotlib
import pytest
import synthetic_results as synthetic

from lever_pipe.report.figures import accuracy, curves, learning, style
from lever_pipe.report.tables import frames
from lever_pipe.report.tables.evidence import read_evidence
from lever_pipe.report.tables.results import Results
from lever_pipe.stages.plot_curves import plot_curves

NAMES = {
    *(f"accuracy_by_{what}" for what in ("shots", "samples", "preset", "epoch", "kind")),
    "training_curves",
    "rce_curve",
    "kl_beta_differences",
    "on_policy_prompts",
    "on_policy_betas",
}


def plot(folder: Path, size: synthetic.Size, name: str = "figures") -> Path:
    outputs = synthetic.collect(folder, size)
    plot_curves(
        scores=outputs["scores"],
        training=outputs["training"],
        arms=outputs["arms"],
        steps=outputs["steps_csv"],
        **synthetic.write_evidence(folder, size, outputs),
        figures=folder / name,
        config=synthetic.plot_config(size),
    )
    return folder / name


@pytest.fixture(scope="module")
def figures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return plot(tmp_path_factory.mktemp("plots"), synthetic.FULL)


def results(folder: Path, size: synthetic.Size) -> Results:
    outputs = synthetic.collect(folder, size)
    paths = synthetic.write_evidence(folder, size, outputs)
    evidence = read_evidence(paths["intervals"], paths["comparisons"])
    scores, training = frames.read_scores(outputs["scores"]), frames.read_training(outputs["training"])
    return Results(scores, training, 5, "main", evidence)


def test_every_figure_is_there_as_svg_and_png(figures: Path) -> None:
    assert {p.name for p in figures.iterdir()} == {f"{name}.{kind}" for name in NAMES for kind in ("svg", "png")}


def test_pngs_are_a_thousand_pixels_wide(figures: Path) -> None:
    for path in figures.glob("*.png"):
        width = struct.unpack(">I", path.read_bytes()[16:20])[0]  # the header chunk holds the width at byte 16
        assert width == 1000, path.name


def test_equal_inputs_give_equal_bytes(figures: Path, tmp_path: Path) -> None:
    again = plot(tmp_path, synthetic.FULL)
    digests = [
        {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}
        for folder in (figures, again)
    ]
    assert digests[0] == digests[1]


def test_a_figure_says_whose_numbers_it_shows(figures: Path, tmp_path: Path) -> None:
    footer = "Ours: presets main and published, embedded world."
    assert f">{footer}</text>" in (figures / "accuracy_by_preset.svg").read_text(encoding="utf-8")
    for name in NAMES - {"accuracy_by_preset"}:
        svg = (figures / f"{name}.svg").read_text(encoding="utf-8")
        assert ">Ours: preset main, embedded world.</text>" in svg


def test_a_figure_without_data_is_left_out(tmp_path: Path) -> None:
    names = {path.stem for path in plot(tmp_path, synthetic.SMOKE).iterdir()}
    # the small configuration has one preset, and learns from stored selections alone
    assert names == NAMES - {"accuracy_by_preset", "on_policy_prompts", "on_policy_betas"}


def test_a_former_run_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "old.png").write_text("stale")
    assert "old.png" not in {path.name for path in plot(tmp_path, synthetic.SMOKE).iterdir()}


def test_training_curves_draw_the_logged_values(tmp_path: Path) -> None:
    with style.styled():
        figure = curves.training_curves(results(tmp_path, synthetic.FULL))
    assert figure is not None
    panel = figure.axes[0]
    line = panel.get_lines()[0]
    assert len(line.get_xdata()) == 50
    # 0.12, seed 0: 0.1 - 0.001 + 0.01 - 0.0001
    assert line.get_ydata()[0] == pytest.approx(0.1089, abs=1e-12)  # nine printed digits
    assert [axes.get_title(loc="left") for axes in figure.axes][-1] == "Mean ratio policy / reference"
    assert all(axes.get_xlabel() and axes.get_ylabel() for axes in figure.axes)


def test_seeds_become_a_band(tmp_path: Path) -> None:
    size = synthetic.Size(long_betas=())
    with style.styled():
        figure = curves.training_curves(results(tmp_path, size))
    assert figure is not None
    band = figure.axes[0].collections[0].get_paths()[0].get_extents()
    # beta 0, three seeds 0.0001 apart: sd 0.0001 around 0.099 (epoch 1) down to 0.097 (epoch 3)
    assert (band.ymin, band.ymax) == (pytest.approx(0.0969, abs=1e-9), pytest.approx(0.0991, abs=1e-9))


def test_accuracy_by_shots_names_every_policy_once(tmp_path: Path) -> None:
    with style.styled():
        figure = accuracy.by_shots(results(tmp_path, synthetic.FULL))
    assert figure is not None
    left, right = figure.axes
    assert left.get_legend_handles_labels()[1].count("GRPO epoch 3, every KL_BETA") == 1
    assert len(right.get_legend_handles_labels()[1]) == 7  # RCE and six betas


def test_bars_are_the_intervals(tmp_path: Path) -> None:
    with style.styled():
        figure = accuracy.by_shots(results(tmp_path, synthetic.FULL))
    assert figure is not None
    bars = figure.axes[1].collections[0].get_paths()[0].vertices
    # RCE epoch 5 at 800 samples and 1 shot: 35 + 5 + 0.25 - 3 = 37.25, and the interval reaches 2 to each side
    assert sorted(bars[:, 1]) == pytest.approx([35.25, 39.25])


def test_differences_are_drawn_with_their_intervals(tmp_path: Path) -> None:
    with style.styled():
        figure = learning.beta_differences(results(tmp_path, synthetic.FULL))
    assert figure is not None
    base, best = figure.axes
    assert [tick.get_text() for tick in base.get_yticklabels()] == ["0", "0.12", "0.145", "0.15", "0.155", "0.18"]
    assert [tick.get_text() for tick in best.get_yticklabels()] == ["0", "0.12", "0.145", "0.15", "0.155"]
    # KL_BETA=0 lies 40 + 1.5 - 40 = 1.5 above RCE epoch 5 and 10 below KL_BETA=0.18; intervals reach 1 to each side
    assert sorted(base.collections[0].get_paths()[0].vertices[:, 0]) == pytest.approx([0.5, 2.5])
    assert sorted(best.collections[0].get_paths()[0].vertices[:, 0]) == pytest.approx([-11.0, -9.0])


def test_grpo_learning_curves_begin_at_their_base(tmp_path: Path) -> None:
    with style.styled():
        figure = learning.by_epoch(results(tmp_path, synthetic.FULL))
    assert figure is not None
    rce, grpo = figure.axes
    assert len(rce.get_lines()) == 4  # one a shot count
    # RCE epoch 5, mean over shots: 35 + 5 + 0.625 - 3; then 40 + 0.5 epoch + 0.625 - 3 of KL_BETA=0
    assert list(grpo.get_lines()[0].get_ydata()) == pytest.approx([37.625, 38.125, 38.625, 39.125])


def test_series_differ_in_colour_marker_and_dash() -> None:
    looks = [style.look(index) for index in range(8)]
    for part in ("color", "marker", "dash"):
        assert len({str(getattr(look, part)) for look in looks}) == 8


def test_settings_of_the_process_are_restored() -> None:
    before = dict(matplotlib.rcParams)
    with style.styled():
        assert matplotlib.rcParams["svg.hashsalt"] == "lever-pipe"
    assert dict(matplotlib.rcParams) == before
