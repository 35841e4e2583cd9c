"""RL data in the original's files: read into groups of pools and positions, and written.

An original file is one JSON object: `_meta`, and a block for every query id. `rl_data.import_format` names its kind:

* `g`, `rl_data_k64_v3.json`: a block has `query`, `candidate_pool_ids` and `pointer_candidates`. There, `pointer` holds
  pool positions and `pointer_global` train ids; `pointer_pos` stems from before the pools were set, contradicts both
  and is ignored. The older v4 files have no pools and a global `pointer`: they are refused, because such numbers may
  pass for pool positions.
* `a`, `rl_data_{Sampler}_{model}.json`, knows no pools: a row's `pointer` holds train positions. A query's pool is then
  the sorted union of what its rows use, filled up to K with train examples drawn uniformly, so that all pools have one
  size; of these a selection never takes any. It is hindsight: what an unused example would have brought, nobody asked.

Source: Lever-Plus (published code), `generate_rl_data.py`
"""

from __future__ import annotations

import json
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np
from pydantic import ValidationError

from lever_pipe.base.errors import RecordError
from lever_pipe.base.records import Example, RlGroup, Trajectory
from lever_pipe.base.sections import dotted
from lever_pipe.base.seeding import generator
from lever_pipe.base.storage import read_json, shortened, write_text
from lever_pipe.metrics.vqa_accuracy import Normalisation, normalise_answer, vqa_accuracy

FIX_VERSION = "v3"
K64 = "RL data in the k64 v3 format"
FAILED_MODES = ("error", "fallback")  # `vqa_eval_mode` of rows whose scores are made up
# Fields of later generators that no stage reads, and the stale positions.
IGNORED_FIELDS = ("aug_type", "aug_round", "proxy_score", "raw_generation", "prompt_text", "pointer_pos")
DEFAULTS = {"vqa_gt_logprob": None, "eval_failed": False}  # absent from files that predate them
COPIED_METHOD, COPIED_KEY = "global_positive_transfer", "source_query"
COPIED = "its scores are another query's (the original's optimised pools), which no option takes"
ACCURACY_TOLERANCE = 0.005  # files round accuracies and probabilities
SHOWN = 5
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
) -> tuple[list[RlGroup], dict[str, int]]:
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
    _, found = _read_queries(path)
    examples = {str(example.example_id): example for example in train}
    images = np.array([example.image_digest for example in train])
    counts, faults, unions = Counter[str](), list[str](), list[int]()
    blocks: dict[str, Any] = {}
    for key, block in found.items():
        if (example := examples.get(key)) is None:
            faults.append(f"query {key}: no train position of 0..{len(train) - 1} in decimal digits")
            continue
        rows, wrong = _rows(block, example, len(train), counts)
        if not (rows or wrong):
            counts["empty_queries"] += 1
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
        raise _faults_of(path, faults, expected)
    groups, counted = _taken(path, blocks, counts, pool_size=pools.size, expected=expected)
    if unions:
        filled = pools.size * len(unions) - sum(unions)
        counted |= {"union_min": min(unions), "union_max": max(unions), "filled_pool_ids": filled}
    return groups, counted


def import_original(path: Path, *, pool_size: int | None = None) -> tuple[list[RlGroup], dict[str, int]]:
    """Return the groups of an original file in the file's order, and what became of its rows by count.

    `dropped_rows_MODE`; `dropped_fields_NAME` of rows that had the field, `filled_fields_NAME` of rows that lacked it;
    `empty_queries`, dropped for no row of theirs was kept; `other_accuracies` of rows that no normalisation of their
    answer gives.

    Rows that failed (`eval_failed`, or the mode "error" or "fallback") are dropped and counted, and so are queries
    without any other row. Rows whose accuracy does not follow from their answer are kept and counted: the original
    project's tools score in more than one way.

    Args:
        path: the file.
        pool_size: K, where all pools must have one size.

    Raises:
        RecordError: no such file, another version, or unknown, missing or contradictory keys; names query and key.
    """
    meta, blocks = _read_queries(path)
    _refuse_other_versions(path, meta, blocks)
    return _taken(path, blocks, Counter(), pool_size=pool_size)


