"""Rule `merge_rl_data`: all shards as the RL data of all queries, with a summary."""

from __future__ import annotations

from collections.abc import Set

from lever_pipe.base import storage
from lever_pipe.base.errors import RecordError
from lever_pipe.base.records import ExampleId, Pool, Trajectory
from lever_pipe.experiment.stage_configs import MergeRlDataConfig
from lever_pipe.experiment.stage_files import Input, Inputs, Output
from lever_pipe.lever.rl_data_io import keep_balanced, summarise
from lever_pipe.lever.trajectories import make_group


def merge_rl_data(
    *,
    trajectories: Inputs,
    train_pools: Input,
    train_examples: Input,
    rl_data: Output,
    summary: Output,
    config: MergeRlDataConfig,
) -> int:
    """Write one line a query that is kept, in query-id order, and return how many there are.

    Raises:
        RecordError: a malformed row, a query without trajectories or without a pool, a selection that its query's
            pool does not hold, or too few queries that are balanced.
    """
    train = storage.read_examples(train_examples)
    by_query: dict[ExampleId, list[Trajectory]] = {}
    for path in trajectories:
        for row in storage.read_rows(path, Trajectory):
            by_query.setdefault(row.query_id, []).append(row)
    pools = storage.read_rows(train_pools, Pool)
    _require_same_queries({pool.query_id for pool in pools}, by_query.keys())
    made = [make_group(train[p.query_id], p, by_query[p.query_id]) for p in pools]
    groups, counts = keep_balanced(made, config.balance, source="RL data")
    storage.write_rows(rl_data, groups)
    storage.write_json(summary, counts | summarise(groups))
    return len(groups)


def _require_same_queries(pooled: Set[ExampleId], scored: Set[ExampleId]) -> None:
    if pooled != scored:
        raise RecordError(
            "RL data: expected trajectories for exactly the queries that have a pool",
            found=f"no trajectory for {sorted(pooled - scored)[:5]}, no pool for {sorted(scored - pooled)[:5]}",
            do="Rebuild the shards from these pools.",
        )
