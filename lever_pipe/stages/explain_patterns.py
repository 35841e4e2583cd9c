"""Rule `explain_patterns`: which emulated fault makes which pattern of the published tables."""

from __future__ import annotations

from lever_pipe.base import storage
from lever_pipe.experiment.stage_configs import ExplainPatternsConfig
from lever_pipe.experiment.stage_files import Input, Output
from lever_pipe.report.tables import comparability
from lever_pipe.report.tables.explanations import patterns as judged
from lever_pipe.report.tables.explanations.emulated import Emulated, Frames
from lever_pipe.report.tables.explanations.emulated_tables import emulated_tables
from lever_pipe.report.tables.explanations.pattern_study import EmulatedStudy, Pattern
from lever_pipe.report.tables.explanations.published_patterns import Quoted
from lever_pipe.report.tables.folder import write_tables
from lever_pipe.report.tables.frames import read_text_columns
from lever_pipe.report.tables.lineage import read_published_lineage
from lever_pipe.report.tables.long_format import csv_text
from lever_pipe.report.tables.origin import Origin
from lever_pipe.report.tables.published import Published


def explain_patterns(
    *,
    scores: Input,
    prompts: Input,
    agreement: Input,
    training: Input,
    reference: Input,
    reference_lineage: Input,
    patterns: Output,
    tables: Output,
    csv: Output,
    config: ExplainPatternsConfig,
) -> list[Pattern]:
    """Write every pattern with its verdict, and the tables of the emulation; return the patterns.

    Raises:
        RecordError: a missing or malformed input file.
    """
    frames = Frames(*map(read_text_columns, (scores, prompts, agreement, training)))
    quoted = Quoted(Published(read_text_columns(reference)))
    study = EmulatedStudy(Emulated(frames), quoted, config.emulate, config.samples, config.shots)
    found = judged.patterns(study)
    storage.write_text(patterns, csv_text(judged.COLUMNS, [judged.line(pattern) for pattern in found]))
    origin = Origin(config.emulate.preset, config.data, config.lvlm)
    built = [judged.pattern_table(study, found, quoted.notes()), *emulated_tables(study)]
    # Emulated rows have no lineage of their own; the published ones beside them differ as in every other table.
    lineages = read_published_lineage(reference_lineage)
    guarded = comparability.guard([origin.named(table) for table in built], lineages, "footnote")
    write_tables(guarded, json=tables, folder=csv)
    return found
