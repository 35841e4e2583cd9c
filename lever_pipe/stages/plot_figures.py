"""Rule `plot_figures`: every figure of both studies, once a language."""

from __future__ import annotations

from pathlib import Path

from lever_pipe.base import storage
from lever_pipe.base.atomic import write_folder
from lever_pipe.experiment.report_stage_configs import PlotFiguresConfig, ReportedRun
from lever_pipe.experiment.stage_files import Input, Inputs, Output
from lever_pipe.report.catalogue import Voice, read_catalogue
from lever_pipe.report.evidence import Evidence, read_evidence
from lever_pipe.report.figures.drawn import FIGURES, draw_all
from lever_pipe.report.material import Material


def plot_figures(
    *,
    evidence: Input,
    english: Inputs,
    chinese: Inputs,
    figures: Output,
    config: PlotFiguresConfig,
) -> None:
    """Write `en/NAME.svg`, `en/NAME.png` and `zh/NAME.svg` into `figures`; a figure without data is left out.

    `sections.json` says, in order, in which section of the report each stands.

    Chinese figures are SVG alone: their characters come from the reader's fonts.

    Raises:
        RecordError: a malformed file, or a message that is missing.
    """
    material = Material(Evidence(read_evidence(evidence)), ReportedRun.model_validate(dict(config)))
    voices = [Voice("en", read_catalogue(english)), Voice("zh", read_catalogue(chinese))]

    def draw(folder: Path) -> None:
        for voice in voices:
            of_language = folder / voice.language
            of_language.mkdir()
            names = draw_all(material, voice, of_language, with_png=voice.language == "en")
        storage.write_json(folder / "sections.json", [[name, FIGURES[name].section] for name in names])

    write_folder(figures, draw)
