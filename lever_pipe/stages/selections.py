"""Select the ordered demonstrations of every query, by a trained selector, a baseline or a user's policy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import numpy as np

from lever_pipe.base import storage
from lever_pipe.base.errors import RecordError
from lever_pipe.base.plugins import plugin
from lever_pipe.base.records import Example, ExampleId, Pool, Selection
from lever_pipe.base.seeding import generator
from lever_pipe.experiment import execution
from lever_pipe.experiment.job_runtime import Runtime
from lever_pipe.experiment.selections import SelectBaselineConfig, SelectDemonstrationsConfig, SelectOwnConfig
from lever_pipe.experiment.stage_files import Input, Inputs, Output
from lever_pipe.lever import baselines
from lever_pipe.lever.policies import Choice, PolicyPlugin
from lever_pipe.lever.selector.decoding import choose
from lever_pipe.lever.selector.embeddings import read_table
from lever_pipe.lever.selector.network import architecture_of, load_selector

DIVERSE = {"mmr": baselines.rank_by_mmr, "dpp": baselines.rank_by_dpp}
HEAD = ["policy", "question_id", "demonstrations"]


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
    """Write the greedy selections of all evaluation queries; return their number."""
    device = execution.prepare(runtime)
    paths = train_embeddings, eval_embeddings
    train, queries = (read_table(path, device, inputs=config.selector.inputs) for path in paths)
    module = load_selector(selector, architecture_of(config.selector, train.width)).to(device)
    rows = choose(module, train, queries, storage.read_rows(eval_pools, Pool), config.shots)
    storage.write_rows(selections, rows)
    return len(rows)


def select_baseline(
    *,
    train_examples: Input,
    eval_examples: Input,
    eval_pools: Input,
    train_embeddings: Input,
    eval_embeddings: Input,
    selections: Output,
    config: SelectBaselineConfig,
) -> int:
    """Write the selections of all evaluation queries, empty ones for zero-shot; return their number.

    `random_all` draws from all train examples with another image, every other baseline from the pool.
    """
    train, queries = (storage.read_examples(path) for path in (train_examples, eval_examples))
    vectors = [storage.read_embeddings(path) for path in (train_embeddings, eval_embeddings)]
    by_words = baselines.bm25_over([e.question for e in train]) if config.baseline == "bm25" else None
    rows = []
    for pool in storage.read_rows(eval_pools, Pool):
        query, candidates = queries[pool.query_id], [train[i] for i in pool.candidates]
        offered: Sequence[ExampleId] = pool.candidates
        similarities = baselines.pool_similarities(pool, *vectors)
        if config.baseline == "zero_shot":
            ranked = []
        elif config.baseline == "oracle":
            rule = config.normalise_references
            ranked = baselines.rank_by_annotations(query, candidates, similarities, rule).tolist()
        elif config.baseline.startswith("random-"):
            stream = generator(config.seed, config.baseline, pool.query_id)
            ranked = stream.permutation(len(candidates)).tolist()
        elif config.baseline.startswith("random_all-"):
            stream = generator(config.seed, config.baseline, pool.query_id)
            offered = [e.example_id for e in train if e.image_digest != query.image_digest]
            ranked = stream.permutation(len(offered)).tolist()
        elif by_words is not None:
            scores = by_words(query.question)[list(pool.candidates)]
            ranked = np.argsort(-scores, kind="stable").tolist()  # stable: ties in the pool's order
        elif config.baseline in DIVERSE:
            parts = {part: array[list(pool.candidates)] for part, array in vectors[0].items()}
            weighed = baselines.relevance_and_likeness(similarities, parts)
            ranked = DIVERSE[config.baseline](*weighed, min(config.shots, len(candidates)))
        else:
            ranked = baselines.rank_by_similarity(config.baseline, similarities).tolist()
        demonstrations = tuple(offered[position] for position in ranked[: config.shots])
        rows.append(Selection(query_id=pool.query_id, demonstrations=demonstrations))
    storage.write_rows(selections, rows)
    return len(rows)


def select_own(
    *,
    train_examples: Input,
    eval_examples: Input,
    eval_pools: Input,
    train_embeddings: Input,
    eval_embeddings: Input,
    own_selections: Inputs,
    selections: Output,
    config: SelectOwnConfig,
) -> int:
    """Write the selections of all evaluation queries; return their number.

    `own_selections` is the user's file, or empty if `config.module` selects from each query's pool. The file may name
    any train example, because its author had access to all of them.
    """
    train, queries = (storage.read_examples(path) for path in (train_examples, eval_examples))
    if own_selections:
        selected = read_selections(own_selections[0], config.own, train=train, queries=queries, shots=config.shots)
        rows = [Selection(query_id=query.example_id, demonstrations=selected[query.example_id]) for query in queries]
    else:
        policy: PolicyPlugin = plugin("lever/policies", config.module)
        vectors = (
            storage.read_embeddings(train_embeddings, len(train)),
            storage.read_embeddings(eval_embeddings, len(queries)),
        )
        rows = []
        for pool in storage.read_rows(eval_pools, Pool):
            similar = baselines.pool_similarities(pool, *vectors)
            examples, offered = [train[i] for i in pool.candidates], list(pool.candidates)
            offered_vectors = (vectors[0][part][offered] for part in ("image", "question"))
            choice = Choice(queries[pool.query_id], examples, similar["image"], similar["question"], *offered_vectors)
            rows.append(_selection(pool, policy.select(choice, config.shots), config))
    storage.write_rows(selections, rows)
    return len(rows)


def _selection(pool: Pool, positions: Sequence[int], config: SelectOwnConfig) -> Selection:
    chosen = [int(position) for position in positions][: config.shots]
    size = len(pool.candidates)
    if len(set(chosen)) < config.shots or not all(0 <= position < size for position in chosen):
        raise RecordError(
            f"policy {config.own}, query {pool.query_id}: expected {config.shots} distinct positions in 0..{size - 1}",
            found=str(chosen),
            do=f"Fix `select` of lever/policies/{config.module}.py.",
        )
    return Selection(query_id=pool.query_id, demonstrations=tuple(pool.candidates[position] for position in chosen))


def read_selections(
    path: Path, policy: str, *, train: Sequence[Example], queries: Sequence[Example], shots: int
) -> Mapping[ExampleId, tuple[ExampleId, ...]]:
    """Return the first `shots` demonstrations of every query, from a policy's lines in a file."""
    ids = {example.question_id: example.example_id for example in train}
    evaluated = {example.question_id: example.example_id for example in queries}
    selected: dict[ExampleId, tuple[ExampleId, ...]] = {}
    for location, cells in _lines(path):
        if cells[0] != policy:
            continue
        question, listed = _number(cells[1], location), [_number(cell, location) for cell in cells[2].split()]
        foreign = [number for number in listed if number not in ids]
        if question not in evaluated:
            _refuse(location, "a question of the evaluation split", f"question_id {question}")
        elif evaluated[question] in selected:
            _refuse(location, "each question once", f"question_id {question} again")
        elif foreign:
            _refuse(location, "question ids of train examples as demonstrations", str(foreign))
        elif len(set(listed)) != len(listed):
            _refuse(location, "distinct demonstrations", str(listed))
        elif len(listed) < shots:
            _refuse(location, f"at least {shots} demonstrations, the most that evaluation.shots has", str(len(listed)))
        selected[evaluated[question]] = tuple(ids[number] for number in listed[:shots])
    missing = [question for question, query in evaluated.items() if query not in selected]
    if missing:
        found = f"{len(missing)} of {len(evaluated)} missing, as {missing[:3]}"
        _refuse(f"{path}: policy {policy}", "a line for each evaluated question", found)
    return selected


def _lines(path: Path) -> Iterator[tuple[str, list[str]]]:
    (first, head), *lines = storage.read_csv(path) or [(1, [])]
    if head != HEAD:
        _refuse(f"{path}: line {first}", f"the head {','.join(HEAD)}", repr(",".join(head)))
    for number, cells in lines:
        if len(cells) != len(HEAD):
            _refuse(f"{path}: line {number}", f"{len(HEAD)} cells", str(len(cells)))
        yield f"{path}: line {number}", cells


def _number(cell: str, location: str) -> int:
    if not cell.strip().isdecimal():
        _refuse(location, "question ids as whole numbers, with blanks between them", repr(cell))
    return int(cell)


def _refuse(location: str, expected: str, found: str) -> NoReturn:
    raise RecordError(f"{location}: expected {expected}", found=found, do="Fix the file that grid.policies names.")
