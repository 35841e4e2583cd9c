"""Rule `select_demonstrations`: the ordered demonstrations that one trained policy gives every query."""

from __future__ import annotations

from lever_pipe.base import storage
from lever_pipe.base.records import Pool
from lever_pipe.experiment import execution
from lever_pipe.experiment.stage_configs import Runtime, SelectDemonstrationsConfig
from lever_pipe.experiment.stage_files import Input, Output
from lever_pipe.lever.training.choice import choose
from lever_pipe.lever.training.embeddings import architecture_of, read_table
from lever_pipe.lever.training.state import load_selector


def select_demonstrations(
    *,
    selector: Input,
    eval_pools: Input,
    embeddings: Input,
    selections: Output,
    config: SelectDemonstrationsConfig,
    runtime: Runtime = Runtime(),
) -> int:
    """Write the greedy selections of all evaluation queries and return how many there are.

    Raises:
        CheckpointError: the selector has another architecture.
    """
    device = execution.prepare(runtime)
    train, queries = (
        read_table(embeddings, split, device, inputs=config.selector.inputs) for split in ("train", "eval")
    )
    module = load_selector(selector, architecture_of(config.selector, train)).to(device)
    pools = storage.read_rows(eval_pools, Pool)
    rows = choose(module, train, queries, pools, config.shots)
    storage.write_rows(selections, rows)
    return len(rows)
