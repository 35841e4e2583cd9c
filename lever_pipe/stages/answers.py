"""The LVLM's answers to the prompts of a batch of policies, and their scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from lever_pipe.base import storage
from lever_pipe.base.records import AnswerRow, Cell, ExampleId, PolicyScores, Selection
from lever_pipe.experiment import execution
from lever_pipe.experiment.evaluation import ScoreAnswersConfig
from lever_pipe.experiment.job_runtime import Runtime
from lever_pipe.experiment.lvlm import AnswerPromptsConfig
from lever_pipe.experiment.stage_files import External, Input, Inputs, Output
from lever_pipe.lvlms.asking.answering import load_lvlm
from lever_pipe.lvlms.asking.prompts import Wording
from lever_pipe.lvlms.protocol import LvlmRequest
from lever_pipe.metrics.cells import Demonstrations, build_cells, score_questions
from lever_pipe.metrics.copying import vote
from lever_pipe.metrics.vqa_accuracy import cut_answer

VOTE = "baseline/vote"


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
    """Answer each distinct prompt of all selections and shot counts once; return their number."""
    execution.prepare(runtime)
    train, queries = storage.read_examples(train_examples), storage.read_examples(eval_examples)
    model = load_lvlm(config.lvlm, lvlm, [(train, train_images), (queries, eval_images)], runtime)
    wording, prompts = Wording(config.lvlm.prompt), distinct_prompts(selections, config.shots)
    worded = (wording.prompt(queries[query], [train[i] for i in ids]) for query, ids in prompts)
    replies = model.run(list(map(LvlmRequest, worded)))
    rows = [
        AnswerRow(query_id=query, demonstrations=ids, raw=reply.text, answer=cut_answer(reply.text))
        for (query, ids), reply in zip(prompts, replies, strict=True)
    ]
    storage.write_rows(answers, rows)
    storage.write_json(counters, model.counters)
    return len(rows)


def distinct_prompts(
    selections: tuple[Path, ...], shots: tuple[int, ...]
) -> list[tuple[ExampleId, tuple[ExampleId, ...]]]:
    """Return all distinct `(query, demonstrations)` of the files, sorted; k shots are the first k demonstrations."""
    prompts = {
        (row.query_id, row.demonstrations[:k])
        for path in selections
        for row in storage.read_rows(path, Selection)
        for k in shots
    }
    return sorted(prompts)  # the order of requests must not depend on the order of policies


def votes(
    selections: Mapping[ExampleId, Demonstrations], texts: Sequence[str], shots: tuple[int, ...]
) -> dict[tuple[ExampleId, Demonstrations], str]:
    """Return each prompt's majority answer of its demonstrations; `texts` has the answers of the train examples."""
    prompts = {(query, ids[:k]) for query, ids in selections.items() for k in shots}
    return {(query, ids): vote([texts[i] for i in ids]) for query, ids in prompts}


def score_answers(
    *,
    selections: Inputs,
    answers: Input,
    train_examples: Input,
    eval_examples: Input,
    per_question: Output,
    cells: Output,
    config: ScoreAnswersConfig,
) -> list[Cell]:
    """Write a line of `per_question` for each policy, and write and return its cells, samples x shots.

    `selections` belong to `config.policies`, in the same order. The answers of `baseline/vote` come from its
    demonstrations, not from the LVLM.
    """
    train, queries = storage.read_examples(train_examples), storage.read_examples(eval_examples)
    replies = storage.read_answers(answers)
    rule = config.normalise_references
    subsets = {"n_random_subsets": config.n_random_subsets, "seed": config.seed}
    rows, built = list[PolicyScores](), list[Cell]()
    for policy, path in zip(config.policies, selections, strict=True):
        picked, files = storage.read_selections(path), (str(path), str(answers))
        texts = votes(picked, [example.answer for example in train], config.shots) if str(policy) == VOTE else replies
        scores, keys = score_questions(queries, picked, texts, config.shots, files=files, normalise_references=rule)
        rows.append(PolicyScores(policy=str(policy), questions=tuple(scores)))
        built += build_cells(policy, scores, keys, samples=config.samples, **subsets)
    storage.write_rows(per_question, rows)
    storage.write_rows(cells, built)
    return built
