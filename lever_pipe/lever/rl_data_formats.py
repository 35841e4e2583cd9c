"""RL data of the original's generators, as groups of pools and positions.

Two kinds of file: `g`, k64 v3, holds pools. `a`, `rl_data_{Sampler}_{model}.json`, knows none: a row's `pointer` holds
train positions. A query's pool is then the sorted union of what its rows use, filled up to K with train examples drawn
uniformly, so that all pools have one size; of these a selection never takes any. It is hindsight: what an unused
example would have brought, nobody asked.

Source: Lever-Plus (published code), `generate_rl_data.py`
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lever_pipe.base.records import Example, RlGroup
from lever_pipe.base.seeding import generator
from lever_pipe.lever.rl_data_io import (
    ACCURACY_TOLERANCE,
    COPIED,
    ImportReport,
    faults_of,
    has_failed,
    import_original,
    is_copied,
    read_queries,
    take_groups,
)
from lever_pipe.metrics.vqa_accuracy import normalise_answer, vqa_accuracy

WITH_POOLS = "g"
"""The format whose file holds pools."""
ROWS = "pointer_candidates"
NEEDED = frozenset(
    {"pointer", "gen_method", "beam_rank", "beam_score", "logprob_score", "temperature"}
    | {"vqa_pred_answer", "vqa_correct", "vqa_acc_score"}
)
ALLOWED = NEEDED | {"vqa_eval_mode", "similarity_score"}
"""Keys of a row."""
SCORED_BY = "file"
"""The one `vqa_eval_mode` of rows that this generator scored; its first files state none."""
FILLED: dict[str, Any] = {
    "vqa_raw_generation": "",
    "vqa_gt_prob": 0.0,
    "vqa_gt_logprob": None,
    "vqa_rel_token_f1": 0.0,
    "vqa_rel_edit_sim": 0.0,
    "vqa_rel_score": 0.0,
    "vqa_eval_mode": "unstated",
    "eval_split_used": "train",
    "eval_failed": False,
}
"""What stands for a key that a row lacks; in the original, too, a missing score counts 0."""


class PoolRule(NamedTuple):
    """How the pools of a file without any are made."""

    size: int  # K
    seed: int
    exclude_same_image: bool


def import_groups(
    path: Path, form: str, train: Sequence[Example], pools: PoolRule
) -> tuple[list[RlGroup], ImportReport]:
    """Return the groups of an original file of the named format, in the file's order, and what became of its rows.

    Counted beside what `import_original` counts: `union_min` and `union_max`, sizes of the unions; `filled_pool_ids`,
    examples that were drawn to fill pools.

    Args:
        path: the file.
        form: `a` or `g`.
        train: all train examples, by position.
        pools: how pools are made; for `g` its size alone counts.

    Raises:
        RecordError: no such file, keys that the format has not, positions beyond the train split, scores that no
            matching answers give, rows scored otherwise or copied from other queries, or a union beyond K; names query,
            row and key.
    """
    if form == WITH_POOLS:
        return import_original(path, pool_size=pools.size)
    expected = f"RL data of format {form} (rl_data.import_format)"
    _, found = read_queries(path)
    examples = {str(example.example_id): example for example in train}
    images = np.array([example.image_digest for example in train])
    report, faults, unions = ImportReport(), list[str](), list[int]()
    blocks: dict[str, Any] = {}
    for key, block in found.items():
        if (example := examples.get(key)) is None:
            faults.append(f"query {key}: no train position of 0..{len(train) - 1} in decimal digits")
            continue
        rows, wrong = _rows(block, example, len(train), report.counts)
        if not (rows or wrong):
            report.empty_queries.append(example.example_id)
            continue
        used = sorted({i for row in rows for i in row["pointer"]})
        pool = used + _drawn(example.example_id, used, images, pools)
        if not wrong and len(pool) != pools.size:
            held = f"its rows use {len(used)} train examples, and {len(pool) - len(used)} may fill its pool up"
            wrong.append(f"{held}; pools.size is {pools.size}")
        faults += [f"query {key}: {fault}" for fault in wrong]
        if not wrong:
            unions.append(len(used))
            blocks[key] = _k64_block(example, rows, pool)
    if faults:
        raise faults_of(path, faults, expected)
    groups, report = take_groups(path, blocks, report, pool_size=pools.size, expected=expected)
    if unions:
        filled = pools.size * len(unions) - sum(unions)
        report.counts.update(union_min=min(unions), union_max=max(unions), filled_pool_ids=filled)
    return groups, report


def _rows(block: Any, example: Example, n_train: int, counts: Counter[str]) -> tuple[list[dict[str, Any]], list[str]]:
    """Return a query's rows that have not failed, and what is wrong with it, in which case there is no row."""
    if not isinstance(block, dict):
        return [], ["no object"]
    if faults := _of_keys(block, {ROWS}, {ROWS}):
        return [], faults
    if not isinstance(block[ROWS], list):
        return [], [f"'{ROWS}': no array"]
    kept = [(at, row) for at, row in enumerate(block[ROWS]) if not has_failed(row, counts)]
    faults = [f"{ROWS}[{at}]{fault}" for at, row in kept for fault in _of_row(row, example, n_train)]
    if faults:
        return [], faults
    counts.update(f"filled_fields_{name}" for _, row in kept for name in FILLED if name not in row)
    return [FILLED | row for _, row in kept], []


