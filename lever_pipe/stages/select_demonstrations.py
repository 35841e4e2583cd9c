"""Rule `select_demonstrations`: the ordered demonstrations that one trained policy gives every query."""

from __future__ import annotations

import time
from pathlib import Path

from lever_pipe.base import storage
from lever_pipe.base.records import Pool
from lever_pipe.experiment import execution
from lever_pipe.experiment.run_card import write_card
from lever_pipe.experiment.stage_configs import Runtime, SelectDemonstrationsConfig
from lever_pipe.lever.training.choice import choose
from lever_pipe.lever.training.embeddings import architecture_of, read_table
from lever_pipe.lever.training.state import load_selector


def select_demonstrations(
    *,
    selector: Path,
    eval_pools: Path,
    embeddings: Path,
    selections: Path,
    card: Path,
    config: SelectDemonstrationsConfig,
    runtime: Runtime = Runtime(),
) -> int:
    """Write the greedy selections of all evaluation queries and return how many there are.

    Raises:
        CheckpointError: the selector has another architecture.
    """
    started = time.perf_counter()
    device = execution.prepare(runtime)
    train, queries = (
        read_table(embeddings, split, device, inputs=config.selector.inputs) for split in ("train", "eval")
    )
    module = load_selector(selector, architecture_of(config.selector, train)).to(device)
    pools = storage.read_rows(eval_pools, Pool)
    rows = choose(module, train, queries, pools, config.shots)
    storage.write_rows(selections, rows)
    inputs = {"selector": selector, "eval_pools": eval_pools, "embeddings": embeddings}
    write_card(card, stage="select_demonstrations", config=config, inputs=inputs, started=started, runtime=runtime)
    return len(rows)
