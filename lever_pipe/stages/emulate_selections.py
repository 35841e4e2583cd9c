"""Rule `emulate_selections`: what all policies of one arm choose, with the arm's faults at evaluation."""

from __future__ import annotations

from lever_pipe.base import storage
from lever_pipe.base.records import Pool
from lever_pipe.experiment import execution
from lever_pipe.experiment.stage_configs import EmulateSelectionsConfig, Runtime
from lever_pipe.experiment.stage_files import Input, Inputs, Outputs
from lever_pipe.lever.emulation import decode_with_repeats, drop_head, first_items
from lever_pipe.lever.selector.decoding import greedy
from lever_pipe.lever.training.choice import choose
from lever_pipe.lever.training.embeddings import architecture_of, read_table
from lever_pipe.lever.training.state import load_selector


def emulate_selections(
    *,
    selectors: Inputs,
    eval_pools: Input,
    train_embeddings: Input,
    eval_embeddings: Input,
    selections: Outputs,
    config: EmulateSelectionsConfig,
    runtime: Runtime = Runtime(),
) -> int:
    """Write the selections of each selector and return how many policies there are.

    Raises:
        CheckpointError: a selector has another architecture.
    """
    device = execution.prepare(runtime)
    train, queries = (
        read_table(path, device, inputs=config.selector.inputs) for path in (train_embeddings, eval_embeddings)
    )
    architecture = architecture_of(config.selector, train)
    pools, decode = storage.read_rows(eval_pools, Pool), greedy
    if config.pool_items is not None:
        pools, decode = first_items(pools, config.pool_items), decode_with_repeats
    for source, target in zip(selectors, selections, strict=True):
        module = load_selector(source, architecture)
        if config.head_seed is not None:
            module = drop_head(module, config.head_seed)
        storage.write_rows(target, choose(module.to(device), train, queries, pools, config.shots, decode=decode))
    return len(selections)
