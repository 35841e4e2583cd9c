"""Rule `measure_pools`: what the evaluation pools hold, which bounds every policy and the oracle."""

from __future__ import annotations

import time
from pathlib import Path

from lever_pipe import storage
from lever_pipe.baselines import holds_exact_demonstration
from lever_pipe.metrics.vqa_accuracy import vqa_accuracy
from lever_pipe.records import Example, Pool
from lever_pipe.run_card import write_card
from lever_pipe.stage_configs import MeasurePoolsConfig, Runtime


def measure_pools(
    *,
    train_examples: Path,
    eval_examples: Path,
    eval_pools: Path,
    bound: Path,
    card: Path,
    config: MeasurePoolsConfig,
    runtime: Runtime = Runtime(),
) -> dict[str, float]:
    """Write and return, in percent of the queries, how often the pool holds what an answer could be copied from.

    `exact_demonstration`: a demonstration of the query's question type with a right answer. `best_answer`: the mean
    VQA accuracy of the best demonstration answer in the pool, a ceiling on copying.
    """
    started = time.perf_counter()
    train, queries = (storage.read_rows(path, Example) for path in (train_examples, eval_examples))
    exact, best = [], []
    for pool in storage.read_rows(eval_pools, Pool):
        query, candidates = queries[pool.query_id], [train[i] for i in pool.candidates]
        exact.append(holds_exact_demonstration(query, candidates))
        best.append(max(vqa_accuracy(answer, query.answers) for answer in {c.answer for c in candidates}))
    result = {
        "queries": float(len(exact)),
        "exact_demonstration": round(100 * sum(exact) / len(exact), 4),
        "best_answer": round(100 * sum(best) / len(best), 4),
    }
    storage.write_json(bound, result)
    inputs = {"train_examples": train_examples, "eval_examples": eval_examples, "eval_pools": eval_pools}
    write_card(card, stage="measure_pools", config=config, inputs=inputs, started=started, runtime=runtime)
    return result
