"""Rule `plot_curves`: training curves and accuracies as SVG and PNG."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from lever_pipe.base.atomic import write_folder
from lever_pipe.experiment.stage_configs import PlotCurvesConfig
from lever_pipe.experiment.stage_files import Input, Output
from lever_pipe.report.figures import accuracy, curves, kinds, learning, on_policy, style
from lever_pipe.report.tables import frames
from lever_pipe.report.tables.evidence import read_evidence
from lever_pipe.report.tables.on_policy.study import CollectedRuns, PresetRuns, studies_of
from lever_pipe.report.tables.origin import Origin
from lever_pipe.report.tables.results import Results, choose_base


def plot_curves(
    *,
    scores: Input,
    training: Input,
    arms: Input,
    steps: Input,
    intervals: Input,
    comparisons: Input,
    breakdown: Input,
    figures: Output,
    config: PlotCurvesConfig,
) -> None:
    """Write one SVG and one PNG a figure into the folder `figures`; a figure without data is left out.

    Raises:
        RecordError: a malformed input file.
    """
    counts = {"samples": config.samples, "shots": config.shots}
    wanted, training_rows = frames.within(frames.read_scores(scores), **counts), frames.read_training(training)
    base = choose_base(wanted, training_rows, config.base_rce_epoch)
    results = Results(wanted, training_rows, base, config.main_preset, read_evidence(intervals, comparisons))
    arm_rows = frames.within(frames.read_scores(arms), **counts)
    measured = CollectedRuns(pd.concat([wanted, arm_rows]), results.evidence, {}, {}, frames.read_steps(steps))
    study = next(iter(studies_of(measured, config.main_preset, config.base_rce_epoch)), None)
    with style.styled():
        drawn: dict[str, Figure | None] = {
            "accuracy_by_shots": accuracy.by_shots(results),
            "accuracy_by_samples": accuracy.by_samples(results),
            "training_curves": curves.training_curves(results),
            "rce_curve": curves.rce_curve(results),
            "accuracy_by_epoch": learning.by_epoch(results),
            "kl_beta_differences": learning.beta_differences(results),
            "accuracy_by_kind": kinds.by_kind(frames.read_text_columns(breakdown)),
            "accuracy_by_preset": accuracy.by_preset(results, arm_rows, config.main_preset),
        }
        of_study = _of_study(study)
        drawn |= of_study
        origin = Origin(config.main_preset, config.data, config.lvlm)
        presets = {"accuracy_by_preset": [config.main_preset, *sorted(set(arm_rows["preset"]))]}
        presets |= {name: [study.preset] for name in of_study if study is not None}
        footers = {name: origin.sentence(presets.get(name, [config.main_preset])) for name in drawn}
        write_folder(figures, lambda folder: _save_all(folder, drawn, footers))


def _of_study(study: PresetRuns | None) -> dict[str, Figure | None]:
    """Return the figures of the first preset with on-policy runs, which is the main one where that has them."""
    if study is None:
        return {}
    return {
        "on_policy_prompts": on_policy.by_prompts(study),
        "on_policy_steps": on_policy.by_step(study),
        "on_policy_betas": on_policy.by_beta(study),
    }


def _save_all(folder: Path, drawn: Mapping[str, Figure | None], footers: Mapping[str, str]) -> None:
    for name, figure in drawn.items():
        if figure is not None:
            style.save(figure, folder, name, footer=footers[name])
