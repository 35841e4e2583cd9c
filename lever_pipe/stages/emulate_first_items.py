"""Rule `emulate_first_items`: what one selector of the grid chooses where every query is offered the same items."""

from __future__ import annotations

from lever_pipe.base import storage
from lever_pipe.base.records import Pool
from lever_pipe.experiment import execution
from lever_pipe.experiment.stage_configs import EmulateFirstItemsConfig, Runtime
from lever_pipe.experiment.stage_files import Input, Output
from lever_pipe.lever.emulation import decode_with_repeats, first_items
from lever_pipe.lever.training.choice import choose
from lever_pipe.lever.training.embeddings import architecture_of, read_table
from lever_pipe.lever.training.state import load_selector


def emulate_first_items(
    *,
    selector: Input,
    eval_pools: Input,
    train_embeddings: Input,
    eval_embeddings: Input,
    selections: Output,
    config: EmulateFirstItemsConfig,
    runtime: Runtime = Runtime(),
) -> int:
    """Write the greedy selections out of the first train items and return how many there are.

    Raises:
        CheckpointError: the selector has another architecture.
    """
    device, inputs = execution.prepare(runtime), config.selector.inputs
    train, queries = (read_table(path, device, inputs=inputs) for path in (train_embeddings, eval_embeddings))
    module = load_selector(selector, architecture_of(config.selector, train)).to(device)
    pools = first_items(storage.read_rows(eval_pools, Pool), config.items)
    rows = choose(module, train, queries, pools, config.shots, decode=decode_with_repeats)
    storage.write_rows(selections, rows)
    return len(rows)
