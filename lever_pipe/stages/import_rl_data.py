"""Rule `import_rl_data`: existing RL data in a file format of the original."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lever_pipe.base import storage
from lever_pipe.base.errors import RecordError
from lever_pipe.base.records import Pool, Proposal, RlGroup
from lever_pipe.experiment.stage_configs import ImportRlDataConfig
from lever_pipe.experiment.stage_files import Input, Output
from lever_pipe.lever.rl_data_formats import PoolRule, import_groups
from lever_pipe.lever.rl_data_io import LEAST, keep_balanced, require_train_examples, summarise


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
    """Write one line a query that is kept, in the file's order, and return how many there are.

    `summary` also counts what the import dropped and filled in. `proposals` and `train_pools` hold the selections
    without their scores, which the LVLM may answer with anew.

    Raises:
        RecordError: a malformed file, pools of another size, too few queries, or queries and positions that are not
            those of these train examples.
    """
    train = storage.read_examples(train_examples)
    rule = PoolRule(config.pool_size, config.pool_seed, config.exclude_same_image)
    groups, report = import_groups(original, config.import_format, train, rule)
    if len(groups) < LEAST:
        raise RecordError(
            f"{original}: expected at least {LEAST} queries with a row that has not failed: some train, some validate",
            found=f"{len(groups)}, and {len(report.empty_queries)} whose rows have all failed",
            do="Name another file as rl_data.import_from, or leave it empty to generate RL data.",
        )
    require_train_examples(groups, train, source=str(original))
    kept, counts = keep_balanced(groups, config.balance, source=str(original))
    storage.write_rows(rl_data, kept)
    storage.write_json(summary, report.as_dict(groups) | counts | summarise(kept))
    storage.write_rows(proposals, _proposals(kept))
    ordered = sorted(kept, key=lambda group: group.query.query_id)
    pools = [Pool(query_id=group.query.query_id, candidates=group.candidate_pool_ids) for group in ordered]
    storage.write_rows(train_pools, pools)
    return len(kept)


def _proposals(groups: Sequence[RlGroup]) -> Iterator[Proposal]:
    for group in groups:
        for trajectory in group.pointer_candidates:
            yield Proposal(**trajectory.model_dump(include=set(Proposal.model_fields)))
