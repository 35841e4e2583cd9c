"""Collect the evidence, a row for every number of the report, and plot the figures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
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
from lever_pipe.report.evidence import Evidence, EvidenceRow, read_evidence, write_evidence
from lever_pipe.report.figures.registry import FIGURES, draw_all

Reader = Callable[[Path], Iterable[EvidenceRow]]
TABLES: Mapping[str, Reader] = {
    "intervals": sources.intervals,
    "comparisons": sources.comparisons,
    "scores": sources.scores,
    "arms": sources.scores,
    "training": sources.training,
    "arms_training": sources.training,
    "parameters": sources.parameters,
    "costs": sources.costs,
    "selections": sources.selections,
    "copying": sources.copying,
    "controls": sources.copying,
}
"""Readers of the long-format files of study `lever`, by file name."""
AGENT_TABLES: Mapping[str, Reader] = {
    "endpoints": sources.endpoints,
    "comparisons": sources.arm_comparisons,
    "curves": sources.curves,
    "runs": sources.runs,
}
"""The same of study `intention`."""
FACTS = {
    "rl_data": "rl_data",
    "bound": "pools",
    "train.summary": "examples",
    "eval.summary": "examples",
    "scoring": "scoring",
}
"""Subjects of the files with single numbers of study `lever`, by file name."""


def collect_evidence(
    *,
    reference: Input,
    reference_intention: Input,
    tables: Inputs,
    agent_tables: Inputs,
    facts: Inputs,
    tasks: Inputs,
    emulated: Inputs,
    evidence: Output,
    config: InputsAlone,  # noqa: ARG001 - every stage has one
) -> None:
    """Write `evidence`; files of a study that did not run are absent.

    `tables`, `agent_tables` and `facts` are files of `TABLES`, `AGENT_TABLES` and `FACTS`. `emulated` are the scores,
    prompts and training files of the emulated bugs.
    """
    rows = [TABLES[path.stem](path) for path in tables]
    rows += [AGENT_TABLES[path.stem](path) for path in agent_tables]
    rows += [sources.facts(FACTS[path.stem], path) for path in facts]
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
