"""Rule `select_demonstrations`: the ordered demonstrations that one trained policy gives every query."""

from __future__ import annotations

from lever_pipe.base import storage
from lever_pipe.base.members import member
from lever_pipe.base.records import Pool
from lever_pipe.experiment import execution
from lever_pipe.experiment.config import TRAIN_IDS
from lever_pipe.experiment.stage_configs import Runtime, SelectDemonstrationsConfig
from lever_pipe.experiment.stage_files import Input, Output
from lever_pipe.lever.training.choice import choose
from lever_pipe.lever.training.embeddings import architecture_of, read_table
from lever_pipe.lever.training.state import load_selector


def select_demonstrations(
    *,
    selector: Input,
    eval_pools: Input,
    train_embeddings: Input,
    eval_embeddings: Input,
    selections: Output,
    config: SelectDemonstrationsConfig,
    runtime: Runtime = Runtime(),
) -> int:
    """Write the greedy selections of all evaluation queries and return how many there are.

    Raises:
        CheckpointError: the selector has another architecture.
        ConfigError: a language model over train ids has another width than the embeddings.
    """
    device = execution.prepare(runtime)
    ids = member("lever/networks", TRAIN_IDS) if config.selector.network == TRAIN_IDS else None
    inputs = config.selector.inputs if ids is None else ids.INPUTS
    train, queries = (read_table(path, device, inputs=inputs) for path in (train_embeddings, eval_embeddings))
    pools = storage.read_rows(eval_pools, Pool)
    if ids is not None:
        model = ids.load_train_ids(selector, ids.ids_architecture(config.selector, train)).to(device)
        of_pool = config.selector.candidates == "pool"
        rows = ids.choose_ids(model, train, queries, pools, config.shots, of_pool=of_pool)
    else:
        module = load_selector(selector, architecture_of(config.selector, train)).to(device)
        rows = choose(module, train, queries, pools, config.shots)
    storage.write_rows(selections, rows)
    return len(rows)
