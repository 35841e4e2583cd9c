"""Create RL data: proposed, scored, merged or imported selections of each RL query, and beams."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lever_pipe.base import storage
from lever_pipe.base.errors import DataError, RecordError
from lever_pipe.base.records import ExampleId, Pool, Proposal, Trajectory
from lever_pipe.base.seeding import generator
from lever_pipe.experiment import execution
from lever_pipe.experiment.beams import Beams, SearchBeamsConfig
from lever_pipe.experiment.job_runtime import Runtime
from lever_pipe.experiment.rl_data import (
    GenerateRlDataConfig,
    ImportRlDataConfig,
    MergeRlDataConfig,
    ProposeTrajectoriesConfig,
)
from lever_pipe.experiment.stage_files import External, Input, Inputs, Output
from lever_pipe.lever import beams as of_beams
from lever_pipe.lever.proposers import diversity_fill, propose
from lever_pipe.lever.rl_data_files import PoolRule, import_groups, require_train_examples
from lever_pipe.lever.selector.embeddings import fuse
from lever_pipe.lever.training.groups import groups_of_beams, save_groups
from lever_pipe.lever.trajectories import LEAST, keep_balanced, make_group, summarise, trajectories_of
from lever_pipe.lvlms.asking.answering import load_lvlm
from lever_pipe.lvlms.asking.prompts import Wording


def propose_trajectories(
    *, train_pools: Input, embeddings: Input, proposals: Output, config: ProposeTrajectoriesConfig
) -> int:
    """Write the proposals of all RL queries; return their number."""
    arrays = storage.read_embeddings(embeddings)
    vectors = fuse(arrays["image"], arrays["question"])
    rows: list[Proposal] = []
    for pool in storage.read_rows(train_pools, Pool):
        similarities = vectors[list(pool.candidates)] @ vectors[pool.query_id]
        rows += propose(pool, similarities, config, generator(config.seed, "proposals", pool.query_id))
    storage.write_rows(proposals, rows)
    return len(rows)


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
    """Write the scored trajectories of the shard's queries; return their number."""
    execution.prepare(runtime)
    train = storage.read_examples(train_examples)
    pools = storage.read_rows(train_pools, Pool)[config.shard :: config.n_shards]
    ids = {pool.query_id for pool in pools}
    shard = [p for p in storage.read_rows(proposals, Proposal) if p.query_id in ids]
    model = load_lvlm(config.lvlm, lvlm, [(train, train_images)], runtime)
    wording = Wording(config.lvlm.prompt)
    rule = config.normalise_references
    rows = trajectories_of(shard, train, model, wording, rule)
    if config.diversity_budget:
        rows += trajectories_of(_fill(rows, pools, config), train, model, wording, rule)
    storage.write_rows(trajectories, rows)
    storage.write_json(counters, model.counters)
    return len(rows)


def _fill(rows: Sequence[Trajectory], pools: Sequence[Pool], config: GenerateRlDataConfig) -> list[Proposal]:
    """Return extra uniform draws for the queries whose trajectories all have the same accuracy."""
    by_query = _by_query(rows)
    extra: list[Proposal] = []
    for pool in pools:
        group = by_query.get(pool.query_id, [])
        if len({row.vqa_acc_score for row in group}) == 1:
            extra += diversity_fill(
                pool,
                [row.pointer for row in group],
                shots=config.shots,
                budget=config.diversity_budget,
                generator=generator(config.seed, "fill", pool.query_id),
            )
    return extra


def _by_query(rows: Iterable[Trajectory]) -> dict[ExampleId, list[Trajectory]]:
    by_query: dict[ExampleId, list[Trajectory]] = {}
    for row in rows:
        by_query.setdefault(row.query_id, []).append(row)
    return by_query