def _read_queries(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the `_meta` of an original file, if any, and its queries' blocks by their key."""
    document = read_json(path)
    if not isinstance(document, dict):
        raise _faults_of(path, [f"a JSON {type(document).__name__} instead of an object of queries"])
    meta = document.get("_meta") or {}
    if not isinstance(meta, dict):
        raise _faults_of(path, ["'_meta': no object"])
    return meta, {key: block for key, block in document.items() if key != "_meta"}


def _taken(
    path: Path, blocks: Mapping[str, Any], counts: Counter[str], *, pool_size: int | None, expected: str = K64
) -> tuple[list[RlGroup], dict[str, int]]:
    """Return the groups of k64 v3 blocks, as `import_original` does of a file's, and what became of all rows."""
    groups: list[RlGroup] = []
    faults: list[str] = []
    for key, block in blocks.items():
        group, found = _group(key, block, counts, pool_size)
        faults += [f"query {key}: {fault}" for fault in found]
        if group and group.pointer_candidates:
            groups.append(group)
        elif group:
            counts["empty_queries"] += 1
    shots = Counter(len(t.pointer) for group in groups for t in group.pointer_candidates)
    if len(shots) > 1:
        faults.append(f"selections of several lengths: {dict(sorted(shots.items()))}")
    if faults:
        raise _faults_of(path, faults, expected)
    otherwise = [_is_scored_otherwise(group, t) for group in groups for t in group.pointer_candidates]
    counts["other_accuracies"] = sum(otherwise)
    n_rows = sum(len(group.pointer_candidates) for group in groups)
    kept = {"queries": len(groups), "trajectories": n_rows, "empty_queries": counts.pop("empty_queries", 0)}
    return groups, kept | counts


def write_original(path: Path, groups: Sequence[RlGroup]) -> None:
    """Write groups as an original file, atomically and in their order; importing it gives them back.

    Raises:
        RecordError: two groups of one query, which the format cannot hold.
    """
    document: dict[str, Any] = {"_meta": {"fix_version": FIX_VERSION}}
    for group in groups:
        key = str(group.query.query_id)
        if key in document:
            raise RecordError(
                f"{path}: expected one group a query", found=f"two of query {key}", do="Merge or remove one."
            )
        rows = [trajectory.model_dump(mode="json", exclude={"query_id"}) for trajectory in group.pointer_candidates]
        document[key] = {**group.model_dump(mode="json"), "pointer_candidates": rows}
    write_text(path, json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def require_train_examples(groups: Sequence[RlGroup], train: Sequence[Example], *, source: str) -> None:
    """Check that imported ids mean this train split: every position exists, every query is the example that it names.

    Answers are compared as VQA accuracy compares them, in any order.

    Raises:
        RecordError: the groups count another split, the same one in another order, or other questions.
    """
    faults = []
    for group in groups:
        query = group.query
        beyond = [i for i in (query.query_id, *group.candidate_pool_ids) if not 0 <= i < len(train)]
        if beyond:
            faults.append(f"query {query.query_id}: no train example {beyond[0]}")
            continue
        example = train[query.query_id]
        compared = {
            "question_id": (query.question_id, example.question_id),
            "image_id": (query.image_id, example.image_id),
            "question": (_plain(query.question), _plain(example.question)),
            "gt_answers_raw": (_comparable(query.gt_answers_raw), _comparable(example.answers)),
        }
        differing = (f"{key} {theirs} against {ours}" for key, (theirs, ours) in compared.items() if theirs != ours)
        faults += [f"query {query.query_id}: {difference}" for difference in list(differing)[:1]]
    if faults:
        raise RecordError(
            f"{source}: expected positions in the {len(train)} train examples sorted by question id",
            found=_several(faults),
            do="Prepare the train split that this file was made with.",
        )


def _comparable(answers: Sequence[str]) -> list[str]:
    return sorted(normalise_answer(_plain(answer)) for answer in answers)


def _plain(text: str) -> str:
    return unicodedata.normalize("NFC", text).strip()


def _is_scored_otherwise(group: RlGroup, trajectory: Trajectory) -> bool:
    answers, said = group.query.gt_answers_raw, trajectory.vqa_pred_answer
    ways = get_args(Normalisation) if answers else ()
    accuracies = [vqa_accuracy(said, answers, normalise_references=way) for way in ways]
    return all(abs(accuracy - trajectory.vqa_acc_score) > ACCURACY_TOLERANCE for accuracy in accuracies)


def _group(key: str, block: Any, counts: Counter[str], pool_size: int | None) -> tuple[RlGroup | None, Iterable[str]]:
    """Return a query's group without its failed rows, and what is wrong with it; None where it cannot be read."""
    if not isinstance(block, dict):
        return None, ["no object"]
    query, rows = block.get("query"), block.get("pointer_candidates")
    if isinstance(query, dict) and isinstance(rows, list):
        if any(isinstance(row, dict) and "query_id" in row for row in rows):
            return None, ["pointer_candidates: 'query_id': unknown key"]  # only the query block holds it
        if copied := [at for at, row in enumerate(rows) if isinstance(row, dict) and _is_copied(row)]:
            return None, [f"pointer_candidates[{copied[0]}]: {COPIED}"]
        kept = [row for row in rows if not _has_failed(row, counts)]
        block = {**block, "pointer_candidates": [_known(row, query.get("query_id"), counts) for row in kept]}
    try:
        # As JSON spells it: "3" and 3.0 are no 3.
        group = RlGroup.model_validate_json(json.dumps(block), strict=True)
    except ValidationError as fault:
        return None, _describe(fault)
    return group, _contradictions(key, group, pool_size)


def _is_copied(row: Mapping[str, Any]) -> bool:
    """Return whether a row has the scores of another query's."""
    return COPIED_KEY in row or row.get("gen_method") == COPIED_METHOD


def _has_failed(row: Any, counts: Counter[str]) -> bool:
    """Return whether a row's evaluation had failed, and count it then."""
    mode = row.get("vqa_eval_mode") if isinstance(row, dict) else None
    if mode in FAILED_MODES or (isinstance(row, dict) and row.get("eval_failed") is True):
        counts[f"dropped_rows_{mode if mode in FAILED_MODES else 'eval_failed'}"] += 1
        return True
    return False


def _known(row: Any, query_id: Any, counts: Counter[str]) -> Any:
    """Return a row with the fields of a trajectory."""
    if not isinstance(row, dict):
        return row
    counts.update(f"dropped_fields_{name}" for name in IGNORED_FIELDS if name in row)
    counts.update(f"filled_fields_{name}" for name in DEFAULTS if name not in row)
    known = {name: value for name, value in row.items() if name not in IGNORED_FIELDS}
    return DEFAULTS | known | {"query_id": query_id}


def _contradictions(key: str, group: RlGroup, pool_size: int | None) -> Iterator[str]:
    size = len(group.candidate_pool_ids)
    if pool_size not in (None, size):
        yield f"candidate_pool_ids has {size} entries, pools.size is {pool_size}"
    if group.query.query_id in group.candidate_pool_ids:
        yield "candidate_pool_ids holds the query itself"
    if str(group.query.query_id) != key:
        yield f"query.query_id is {group.query.query_id}"
    repeated = [i for i, count in Counter(group.candidate_pool_ids).items() if count > 1]
    if repeated:
        yield f"candidate_pool_ids repeats {repeated[0]}"
    first: dict[tuple[object, ...], tuple[int, float]] = {}
    for rank, trajectory in enumerate(group.pointer_candidates):
        key_of_answer = (trajectory.pointer, trajectory.vqa_eval_mode)
        earlier, accuracy = first.setdefault(key_of_answer, (rank, trajectory.vqa_acc_score))
        if abs(accuracy - trajectory.vqa_acc_score) > ACCURACY_TOLERANCE:
            told = f"{accuracy:g} and {trajectory.vqa_acc_score:g}"
            yield f"kept rows {earlier} and {rank}: pointer {list(trajectory.pointer)} has the accuracies {told}"
        if not 0 < len(set(trajectory.pointer)) == len(trajectory.pointer):
            yield f"kept row {rank}: pointer is empty or repeats: {list(trajectory.pointer)}"
        if trajectory.vqa_gt_prob > 1 + ACCURACY_TOLERANCE:
            yield f"kept row {rank}: vqa_gt_prob is no probability: {trajectory.vqa_gt_prob}"


def _refuse_other_versions(path: Path, meta: Mapping[str, Any], blocks: Mapping[str, Any]) -> None:
    version = meta.get("fix_version", FIX_VERSION)
    if version != FIX_VERSION:
        raise RecordError(
            f"{path}: expected _meta.fix_version {FIX_VERSION}",
            found=shortened(repr(version)),
            do="Convert the file to k64 v3 with the original project's pool script, or let the workflow generate it.",
        )
    without = [key for key, block in blocks.items() if isinstance(block, dict) and _has_no_pool(block)]
    if without:
        raise RecordError(
            f"{path}: expected a k64 v3 file, whose pointers are positions in candidate_pool_ids",
            found=f"{len(without)} queries without pool or pointer_global (first: {without[0]}), as in v4 files, whose "
            "pointers are train positions",
            do="Convert the file to k64 v3 with the original project's pool script, or let the workflow generate it.",
        )


def _has_no_pool(block: Mapping[str, Any]) -> bool:
    rows = block.get("pointer_candidates")
    no_global = isinstance(rows, list) and any(
        isinstance(row, dict) and "pointer" in row and "pointer_global" not in row for row in rows
    )
    return "candidate_pool_ids" not in block or no_global


def _describe(fault: ValidationError) -> list[str]:
    kinds = {"missing": "missing", "extra_forbidden": "unknown key"}
    errors = fault.errors(include_url=False, include_context=False)
    told = [(error["loc"], kinds.get(error["type"], error["msg"])) for error in errors]
    return [f"'{dotted(place)}': {kind}" if place else kind for place, kind in told]


def _faults_of(path: Path, faults: Sequence[str], expected: str = K64) -> RecordError:
    """Return the error of a file with these faults, the first ones told."""
    do = "Mend or remove the named entries."
    return RecordError(f"{path}: expected {expected}", found=_several(faults), do=do)


def _several(faults: Sequence[str]) -> str:
    rest = [f"and {len(faults) - SHOWN} more"] if len(faults) > SHOWN else []
    count = f"{len(faults)} fault" + ("s" if len(faults) > 1 else "")
    return f"{count}:\n  " + "\n  ".join([*map(shortened, faults[:SHOWN]), *rest]) + "\n"


def _rows(block: Any, example: Example, n_train: int, counts: Counter[str]) -> tuple[list[dict[str, Any]], list[str]]:
    """Return a query's rows that have not failed, and what is wrong with it, in which case there is no row."""
    if not isinstance(block, dict):
        return [], ["no object"]
    if faults := _of_keys(block, {ROWS}, {ROWS}):
        return [], faults
    if not isinstance(block[ROWS], list):
        return [], [f"'{ROWS}': no array"]
    kept = [(at, row) for at, row in enumerate(block[ROWS]) if not _has_failed(row, counts)]
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
    if _is_copied(row):
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
