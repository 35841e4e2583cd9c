"""Rule `compare_cells`: every cell of the grid with its interval, and what separates cells."""

from __future__ import annotations

from lever_pipe.experiment.stage_configs import CompareCellsConfig
from lever_pipe.experiment.stage_files import Inputs, Output
from lever_pipe.report.grid.cells import CellRow
from lever_pipe.report.grid.cells import compare_cells as compare
from lever_pipe.report.inference.estimates import ComparisonRow
from lever_pipe.report.long_format import write_csv


def compare_cells(*, per_question: Inputs, leaderboard: Output, comparisons: Output, config: CompareCellsConfig) -> int:
    """Write both long-format files and return the number of cells.

    `per_question` belong to `config.evaluated`, in their order.

    Raises:
        RecordError: a malformed file, or policies of a data set that were not scored on the same questions.
    """
    rows, compared = compare(per_question, config)
    write_csv(leaderboard, CellRow._fields, rows)
    lines = [(data, *row) for data, of in compared.items() for row in of]
    write_csv(comparisons, ("data", *ComparisonRow._fields), lines)
    return len({(row.data, row.sampler, row.lvlm, row.policy) for row in rows})
