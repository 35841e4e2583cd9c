"""Rule `propose_trajectories`: the ordered selections of every RL query that the LVLM is to answer with."""

from __future__ import annotations

from lever_pipe.base import storage
from lever_pipe.base.records import Pool, Proposal
from lever_pipe.base.seeding import generator
from lever_pipe.experiment.stage_configs import ProposeTrajectoriesConfig
from lever_pipe.experiment.stage_files import Input, Output
from lever_pipe.lever.proposers import propose
from lever_pipe.lever.selector.features import fuse


def propose_trajectories(
    *, train_pools: Input, embeddings: Input, proposals: Output, config: ProposeTrajectoriesConfig
) -> int:
    """Write the proposals of all RL queries and return how many there are."""
    arrays = storage.read_embeddings(embeddings)
    vectors = fuse(arrays["image"], arrays["question"])
    rows: list[Proposal] = []
    for pool in storage.read_rows(train_pools, Pool):
        rows += propose(
            query_id=pool.query_id,
            candidates=pool.candidates,
            similarities=vectors[list(pool.candidates)] @ vectors[pool.query_id],
            options=config,
            generator=generator(config.seed, "proposals", pool.query_id),
        )
    storage.write_rows(proposals, rows)
    return len(rows)
