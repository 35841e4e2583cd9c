"""Rule `score_answers`: VQA accuracy of one policy in every cell of samples x shots."""

from __future__ import annotations

import time
from pathlib import Path

from lever_pipe.base import storage
from lever_pipe.base.records import AnswerRow, Cell, Selection
from lever_pipe.experiment.run_card import write_card
from lever_pipe.experiment.stage_configs import Runtime, ScoreAnswersConfig
from lever_pipe.metrics.cells import build_cells, score_questions


def score_answers(
    *,
    selections: Path,
    answers: Path,
    eval_examples: Path,
    per_question: Path,
    summary: Path,
    cells: tuple[Path, ...],
    card: Path,
    config: ScoreAnswersConfig,
    runtime: Runtime = Runtime(),
) -> list[Cell]:
    """Write and return the cells, in the order samples x shots of the config.

    Raises:
        RecordError: a query has no selection, a prompt no answer, or a cell wants more queries than there are.
    """
    started = time.perf_counter()
    queries = storage.read_examples(eval_examples)
    chosen = {row.query_id: row.demonstrations for row in storage.read_rows(selections, Selection)}
    said = {(row.query_id, row.demonstrations): row.answer for row in storage.read_rows(answers, AnswerRow)}
    files = (str(selections), str(answers))
    scores, keys = score_questions(queries, chosen, said, config.shots, files=files)
    subsets = {"n_random_subsets": config.n_random_subsets, "seed": config.seed}
    built = build_cells(config.policy, scores, keys, samples=config.samples, **subsets)
    storage.write_rows(per_question, scores)
    storage.write_rows(summary, built)
    for path, cell in zip(cells, built, strict=True):
        storage.write_row(path, cell)
    inputs = {"selections": selections, "answers": answers, "eval_examples": eval_examples}
    write_card(card, stage="score_answers", config=config, inputs=inputs, started=started, runtime=runtime)
    return built
