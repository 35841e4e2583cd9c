"""Collect the evidence, a row for every number of the report, and plot the figures."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

from lever_pipe.base import storage
from lever_pipe.base.atomic import write_folder
from lever_pipe.experiment.collected import InputsAlone
from lever_pipe.experiment.report import PlotFiguresConfig, ReportedRun
from lever_pipe.experiment.stage_files import Input, Inputs, Output
from lever_pipe.report import sources
from lever_pipe.report.catalogue import Translator, read_translation
from lever_pipe.report.context import ReportContext
from lever_pipe.report.evidence import Evidence, read_evidence, write_evidence
from lever_pipe.report.figures.registry import FIGURES, draw_all


def collect_evidence(
    *,
    reference: Input,
    reference_intention: Input,
    intervals: Inputs,
    comparisons: Inputs,
    scores: Inputs,
    training: Inputs,
    parameters: Inputs,
    costs: Inputs,
    selections: Inputs,
    copying: Inputs,
    rl_data: Inputs,
    pools: Inputs,
    examples: Inputs,
    scoring: Inputs,
    emulated: Inputs,
    endpoints: Inputs,
    arm_comparisons: Inputs,
    curves: Inputs,
    runs: Inputs,
    tasks: Inputs,
    evidence: Output,
    config: InputsAlone,  # noqa: ARG001 - every stage has one
) -> None:
    """Write `evidence`; files of a study that did not run are absent.

    `emulated` are the scores, prompts and training files of the emulated bugs.
    """
    kinds = (
        *((sources.intervals, intervals), (sources.comparisons, comparisons), (sources.scores, scores)),
        *((sources.training, training), (sources.parameters, parameters)),
        *(
            (sources.costs, costs),
            (sources.selections, selections),
            (sources.copying, copying),
            (sources.endpoints, endpoints),
        ),
        *((sources.arm_comparisons, arm_comparisons), (sources.curves, curves), (sources.runs, runs)),
    )
    facts = (("rl_data", rl_data), ("pools", pools), ("examples", examples), ("scoring", scoring))
    rows = [read(path) for read, paths in kinds for path in paths]
    rows += [sources.facts(subject, path) for subject, paths in facts for path in paths]
    rows += [sources.facts("tasks", path, study=sources.INTENTION) for path in tasks]
    rows += [sources.emulated(*emulated)] if emulated else []
    rows += [sources.published(reference), sources.published_agents(reference_intention)]
    write_evidence(evidence, Evidence(chain.from_iterable(rows)))


def plot_figures(
    *,
    evidence: Input,
    chinese: Input,
    figures: Output,
    config: PlotFiguresConfig,
) -> None:
    """Write `en/NAME.svg`, `en/NAME.png` and `zh/NAME.svg` into `figures`; skip figures without data.

    `sections.json` lists, in order, the section of the report for each figure.

    Chinese figures are SVG only, because their characters come from the reader's fonts.
    """
    context = ReportContext(Evidence(read_evidence(evidence)), ReportedRun.model_validate(dict(config)))
    translators = [Translator("en"), Translator("zh", read_translation(chinese))]

    def draw(folder: Path) -> None:
        for translator in translators:
            of_language = folder / translator.language
            of_language.mkdir()
            names = draw_all(context, translator, of_language, with_png=translator.language == "en")
        storage.write_json(folder / "sections.json", [[name, FIGURES[name].section] for name in names])

    write_folder(figures, draw)
