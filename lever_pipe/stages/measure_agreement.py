"""Rule `measure_agreement`: do the policies choose the same demonstrations, and how far are they from their bases?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import combinations
from pathlib import Path

import numpy as np

from lever_pipe.base import storage
from lever_pipe.base.policy_names import PolicyName, group_of
from lever_pipe.base.records import Example, ExampleId, Pool
from lever_pipe.experiment import execution
from lever_pipe.experiment.stage_configs import MeasureAgreementConfig, Runtime
from lever_pipe.experiment.stage_files import Input, Inputs, Output
from lever_pipe.lever.selector.decoding import kl_to_base
from lever_pipe.lever.selector.embeddings import architecture_of, read_table
from lever_pipe.lever.selector.network import load_selector
from lever_pipe.metrics.agreement import (
    ParameterDifference,
    agreement_matrices,
    padded_selections,
    parameter_differences,
)
from lever_pipe.report.long_format import write_csv

AGREEMENT_COLUMNS = ("left", "right", "shots", "as_sequence", "as_set", "at_position")
"""Shares of queries in [0, 1] at one number of shots; `at_position` is that of the last of them."""
PROMPTS_COLUMNS = ("policy", "shots", "n_queries", "n_distinct_prompts")
"""Prompts with the same image, question and demonstrations count once."""
Line = tuple[object, ...]
Chosen = Mapping[ExampleId, tuple[ExampleId, ...]]
"""The demonstrations of each query."""
Differences = Mapping[str, ParameterDifference]
"""By tensor."""
SIZES = ("n_parameters", "share_differing", "norm", "relative_norm")


def measure_agreement(
    *,
    selections: Inputs,
    selectors: Inputs,
    eval_examples: Input,
    eval_pools: Input,
    train_embeddings: Input,
    eval_embeddings: Input,
    agreement: Output,
    parameters: Output,
    tensors: Output,
    prompts: Output,
    config: MeasureAgreementConfig,
    runtime: Runtime = Runtime(),
) -> None:
    """Write the shares of queries with equal demonstrations, the differing parameters, and the distinct prompts.

    `selections` belong to `config.policies`; `selectors` to the trained ones among them and then to `config.starts`.
    Of a policy that starts from RCE `parameters` has its divergence from there too (`kl_to_base`).
    """
    queries = storage.read_examples(eval_examples)
    chosen = {name: storage.read_selections(path) for name, path in zip(config.policies, selections, strict=True)}
    trained = [name for name in config.policies if not name.startswith("baseline/")]
    paths = dict(zip([*trained, *config.starts], selectors, strict=True))
    compared = list(_compare_parameters(trained, paths))
    vectors = {"train": train_embeddings, "eval": eval_embeddings}
    kl = _divergences(trained, paths, eval_pools, vectors, config, runtime)
    write_csv(agreement, AGREEMENT_COLUMNS, _compare_selections(chosen, config.shots))
    write_csv(prompts, PROMPTS_COLUMNS, _count_prompts(chosen, queries, config.shots))
    whole = ParameterDifference(0, 0, 0.0, 0.0)
    totals = ((name, base, *_sizes(sum(found.values(), start=whole)), kl.get(name)) for name, base, found in compared)
    write_csv(parameters, ("policy", "base", *SIZES, "kl_to_base"), totals)
    each = ((policy, base, name, *_sizes(of)) for policy, base, found in compared for name, of in found.items())
    write_csv(tensors, ("policy", "base", "tensor", *SIZES), each)


def _compare_selections(chosen: Mapping[str, Chosen], shots: Sequence[int]) -> Iterator[Line]:
    """Yield every pair that a reader asks for; a policy that selects nothing agrees with no other."""
    most = max(shots)
    names = [name for name, of in chosen.items() if any(of.values())]
    if len(names) < 2:
        return
    queries = sorted(chosen[names[0]])
    ids_PNS = np.stack([padded_selections([chosen[name][query] for query in queries], most) for name in names])
    pairs = _pairs_of(names)
    for k in shots:
        found = agreement_matrices(ids_PNS, k)
        for i, j in pairs:
            shares = (found.as_sequence[i, j], found.as_set[i, j], found.at_position[i, j])
            yield names[i], names[j], k, *map(float, shares)


def _pairs_of(policies: Sequence[str]) -> list[tuple[int, int]]:
    """Return the positions of all pairs within one preset and seed, with a baseline, or of the seeds of one policy."""
    names = list(map(PolicyName.parse, policies))
    runs = [name.batch if name.preset else "" for name in names]
    groups = [group_of(name) for name in policies]
    return [
        (i, j)
        for i, j in combinations(range(len(policies)), 2)
        if "" in (runs[i], runs[j]) or runs[i] == runs[j] or groups[i] == groups[j]
    ]


def _compare_parameters(trained: Sequence[str], paths: Mapping[str, Path]) -> Iterator[tuple[str, str, Differences]]:
    for policy in trained:
        base = str(PolicyName.parse(policy).start)
        values, start = (storage.read_arrays(paths[name]) for name in (policy, base))
        yield policy, base, parameter_differences(values, start)


def _divergences(
    trained: Sequence[str],
    paths: Mapping[str, Path],
    eval_pools: Path,
    embeddings: Mapping[str, Path],
    config: MeasureAgreementConfig,
    runtime: Runtime,
) -> dict[str, float]:
    """Return `kl_to_base` of each policy that starts from RCE."""
    device, pools = execution.prepare(runtime), storage.read_rows(eval_pools, Pool)
    tables = cache(lambda split, inputs: read_table(embeddings[split], device, inputs=inputs))
    found = {}
    for policy in trained:
        name = PolicyName.parse(policy)
        if name.base is None:
            continue
        selector = config.selectors[name.preset]
        train, queries = (tables(split, selector.inputs) for split in embeddings)
        architecture = architecture_of(selector, train)
        module, base = (load_selector(paths[each], architecture).to(device) for each in (policy, str(name.start)))
        found[policy] = kl_to_base(module, base, train, queries, pools, max(config.shots))
    return found


def _count_prompts(chosen: Mapping[str, Chosen], queries: Sequence[Example], shots: Sequence[int]) -> Iterator[Line]:
    """Yield how many prompts differ; queries that ask the same question about the same image share theirs."""
    asked = {query.example_id: (query.image_digest, query.question) for query in queries}
    for name, of in chosen.items():
        for k in shots:
            keys = {(*asked[query], demonstrations[:k]) for query, demonstrations in of.items()}
            yield name, k, len(queries), len(keys)


def _sizes(difference: ParameterDifference) -> Line:
    return tuple(getattr(difference, name) for name in SIZES)
