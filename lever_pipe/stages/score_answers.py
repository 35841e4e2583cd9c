"""Rule `score_answers`: VQA accuracy of one policy in every cell of samples x shots."""

from __future__ import annotations

from lever_pipe.base import storage
from lever_pipe.base.records import AnswerRow, Cell
from lever_pipe.experiment.stage_configs import ScoreAnswersConfig
from lever_pipe.experiment.stage_files import Input, Output, Outputs
from lever_pipe.metrics.cells import build_cells, score_questions


def score_answers(
    *,
    selections: Input,
    answers: Input,
    eval_examples: Input,
    per_question: Output,
    summary: Output,
    cells: Outputs,
    config: ScoreAnswersConfig,
) -> list[Cell]:
    """Write and return the cells, in the order samples x shots of the config.

    Raises:
        RecordError: a query has no selection, a prompt no answer, or a cell wants more queries than there are.
    """
    queries = storage.read_examples(eval_examples)
    chosen = storage.read_selections(selections)
    said = {(row.query_id, row.demonstrations): row.answer for row in storage.read_rows(answers, AnswerRow)}
    files = (str(selections), str(answers))
    scores, keys = score_questions(queries, chosen, said, config.shots, files=files)
    subsets = {"n_random_subsets": config.n_random_subsets, "seed": config.seed}
    built = build_cells(config.policy, scores, keys, samples=config.samples, **subsets)
    storage.write_rows(per_question, scores)
    storage.write_rows(summary, built)
    for path, cell in zip(cells, built, strict=True):
        storage.write_row(path, cell)
    return built
