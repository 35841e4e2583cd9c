"""Rule `select_baseline`: the ordered demonstrations that one untrained policy gives every query."""

from __future__ import annotations

from collections.abc import Sequence

from lever_pipe.base import storage
from lever_pipe.base.records import ExampleId, Pool, Selection
from lever_pipe.base.seeding import generator
from lever_pipe.experiment.stage_configs import SelectBaselineConfig
from lever_pipe.experiment.stage_files import Input, Output
from lever_pipe.lever import baselines


def select_baseline(
    *,
    train_examples: Input,
    eval_examples: Input,
    eval_pools: Input,
    train_embeddings: Input,
    eval_embeddings: Input,
    selections: Output,
    config: SelectBaselineConfig,
) -> int:
    """Write the selections of all evaluation queries and return how many there are; zero-shot selects nothing.

    `random_all` draws out of all train examples that show another image, every other baseline out of the pool.

    Raises:
        UnknownMemberError: no such baseline.
    """
    train, queries = (storage.read_examples(path) for path in (train_examples, eval_examples))
    vectors = [storage.read_embeddings(path) for path in (train_embeddings, eval_embeddings)]
    rows = []
    for pool in storage.read_rows(eval_pools, Pool):
        query, candidates = queries[pool.query_id], [train[i] for i in pool.candidates]
        offered: Sequence[ExampleId] = pool.candidates
        similarities = baselines.pool_similarities(pool, *vectors)
        if config.baseline == "zero_shot":
            ranked = []
        elif config.baseline == "oracle":
            ranked = baselines.rank_by_annotations(query, candidates, similarities).tolist()
        elif config.baseline.startswith("random-"):
            stream = generator(config.seed, config.baseline, pool.query_id)
            ranked = baselines.rank_by_chance(len(candidates), stream).tolist()
        elif config.baseline.startswith("random_all-"):
            stream = generator(config.seed, config.baseline, pool.query_id)
            offered = [one.example_id for one in train if one.image_digest != query.image_digest]
            ranked = baselines.rank_by_chance(len(offered), stream).tolist()
        else:
            ranked = baselines.rank_by_similarity(config.baseline, similarities).tolist()
        chosen = tuple(offered[position] for position in ranked[: config.shots])
        rows.append(Selection(query_id=pool.query_id, demonstrations=chosen))
    storage.write_rows(selections, rows)
    return len(rows)
