"""Rule `measure_pools`: what the evaluation pools hold, and so what there is to be selected."""

from __future__ import annotations

from lever_pipe.base import storage
from lever_pipe.base.records import Pool, QuestionScore
from lever_pipe.experiment.stage_configs import InputsAlone
from lever_pipe.experiment.stage_files import Input, Output
from lever_pipe.lever.baselines import holds_exact_demonstration
from lever_pipe.metrics.vqa_accuracy import vqa_accuracy


def measure_pools(
    *,
    train_examples: Input,
    eval_examples: Input,
    eval_pools: Input,
    zero_shot: Input,
    bound: Output,
    config: InputsAlone,  # noqa: ARG001 - what it measures says all
) -> dict[str, float]:
    """Write and return, in percent of the queries, how often the pool holds what an answer could be copied from.

    `exact_demonstration`: a demonstration of the query's question type with a right answer. `best_answer`: mean VQA
    accuracy of the best demonstration answer in the pool. `best_answer_or_zero_shot`: of each query the better of that
    and of the answer without demonstrations, since some questions need none.
    """
    train, queries = (storage.read_examples(path) for path in (train_examples, eval_examples))
    alone = {score.query_id: score.accuracy for score in storage.read_rows(zero_shot, QuestionScore)}
    pools = storage.read_rows(eval_pools, Pool)
    exact: list[float] = []
    best: list[float] = []
    either: list[float] = []
    for pool in pools:
        query, candidates = queries[pool.query_id], [train[i] for i in pool.candidates]
        copied = max(vqa_accuracy(answer, query.answers) for answer in {c.answer for c in candidates})
        exact.append(holds_exact_demonstration(query, candidates))
        best.append(copied)
        either.append(max(copied, alone[pool.query_id]))
    shares = {"exact_demonstration": exact, "best_answer": best, "best_answer_or_zero_shot": either}
    result = {name: round(100 * sum(values) / len(pools), 4) for name, values in shares.items()}
    result["queries"] = float(len(pools))
    storage.write_json(bound, result)
    return result
