"""Rule `import_rl_data`: existing RL data in the original `rl_data_k64_v3.json` format."""

from __future__ import annotations

from lever_pipe.base import storage
from lever_pipe.base.errors import RecordError
from lever_pipe.experiment.stage_configs import ImportRlDataConfig
from lever_pipe.experiment.stage_files import Input, Output
from lever_pipe.lever.rl_data_io import (
    LEAST,
    import_original,
    keep_balanced,
    require_train_examples,
    summarise,
)


def import_rl_data(
    *, original: Input, train_examples: Input, rl_data: Output, summary: Output, config: ImportRlDataConfig
) -> int:
    """Write one line a query that is kept, in the file's order, and return how many there are.

    `summary` also counts what the import dropped and filled in.

    Raises:
        RecordError: a malformed file, pools of another size, too few queries, or queries and positions that are not
            those of these train examples.
    """
    groups, report = import_original(original, pool_size=config.pool_size)
    if len(groups) < LEAST:
        raise RecordError(
            f"{original}: expected at least {LEAST} queries with a row that has not failed: some train, some validate",
            found=f"{len(groups)}, and {len(report.empty_queries)} whose rows have all failed",
            do="Name another file as rl_data.import_from, or leave it empty to generate RL data.",
        )
    require_train_examples(groups, storage.read_examples(train_examples), source=str(original))
    kept, counts = keep_balanced(groups, config.balance, source=str(original))
    storage.write_rows(rl_data, kept)
    storage.write_json(summary, report.as_dict(groups) | counts | summarise(kept))
    return len(kept)
