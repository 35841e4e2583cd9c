"""Sample each query's pool of train examples, and measure the best selections that pools allow."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from lever_pipe.base import storage
from lever_pipe.base.errors import DataError
from lever_pipe.base.plugins import plugin
from lever_pipe.base.records import Example, ExampleId, PolicyScores, Pool
from lever_pipe.base.seeding import generator
from lever_pipe.base.sums import sum_in_order
from lever_pipe.experiment.pools import MeasurePoolsConfig, SamplePoolsConfig
from lever_pipe.experiment.stage_files import Input, Output
from lever_pipe.lever.baselines import holds_exact_demonstration
from lever_pipe.lever.samplers.protocol import Sampler, SamplingView
from lever_pipe.metrics.vqa_accuracy import vqa_accuracy

Arrays = dict[str, NDArray[np.float32]]


def sample_pools(
    *,
    train_examples: Input,
    train_embeddings: Input,
    query_examples: Input,
    query_embeddings: Input,
    pools: Output,
    config: SamplePoolsConfig,
) -> int:
    """Write the pools of the RL queries, or of all evaluation queries; return their number."""
    train, queries = (storage.read_examples(path) for path in (train_examples, query_examples))
    arrays = storage.read_embeddings(train_embeddings, len(train))
    of_queries = storage.read_embeddings(query_embeddings, len(queries))
    if config.split == "train":
        queries = [train[i] for i in rl_queries(len(train), config.n_rl_queries, config.rl_seed)]
    rows = build_pools(queries, of_queries, train, arrays, config)
    storage.write_rows(pools, rows)
    return len(rows)


def rl_queries(n_train: int, n_queries: int, seed: int) -> list[int]:
    """Return the ids of the train examples that serve as RL queries, in ascending order."""
    if n_queries > n_train:
        raise DataError(
            f"rl_data.n_queries: expected at most the {n_train} train examples",
            found=str(n_queries),
            do="Lower rl_data.n_queries, or add train examples.",
        )
    return sorted(generator(seed, "rl queries").permutation(n_train)[:n_queries].tolist())


def build_pools(
    queries: Sequence[Example],
    of_queries: Arrays,
    train: Sequence[Example],
    arrays: Arrays,
    config: SamplePoolsConfig,
) -> list[Pool]:
    """Return one pool per query, without the query itself and, by default, without examples of its image."""
    split = config.split
    sampler: Sampler = plugin("lever/samplers", config.pools.sampler)
    images = np.array([example.image_digest for example in train])  # by content: file names may differ
    everyone = np.arange(len(train))
    pools = []
    for query in queries:
        allowed = np.ones(len(train), dtype=bool)
        if split == "train":
            allowed[query.example_id] = False
        if config.pools.exclude_same_image:
            allowed &= images != query.image_digest
        view = SamplingView(
            eligible=everyone[allowed],
            image_similarity=arrays["image"] @ of_queries["image"][query.example_id],
            question_similarity=arrays["question"] @ of_queries["question"][query.example_id],
        )
        size = config.pools.size
        if len(view.eligible) < size:
            raise DataError(
                f"{split} query {query.example_id} (question {query.question_id}): expected {size} eligible examples",
                found=str(len(view.eligible)),
                do="Lower pools.size, or add train examples.",
            )
        # A stream per query: its pool does not depend on the number or order of the other queries.
        stream = generator(config.pools.seed, "pools", split, query.example_id)
        candidates = sampler.sample(view, size, stream).tolist()
        pools.append(Pool(query_id=query.example_id, candidates=tuple(ExampleId(i) for i in candidates)))
    return pools


def measure_pools(
    *,
    train_examples: Input,
    eval_examples: Input,
    eval_pools: Input,
    per_question: Input,
    bound: Output,
    config: MeasurePoolsConfig,
) -> dict[str, float]:
    """Write and return upper bounds of copying an answer from the pool, in percent.

    `exact_demonstration`: share of queries with a demonstration of the same question type and a correct answer.
    `best_answer`: mean VQA accuracy of the best demonstration answer in the pool. `best_answer_or_zero_shot`: mean of
    the better of this and the zero-shot answer, since some questions need no demonstration.
    """
    train, queries = (storage.read_examples(path) for path in (train_examples, eval_examples))
    scored = {row.policy: row.questions for row in storage.read_rows(per_question, PolicyScores)}
    unaided = {score.query_id: score.accuracy for score in scored["baseline/zero_shot"]}
    pools, rule = storage.read_rows(eval_pools, Pool), config.normalise_references
    shares: dict[str, list[float]] = {"exact_demonstration": [], "best_answer": [], "best_answer_or_zero_shot": []}
    for pool in pools:
        query, candidates = queries[pool.query_id], [train[i] for i in pool.candidates]
        texts = {candidate.answer for candidate in candidates}
        copied = max(vqa_accuracy(answer, query.answers, normalise_references=rule) for answer in texts)
        exact = holds_exact_demonstration(query, candidates, rule)
        for values, value in zip(shares.values(), (exact, copied, max(copied, unaided[pool.query_id])), strict=True):
            values.append(value)
    result = {name: round(100 * sum_in_order(values) / len(pools), 4) for name, values in shares.items()}
    result["queries"] = float(len(pools))
    storage.write_json(bound, result)
    return result
