"""Write the launch files of engine verl, and convert its logs to the format of a native run."""

from __future__ import annotations

import logging

from lever_pipe.base import storage
from lever_pipe.base.atomic import write_texts
from lever_pipe.experiment.intention import ConvertVerlConfig, RenderVerlConfig
from lever_pipe.experiment.stage_files import Input, Output
from lever_pipe.intention.records import DoneRow
from lever_pipe.intention.verl.conversion import convert, read_log
from lever_pipe.intention.verl.launch import launch_files

logger = logging.getLogger("convert_verl")


def render_verl(*, launch: Output, config: RenderVerlConfig) -> tuple[str, ...]:
    """Write the launch files and return their names, without launching a run."""
    files = launch_files(config)
    write_texts(launch, files)
    return tuple(sorted(files))


def convert_verl(
    *, log: Input, metrics: Output, evaluations: Output, episodes: Output, done: Output, config: ConvertVerlConfig
) -> DoneRow:
    """Write the log's values under this project's names; return the run's summary.

    `episodes` is empty, because logs do not contain episodes.
    """
    converted = convert(read_log(log), config)
    for note in converted.notes:
        logger.warning("%s", note)
    storage.write_rows(metrics, converted.metrics)
    storage.write_rows(evaluations, converted.evaluations)
    storage.write_rows(episodes, [])
    storage.write_row(done, converted.done)
    return converted.done
