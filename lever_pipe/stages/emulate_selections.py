"""Rule `emulate_selections`: what all policies of one arm choose, with the arm's faults at evaluation."""

from __future__ import annotations

import time
from pathlib import Path

from lever_pipe import execution, storage
from lever_pipe.emulation.head import drop_head
from lever_pipe.emulation.pool import first_items, greedy_with_repeats
from lever_pipe.records import Pool
from lever_pipe.run_card import Inputs, write_card
from lever_pipe.selector.network import rank_pool
from lever_pipe.stage_configs import EmulateSelectionsConfig, Runtime
from lever_pipe.training.choice import choose
from lever_pipe.training.embeddings import architecture_of, read_table
from lever_pipe.training.state import load_selector


def emulate_selections(
    *,
    selectors: tuple[Path, ...],
    eval_pools: Path,
    embeddings: Path,
    selections: tuple[Path, ...],
    card: Path,
    config: EmulateSelectionsConfig,
    runtime: Runtime = Runtime(),
) -> int:
    """Write the selections of each selector and return how many policies there are.

    Raises:
        CheckpointError: a selector has another architecture.
    """
    started = time.perf_counter()
    device = execution.prepare(runtime)
    train, queries = read_table(embeddings, "train", device), read_table(embeddings, "eval", device)
    architecture = architecture_of(config.selector, train)
    pools, decode = storage.read_rows(eval_pools, Pool), rank_pool
    if config.pool_items is not None:
        pools, decode = first_items(pools, config.pool_items), greedy_with_repeats
    for source, target in zip(selectors, selections, strict=True):
        module = load_selector(source, architecture)
        if config.head_seed is not None:
            module = drop_head(module, config.head_seed)
        storage.write_rows(target, choose(module.to(device), train, queries, pools, config.shots, decode=decode))
    inputs: Inputs = {"selectors": selectors, "eval_pools": eval_pools, "embeddings": embeddings}
    write_card(card, stage="emulate_selections", config=config, inputs=inputs, started=started, runtime=runtime)
    return len(selections)