def merge_rl_data(
    *,
    trajectories: Inputs,
    train_pools: Input,
    train_examples: Input,
    rl_data: Output,
    summary: Output,
    config: MergeRlDataConfig,
) -> int:
    """Write one line per selected query, in query-id order; return their number."""
    train = storage.read_examples(train_examples)
    by_query = _by_query(row for path in trajectories for row in storage.read_rows(path, Trajectory))
    pools = storage.read_rows(train_pools, Pool)
    merged = [make_group(train[p.query_id], p, by_query[p.query_id]) for p in pools]
    groups, counts = keep_balanced(merged, config.balance, source="RL data")
    storage.write_rows(rl_data, groups)
    storage.write_json(summary, counts | summarise(groups))
    return len(groups)


def import_rl_data(
    *,
    original: Input,
    train_examples: Input,
    rl_data: Output,
    summary: Output,
    proposals: Output,
    train_pools: Output,
    config: ImportRlDataConfig,
) -> int:
    """Write one line per selected query, in the file's order; return their number.

    `summary` also counts the rows that the import dropped and the values that it filled in. `proposals` and
    `train_pools` contain the selections without scores, so that the LVLM can score them again.
    """
    train = storage.read_examples(train_examples)
    rule = PoolRule(config.pool_size, config.pool_seed, config.exclude_same_image)
    groups, imported = import_groups(original, config.import_format, train, rule)
    if len(groups) < LEAST:
        raise RecordError(
            f"{original}: expected at least {LEAST} queries with a row that has not failed: some train, some validate",
            found=f"{len(groups)}, and {imported['empty_queries']} whose rows have all failed",
            do="Name another file as rl_data.import_from, or leave it empty to generate RL data.",
        )
    require_train_examples(groups, train, source=str(original))
    selected, counts = keep_balanced(groups, config.balance, source=str(original))
    storage.write_rows(rl_data, selected)
    storage.write_json(summary, imported | counts | summarise(selected))
    rows = (row for group in selected for row in group.pointer_candidates)
    storage.write_rows(proposals, (Proposal(**row.model_dump(include=set(Proposal.model_fields))) for row in rows))
    ordered = sorted(selected, key=lambda group: group.query.query_id)  # the order of `sample_pools`
    pools = [Pool(query_id=group.query.query_id, candidates=group.candidate_pool_ids) for group in ordered]
    storage.write_rows(train_pools, pools)
    return len(selected)


def search_beams(
    *,
    train_pools: Input,
    train_examples: Input,
    train_images: External,
    lvlm: External,
    beams: Output,
    groups: Output,
    counters: Output,
    config: SearchBeamsConfig,
    runtime: Runtime = Runtime(),
) -> int:
    """Write the beams of all anchors, as rows and as tensors for training; return the number of anchors.

    Selections of `groups` are in prompt order; their rewards are total probabilities.
    """
    execution.prepare(runtime)
    train = storage.read_examples(train_examples)
    pools = anchors_of(storage.read_rows(train_pools, Pool), config)
    model = load_lvlm(config.lvlm, lvlm, [(train, train_images)], runtime)
    score = of_beams.scorer(train, model, Wording(config.lvlm.prompt), config)
    rows = of_beams.search_beams(pools, score, config)
    storage.write_rows(beams, rows)
    save_groups(groups, groups_of_beams(rows, pools, lambda beam: of_beams.prompt_order(beam, config)))
    storage.write_json(counters, model.counters)
    return len(rows)


def anchors_of(pools: Sequence[Pool], settings: Beams) -> list[Pool]:
    """Return the pools of the anchors, in the order of `pools`."""
    if settings.anchors > len(pools):
        raise DataError(
            f"beams.anchors: expected at most the {len(pools)} RL queries that have a pool",
            found=str(settings.anchors),
            do="Lower beams.anchors, or raise rl_data.n_queries.",
        )
    sampled = generator(settings.seed, "beam anchors").permutation(len(pools))[: settings.anchors]
    return [pools[position] for position in sorted(sampled.tolist())]
