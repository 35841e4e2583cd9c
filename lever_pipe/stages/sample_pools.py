"""Rule `sample_pools`: the K train examples that every RL query, or every evaluation query, may choose from."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from lever_pipe.base import storage
from lever_pipe.base.errors import DataError, PoolError
from lever_pipe.base.members import member
from lever_pipe.base.records import Example, ExampleId, Pool
from lever_pipe.base.seeding import generator
from lever_pipe.experiment.stage_configs import SamplePoolsConfig
from lever_pipe.experiment.stage_files import Input, Output
from lever_pipe.lever.samplers.protocol import Sampler, SamplingView

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
    """Write the pools of the RL queries, or of all evaluation queries; return how many there are.

    Raises:
        DataError: more RL queries wanted than train examples exist.
        PoolError: a query has fewer than K eligible examples.
    """
    train, queries = (storage.read_examples(path) for path in (train_examples, query_examples))
    arrays = storage.read_embeddings(train_embeddings, len(train))
    of_queries = storage.read_embeddings(query_embeddings, len(queries))
    if config.split == "train":
        queries = [train[i] for i in rl_queries(len(train), config.n_rl_queries, config.rl_seed)]
    rows = build_pools(queries, of_queries, train, arrays, config)
    storage.write_rows(pools, rows)
    return len(rows)


def rl_queries(n_train: int, n_queries: int, seed: int) -> list[int]:
    """Return the train examples that serve as RL queries, rising.

    Raises:
        DataError: there are not enough.
    """
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
    """Return one pool a query: never the query itself and, by default, nothing that shows its image."""
    split = config.split
    sampler: Sampler = member("lever/samplers", config.pools.sampler)
    images = np.array([example.image_digest for example in train])
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
            raise PoolError(
                f"{split} query {query.example_id} (question {query.question_id}): expected {size} eligible examples",
                found=str(len(view.eligible)),
                do="Lower pools.size, or add train examples.",
            )
        stream = generator(config.pools.seed, "pools", split, query.example_id)
        members = sampler.sample(view, size, stream).tolist()
        pools.append(Pool(query_id=query.example_id, candidates=tuple(ExampleId(i) for i in members)))
    return pools
