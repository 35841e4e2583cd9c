"""Measure the divergence of trained selectors from their start."""

from __future__ import annotations

from functools import cache

from lever_pipe.base import storage
from lever_pipe.base.policy_names import PolicyName
from lever_pipe.base.records import Pool
from lever_pipe.experiment import execution
from lever_pipe.experiment.collected import MeasureDriftConfig
from lever_pipe.experiment.job_runtime import Runtime
from lever_pipe.experiment.stage_files import Input, Inputs, Output
from lever_pipe.lever.selector.drift import kl_to_base
from lever_pipe.lever.selector.embeddings import read_table
from lever_pipe.lever.selector.network import architecture_of, load_selector
from lever_pipe.report.long_format import write_csv


def measure_drift(
    *,
    selectors: Inputs,
    eval_pools: Input,
    train_embeddings: Input,
    eval_embeddings: Input,
    parameters: Output,
    config: MeasureDriftConfig,
    runtime: Runtime = Runtime(),
) -> None:
    """Write each trained policy's number of parameters and, if it starts from RCE, its KL divergence from that base.

    `selectors` belong to the trained policies of `config.policies`, followed by `config.starts`.
    """
    device, pools = execution.prepare(runtime), storage.read_rows(eval_pools, Pool)
    trained = [name for name in config.policies if not name.startswith("baseline/")]
    paths = dict(zip([*trained, *config.starts], selectors, strict=True))
    # Many policies share a table: read it once for each kind of the selector's inputs.
    tables = cache(lambda path, inputs: read_table(path, device, inputs=inputs))
    rows = []
    for policy in trained:
        name = PolicyName.parse(policy)
        base, kl = str(name.start), None
        if name.base is not None:
            selector = config.selectors[name.preset]
            train, queries = (tables(path, selector.inputs) for path in (train_embeddings, eval_embeddings))
            architecture = architecture_of(selector, train.width)
            module, start = (load_selector(paths[which], architecture).to(device) for which in (policy, base))
            kl = kl_to_base(module, start, train, queries, pools, max(config.shots))
        rows.append((policy, base, sum(array.size for array in storage.read_arrays(paths[policy]).values()), kl))
    write_csv(parameters, ("policy", "base", "n_parameters", "kl_to_base"), rows)
