"""Rule `generate_rl_data`: the LVLM's answers to one shard of the proposed selections."""

from __future__ import annotations

from collections.abc import Sequence

from lever_pipe.base import storage
from lever_pipe.base.records import ExampleId, Pool, Proposal, Trajectory
from lever_pipe.base.seeding import generator
from lever_pipe.experiment import execution
from lever_pipe.experiment.stage_configs import GenerateRlDataConfig, Runtime
from lever_pipe.experiment.stage_files import External, Input, Output
from lever_pipe.lever.proposers import diversity_fill
from lever_pipe.lever.trajectories import trajectories_of
from lever_pipe.lvlms.asking.answering import load_lvlm
from lever_pipe.lvlms.asking.prompts import Prompter, Wording


def generate_rl_data(
    *,
    proposals: Input,
    train_pools: Input,
    train_examples: Input,
    train_images: External,
    lvlm: External,
    trajectories: Output,
    counters: Output,
    config: GenerateRlDataConfig,
    runtime: Runtime = Runtime(),
) -> int:
    """Write the scored trajectories of the shard's queries and return how many there are.

    Raises:
        CheckpointError: the model folder is missing or incomplete.
        ImageError: an image cannot be read.
    """
    execution.prepare(runtime)
    train = storage.read_examples(train_examples)
    pools = storage.read_rows(train_pools, Pool)[config.shard :: config.n_shards]
    mine = {pool.query_id for pool in pools}
    wanted = [p for p in storage.read_rows(proposals, Proposal) if p.query_id in mine]
    model = load_lvlm(config.lvlm, lvlm, [(train, train_images)], runtime)
    prompter = Prompter(Wording(config.lvlm.prompt), train)
    rows = trajectories_of(wanted, train, model, prompter)
    if config.diversity_budget:
        rows += trajectories_of(_fill(rows, pools, config), train, model, prompter)
    if not model.leads:
        return len(rows)
    storage.write_rows(trajectories, rows)
    storage.write_json(counters, model.counters)
    return len(rows)


def _fill(rows: Sequence[Trajectory], pools: Sequence[Pool], config: GenerateRlDataConfig) -> list[Proposal]:
    """Return extra uniform draws for the queries whose trajectories all have one accuracy."""
    by_query: dict[ExampleId, list[Trajectory]] = {}
    for row in rows:
        by_query.setdefault(row.query_id, []).append(row)
    extra: list[Proposal] = []
    for pool in pools:
        group = by_query.get(pool.query_id, [])
        if len({row.vqa_acc_score for row in group}) == 1:
            extra += diversity_fill(
                query_id=pool.query_id,
                candidates=pool.candidates,
                present=[row.pointer for row in group],
                shots=config.shots,
                budget=config.diversity_budget,
                generator=generator(config.seed, "fill", pool.query_id),
            )
    return extra
