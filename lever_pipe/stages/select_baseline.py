"""Rule `select_baseline`: the ordered demonstrations that one untrained policy gives every query."""

from __future__ import annotations

import time
from pathlib import Path

from lever_pipe.base import storage
from lever_pipe.base.records import Pool, Selection
from lever_pipe.base.seeding import generator
from lever_pipe.experiment.run_card import write_card
from lever_pipe.experiment.stage_configs import Runtime, SelectBaselineConfig
from lever_pipe.lever import baselines


def select_baseline(
    *,
    train_examples: Path,
    eval_examples: Path,
    eval_pools: Path,
    embeddings: Path,
    selections: Path,
    card: Path,
    config: SelectBaselineConfig,
    runtime: Runtime = Runtime(),
) -> int:
    """Write the selections of all evaluation queries and return how many there are; zero-shot selects nothing.

    Raises:
        UnknownMemberError: no such baseline.
    """
    started = time.perf_counter()
    train, queries = (storage.read_examples(path) for path in (train_examples, eval_examples))
    arrays = storage.read_embeddings(embeddings)
    rows = []
    for pool in storage.read_rows(eval_pools, Pool):
        query, candidates = queries[pool.query_id], [train[i] for i in pool.candidates]
        similarities = baselines.pool_similarities(pool, arrays, split="eval")
        if config.baseline == "zero_shot":
            ranked = []
        elif config.baseline == "oracle":
            ranked = baselines.rank_by_annotations(query, candidates, similarities).tolist()
        elif config.baseline.startswith("random-"):
            stream = generator(config.seed, config.baseline, pool.query_id)
            ranked = baselines.rank_by_chance(len(candidates), stream).tolist()
        else:
            ranked = baselines.rank_by_similarity(config.baseline, similarities).tolist()
        chosen = tuple(pool.candidates[position] for position in ranked[: config.shots])
        rows.append(Selection(query_id=pool.query_id, demonstrations=chosen))
    storage.write_rows(selections, rows)
    inputs = {
        "train_examples": train_examples,
        "eval_examples": eval_examples,
        "eval_pools": eval_pools,
        "embeddings": embeddings,
    }
    write_card(card, stage="select_baseline", config=config, inputs=inputs, started=started, runtime=runtime)
    return len(rows)