def _k64_block(example: Example, rows: Sequence[dict[str, Any]], pool: Sequence[int]) -> dict[str, Any]:
    """Return a query's block as k64 v3 has it."""
    query = {
        "query_id": example.example_id,
        "question_id": example.question_id,
        "image_id": example.image_id,
        "question": example.question,
        "gt_answers_raw": list(example.answers),
        "gt_answers_norm": [normalise_answer(answer) for answer in example.answers],
    }
    position = {i: at for at, i in enumerate(pool)}
    placed = [
        row | {"pointer": [position[i] for i in row["pointer"]], "pointer_global": row["pointer"]} for row in rows
    ]
    return {"query": query, "candidate_pool_ids": list(pool), ROWS: placed}


def _of_row(row: Any, example: Example, n_train: int) -> list[str]:
    if not isinstance(row, dict):
        return [": no object"]
    if is_copied(row):
        return [f": {COPIED}"]
    if faults := _of_keys(row, NEEDED, ALLOWED):
        return [f".{fault}" for fault in faults]
    if (mode := row.get("vqa_eval_mode", SCORED_BY)) != SCORED_BY:
        return [f".'vqa_eval_mode': {mode!r}, scores that do not compare with those of this generator"]
    found = [*_of_pointer(row["pointer"], example, n_train), *_of_accuracy(row["vqa_acc_score"], len(example.answers))]
    return [f".{fault}" for fault in found]


def _of_keys(
    found: Mapping[str, Any], needed: set[str] | frozenset[str], allowed: set[str] | frozenset[str]
) -> list[str]:
    missing = [f"'{key}': missing" for key in sorted(needed - found.keys())]
    return missing + [f"'{key}': unknown key" for key in sorted(found.keys() - allowed)]


def _of_pointer(pointer: Any, example: Example, n_train: int) -> Iterator[str]:
    if not isinstance(pointer, list) or any(type(i) is not int for i in pointer):
        yield "'pointer': no array of whole numbers"
    elif not 0 < len(set(pointer)) == len(pointer):
        yield f"'pointer': empty or repeats: {pointer}"
    elif example.example_id in pointer:
        yield "'pointer': holds the query itself"
    elif beyond := [i for i in pointer if not 0 <= i < n_train]:
        yield f"'pointer': no train example {beyond[0]}"


def _of_accuracy(accuracy: Any, n_answers: int) -> Iterator[str]:
    levels = levels_of(n_answers)
    if type(accuracy) not in (int, float):
        yield "'vqa_acc_score': no number"
    elif not 0 <= accuracy <= 1 or all(abs(accuracy - level) > ACCURACY_TOLERANCE for level in levels):
        shown = ", ".join(f"{level:.4g}" for level in levels)
        yield f"'vqa_acc_score': {accuracy} is none of {shown}, the accuracies of {n_answers} answers"


@cache
def levels_of(n_answers: int) -> tuple[float, ...]:
    """Return the VQA accuracies that `n_answers` reference answers can give, rising: 0, .3, .6, .9, 1 for ten."""
    said = "x"
    answers = [[said] * matching + ["y"] * (n_answers - matching) for matching in range(n_answers + 1)]
    return tuple(sorted({vqa_accuracy(said, references) for references in answers if references}))


def _drawn(query_id: int, used: Sequence[int], images: Any, pools: PoolRule) -> list[int]:
    """Return what fills a pool up: train examples in drawn order, as many as there is room and choice for."""
    allowed = np.ones(len(images), dtype=bool)
    if pools.exclude_same_image:
        allowed &= images != images[query_id]
    allowed[[query_id, *used]] = False
    eligible = np.flatnonzero(allowed)
    size = min(max(pools.size - len(used), 0), len(eligible))
    stream = generator(pools.seed, "pools", "imported", query_id)
    return [int(i) for i in stream.choice(eligible, size=size, replace=False)]
