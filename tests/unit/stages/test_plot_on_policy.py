from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import on_policy_files
import pandas as pd
import pytest
import synthetic_page
import test_tabulate_on_policy
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from on_policy_files import Size

from lever_pipe.commands.glossary_tool import file_texts, untranslated
from lever_pipe.report.figures import on_policy, style
from lever_pipe.report.tables import frames
from lever_pipe.report.tables.evidence import read_evidence
from lever_pipe.report.tables.on_policy.study import CollectedRuns, PresetRuns, studies_of

FIGURES = {"prompts": on_policy.by_prompts, "steps": on_policy.by_step, "betas": on_policy.by_beta}


def study_of(folder: Path, size: Size) -> PresetRuns:
    paths = on_policy_files.write(folder, size)
    scores = pd.concat([frames.read_scores(paths[name]) for name in ("scores", "arms")])
    evidence = read_evidence(paths["intervals"], paths["comparisons"])
    return studies_of(CollectedRuns(scores, evidence, {}, {}, frames.read_steps(paths["steps"])), "main", None)[0]


def draw(folder: Path, size: Size, name: str) -> Figure:
    with style.styled():
        figure = FIGURES[name](study_of(folder, size))
    assert figure is not None
    return figure


def line(axes: Axes, label: str) -> tuple[list[float], list[float]]:
    found = [one for one in axes.get_lines() if one.get_label() == label]
    assert len(found) == 1, [one.get_label() for one in axes.get_lines()]
    return list(found[0].get_xdata()), list(found[0].get_ydata())


def bars(axes: Axes, index: int) -> list[list[float]]:
    """Return the ends of the bars of one series, from left to right."""
    return [sorted(path.vertices[:, 1]) for path in axes.collections[index].get_paths()]


def test_accuracy_is_drawn_against_thousand_prompts_from_the_base_of_the_same_seed(tmp_path: Path) -> None:
    (axes,) = draw(tmp_path, Size(), "prompts").axes
    # seed 0 at 400 samples: the base has 40 + 2.5 - 2, each epoch adds 3 points for 800 prompts
    assert line(axes, "On-policy, KL_BETA=0") == (
        pytest.approx([0, 0.8, 1.6, 2.4]),
        pytest.approx([40.5, 43.5, 46.5, 49.5]),
    )
    assert line(axes, "REINFORCE")[1] == pytest.approx([40.5, 41.5, 42.5, 43.5])
    assert line(axes, "On-policy, every larger KL_BETA")[1] == pytest.approx([40.5, 43.0, 45.5, 48.0])
    levels = {"RCE base": 40.5, "Offline GRPO, KL_BETA=0": 41.25, "Oracle distillation": 55.5, "Pool oracle": 80.0}
    assert {name: line(axes, name)[1] for name in levels} == {name: [at, at] for name, at in levels.items()}


def test_a_band_begins_at_the_base_only_where_the_seeds_are_the_same(tmp_path: Path) -> None:
    for seeds, width in (((0,), 0.0), ((0, 1, 2), 4.0)):
        (axes,) = draw(tmp_path, Size(drawn_seeds=seeds), "prompts").axes
        ends = axes.collections[0].get_paths()[0].vertices
        at_base = ends[np.isclose(ends[:, 0], 0.0), 1]
        assert np.ptp(at_base) == pytest.approx(width)


def test_divergence_and_entropy_are_drawn_by_step(tmp_path: Path) -> None:
    divergence, entropy = draw(tmp_path, Size(), "steps").axes
    places, values = line(divergence, "KL_BETA=0.15")
    assert places == list(range(24))
    # 0.05 a step is a line, which smoothing over five steps keeps except at its ends
    assert values[2:-2] == pytest.approx([0.05 * step for step in range(2, 22)])
    assert line(entropy, "KL_BETA=1")[1][2:-2] == pytest.approx([3 - 0.05 * step for step in range(2, 22)])
    assert not divergence.collections  # one seed has no band


def test_several_seeds_have_a_band_from_the_lowest_to_the_highest(tmp_path: Path) -> None:
    divergence, _ = draw(tmp_path, Size(drawn_seeds=(0, 1, 2)), "steps").axes
    ends = divergence.collections[0].get_paths()[0].vertices
    at_ten = ends[np.isclose(ends[:, 0], 10.0), 1]
    # KL_BETA=0 has 0.1 a step, seed s 10 s % more
    assert (at_ten.min(), at_ten.max()) == (pytest.approx(1.0), pytest.approx(1.2))
    assert line(divergence, "KL_BETA=0")[1][10] == pytest.approx(1.1)


def test_accuracy_and_paired_gain_are_drawn_against_beta(tmp_path: Path) -> None:
    accuracy, gain = draw(tmp_path, Size(), "betas").axes
    assert [tick.get_text() for tick in accuracy.get_xticklabels()] == ["0", "0.15", "1"]
    names = ["On-policy, epoch 3, 1 seed", "Offline, epoch 3, 3 seeds"]
    assert accuracy.get_legend_handles_labels()[1] == names
    assert bars(accuracy, 0) == [pytest.approx([at - 2, at + 2]) for at in (49.5, 48.0, 46.5)]
    assert bars(gain, 0) == [pytest.approx([at - 1, at + 1]) for at in (9.0, 7.5, 6.0)]
    assert bars(gain, 1) == [pytest.approx([-0.25, 1.75])] * 2


def test_a_figure_without_data_is_left_out(tmp_path: Path) -> None:
    study = study_of(tmp_path, Size(betas=(0.0,), offline_betas=(0.0,)))
    assert on_policy.by_beta(study) is None  # nothing to compare
    silent = replace(study, measured=replace(study.measured, steps=study.measured.steps[:0]))
    assert on_policy.by_prompts(silent) is None
    assert on_policy.by_step(silent) is None


def test_another_preset_is_drawn_with_its_own_families(tmp_path: Path) -> None:
    _, gain = draw(tmp_path, Size(presets=("other",)), "betas").axes
    assert bars(gain, 0)[0] == pytest.approx([8.0, 10.0])


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_page_prints_tables_and_figures_in_either_language(tmp_path: Path, language: str) -> None:
    size = Size(drawn_seeds=(0, 1))
    tables = test_tabulate_on_policy.tabulate(tmp_path, size)
    (tmp_path / "figures").mkdir()
    with style.styled():
        for name in FIGURES:
            footer = "Ours: preset `main`, embedded world."
            style.save(draw(tmp_path, size, name), tmp_path / "figures", f"on_policy_{name}", footer=footer)
    texts = list(file_texts([tables], [tmp_path / "figures"]))
    assert untranslated(synthetic_page.chinese(), texts) == []
    inputs = {"tables": (tables,), "csv": (tmp_path / "csv",), "figures": (tmp_path / "figures",)}
    # the page's own audit compares every printed number with those of the files, and refuses any other
    page = synthetic_page.build({**synthetic_page.templates(), **inputs}, tmp_path, language=language)
    html = page.read_text(encoding="utf-8")
    assert 'id="section-on_policy"' in html
    assert html.count("<figure id=") == len(FIGURES)
