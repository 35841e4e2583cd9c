"""The LVLM's answers to the prompts of a batch of policies, and their scores."""

from __future__ import annotations

import os
from pathlib import Path

from lever_pipe.base import storage
from lever_pipe.base.records import AnswerRow, Cell, ExampleId, Selection
from lever_pipe.experiment import execution
from lever_pipe.experiment.stage_configs import AnswerPromptsConfig, Runtime, ScoreAnswersConfig
from lever_pipe.experiment.stage_files import External, Input, Inputs, Output
from lever_pipe.lvlms.asking.answering import load_lvlm
from lever_pipe.lvlms.asking.prompts import Prompter, Wording
from lever_pipe.lvlms.protocol import LvlmRequest
from lever_pipe.metrics.cells import build_cells, score_questions
from lever_pipe.metrics.vqa_accuracy import cut_answer


def answer_prompts(
    *,
    selections: Inputs,
    train_examples: Input,
    eval_examples: Input,
    train_images: External,
    eval_images: External,
    lvlm: External,
    answers: Output,
    counters: Output,
    config: AnswerPromptsConfig,
    runtime: Runtime = Runtime(),
) -> int:
    """Answer each distinct prompt of all selections and shot counts once; return how many there are.

    The folder of answers gets a file for each policy with the answers to its own prompts, at the place that its
    selections have below the study's folder: `STUDY/POLICY/selections.jsonl` leads to `POLICY.jsonl`. So what reads one
    policy's answers depends on no other policy.
    """
    execution.prepare(runtime)
    train, queries = storage.read_examples(train_examples), storage.read_examples(eval_examples)
    model = load_lvlm(config.lvlm, lvlm, [(train, train_images), (queries, eval_images)], runtime)
    prompter = Prompter(Wording(config.lvlm.prompt), train)
    wanted = distinct_prompts(selections, config.shots)
    replies = model.run([LvlmRequest(prompter(queries[query], chosen)) for query, chosen in wanted])
    rows = {
        (query, chosen): AnswerRow(query_id=query, demonstrations=chosen, raw=reply.text, answer=cut_answer(reply.text))
        for (query, chosen), reply in zip(wanted, replies, strict=True)
    }
    study = os.path.commonpath((answers, *selections))
    for path in selections:
        own = answers / f"{path.parent.relative_to(study)}.jsonl"
        storage.write_rows(own, [rows[prompt] for prompt in distinct_prompts((path,), config.shots)])
    storage.write_json(counters, model.counters)
    return len(rows)


def distinct_prompts(
    selections: tuple[Path, ...], shots: tuple[int, ...]
) -> list[tuple[ExampleId, tuple[ExampleId, ...]]]:
    """Return every distinct `(query, demonstrations)` of the files, sorted; k shots are the first k."""
    prompts = {
        (row.query_id, row.demonstrations[:k])
        for path in selections
        for row in storage.read_rows(path, Selection)
        for k in shots
    }
    return sorted(prompts)


def score_answers(
    *,
    selections: Input,
    answers: Input,
    eval_examples: Input,
    per_question: Output,
    cells: Output,
    config: ScoreAnswersConfig,
) -> list[Cell]:
    """Write and return the cells, in the order samples x shots of the config."""
    queries = storage.read_examples(eval_examples)
    chosen = storage.read_selections(selections)
    said = {(row.query_id, row.demonstrations): row.answer for row in storage.read_rows(answers, AnswerRow)}
    files = (str(selections), str(answers))
    scores, keys = score_questions(queries, chosen, said, config.shots, files=files)
    subsets = {"n_random_subsets": config.n_random_subsets, "seed": config.seed}
    built = build_cells(config.policy, scores, keys, samples=config.samples, **subsets)
    storage.write_rows(per_question, scores)
    storage.write_rows(cells, built)
    return built
