"""Rule `score_answers`: VQA accuracy of one policy in every cell of samples x shots."""

from __future__ import annotations

import time
from collections.abc import Container, Sequence
from pathlib import Path

import numpy as np

from lever_pipe import storage
from lever_pipe.errors import RecordError
from lever_pipe.metrics.vqa_accuracy import vqa_accuracy
from lever_pipe.records import AnswerRow, Cell, Example, QuestionScore, Selection, SubsetScore
from lever_pipe.run_card import write_card
from lever_pipe.seeding import generator
from lever_pipe.stage_configs import Runtime, ScoreAnswersConfig

PromptKey = tuple[str, str, tuple[int, ...]]


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
    queries = storage.read_rows(eval_examples, Example)
    chosen = {row.query_id: row.demonstrations for row in storage.read_rows(selections, Selection)}
    said = {(row.query_id, row.demonstrations): row.answer for row in storage.read_rows(answers, AnswerRow)}
    _require_queries(selections, queries, chosen, most=max(config.samples))
    scores: list[QuestionScore] = []
    keys: dict[int, list[PromptKey]] = {}
    for shots in config.shots:
        for query in queries:
            demonstrations = chosen[query.example_id][:shots]
            answer = said.get((query.example_id, demonstrations))
            if answer is None:
                raise RecordError(
                    f"{answers}: expected an answer to query {query.example_id} with {list(demonstrations)}",
                    found="none",
                    do="Rerun answer_prompts for this batch.",
                )
            accuracy = vqa_accuracy(answer, query.answers)
            scores.append(QuestionScore(query_id=query.example_id, shots=shots, accuracy=accuracy))
            keys.setdefault(shots, []).append((query.image_digest, query.question, demonstrations))
    built = build_cells(scores, keys, config)
    storage.write_rows(per_question, scores)
    storage.write_rows(summary, built)
    for path, cell in zip(cells, built, strict=True):
        storage.write_row(path, cell)
    inputs = {"selections": selections, "answers": answers, "eval_examples": eval_examples}
    write_card(card, stage="score_answers", config=config, inputs=inputs, started=started, runtime=runtime)
    return built


def _require_queries(path: Path, queries: Sequence[Example], chosen: Container[int], *, most: int) -> None:
    absent = [query.example_id for query in queries if query.example_id not in chosen]
    if absent:
        raise RecordError(
            f"{path}: expected a selection for each of {len(queries)} queries",
            found=f"none for {len(absent)}, first {absent[:5]}",
            do="Rebuild the selections from the pools of these queries.",
        )
    if most > len(queries):
        raise RecordError(
            f"evaluation.samples: expected at most {len(queries)}, the queries with a readable image",
            found=str(most),
            do="Lower evaluation.samples or complete the data.",
        )


def build_cells(
    scores: Sequence[QuestionScore], keys: dict[int, list[PromptKey]], config: ScoreAnswersConfig
) -> list[Cell]:
    """Return one cell per sample count and shot count: the prefix in question-id order and random subsets.

    The random subsets depend on the seed and the size only, so that all policies share them.
    """
    built: list[Cell] = []
    for samples in config.samples:
        for shots in config.shots:
            values = np.array([score.accuracy for score in scores if score.shots == shots])
            subsets = {"prefix": np.arange(samples)}
            for draw in range(config.n_random_subsets):
                stream = generator(config.seed, "subset", samples, draw)
                subsets[f"random-{draw}"] = stream.permutation(len(values))[:samples]
            rows = tuple(
                SubsetScore(
                    subset=name,
                    accuracy=round(100 * float(values[chosen].mean()), 6),
                    n_questions=len(chosen),
                    n_distinct_prompts=len({keys[shots][i] for i in chosen}),
                )
                for name, chosen in subsets.items()
            )
            built.append(Cell(policy=config.policy, samples=samples, shots=shots, subsets=rows))
    return built
