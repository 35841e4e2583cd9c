"""Reader and writer of RL data in the original project's files.

An original file is one JSON object: `_meta`, and a block for every query id. `rl_data.import_format` names its kind:

* `g`, `rl_data_k64_v3.json`: a block has `query`, `candidate_pool_ids` and `pointer_candidates`. There, `pointer`
  contains pool positions and `pointer_global` train ids; `pointer_pos` predates the pools, contradicts both and is
  ignored. The older v4 files have no pools and a global `pointer`; they are refused, because such ids could be mistaken
  for pool positions.
* `a`, `rl_data_{Sampler}_{model}.json`, has no pools: a row's `pointer` contains train positions. A query's pool is
  then the sorted union of its rows' positions, filled up to K with train examples drawn uniformly, so that all pools
  have one size. No selection contains a filled-in example, so the rewards of such examples are unknown.

Source: Lever-Plus (published code), `generate_rl_data.py`
"""

from __future__ import annotations

import json
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationError

from lever_pipe.base.errors import RecordError, shortened
from lever_pipe.base.records import (
    Example,
    ExampleId,
    LogProb,
    Normalisation,
    Pool,
    PoolPosition,
    RlGroup,
    Row,
    Trajectory,
)
from lever_pipe.base.sections import dotted
from lever_pipe.base.seeding import generator
from lever_pipe.base.storage import read_json, write_text
from lever_pipe.lever.trajectories import make_group
from lever_pipe.metrics.vqa_accuracy import normalise_answer, vqa_accuracy

FIX_VERSION = "v3"
ROWS = "pointer_candidates"
FAILED_MODES = ("error", "fallback")  # `vqa_eval_mode` of rows with placeholder scores
# Fields of later generators that no stage reads, and the outdated positions.
IGNORED_FIELDS = ("aug_type", "aug_round", "proxy_score", "raw_generation", "prompt_text", "pointer_pos")
DEFAULTS = {"vqa_gt_logprob": None, "eval_failed": False}  # absent from files that are older than the fields
COPIED_METHOD = "global_positive_transfer"
"""`gen_method` of rows with the scores of another query (the original's optimised pools)."""
ACCURACY_TOLERANCE = 0.005  # files round accuracies and probabilities
DISPLAY_LIMIT = 5


class PlainRow(Row):
    """A row of format `a`."""

    pointer: tuple[ExampleId, ...]
    gen_method: str
    beam_rank: int | None
    beam_score: float | None
    logprob_score: LogProb | None
    temperature: float | None
    similarity_score: float | None = None
    vqa_pred_answer: str
    vqa_correct: int = Field(ge=0, le=1)
    vqa_acc_score: float = Field(ge=0, le=1)
    vqa_eval_mode: Literal["file", "unstated"] = "unstated"
    """`file` if this generator scored the row and recorded it; scores of different tools are not comparable."""


class PlainBlock(Row):
    """A query of format `a`."""

    pointer_candidates: tuple[PlainRow, ...]


class PoolRule(NamedTuple):
    """Rule for the pools of a file without pools; all have one size."""

    size: int  # K
    seed: int
    exclude_same_image: bool


def import_groups(
    path: Path, form: str, train: Sequence[Example], pools: PoolRule
) -> tuple[list[RlGroup], dict[str, int]]:
    """Return the groups of an original file in the file's order, and counts of its dropped and unusual rows.

    Failed rows (`eval_failed`, or the mode "error" or "fallback") are dropped and counted as `dropped_rows_MODE`, and
    queries without any other row as `empty_queries`. `other_accuracies` counts rows whose accuracy no normalisation of
    their answer reproduces. They are kept, because the original project's tools score in more than one way. Format `a`
    takes missing fields from the train examples and its pools from the rule; for `g` only the rule's size counts.
    """
    expected = f"{path}: expected RL data of format {form} (rl_data.import_format)"
    document = read_json(path)
    if not isinstance(document, dict):
        raise _refusal(expected, [f"a JSON {type(document).__name__} instead of an object of queries"])
    meta = document.pop("_meta", {})
    version = meta.get("fix_version", FIX_VERSION) if isinstance(meta, dict) else meta
    if version != FIX_VERSION:
        raise RecordError(
            f"{path}: expected _meta.fix_version {FIX_VERSION}",
            found=shortened(repr(version)),
            do="Convert the file to k64 v3 with the original project's pool script, or let the workflow generate it.",
        )
    examples = {str(example.example_id): example for example in train}
    images = np.array([example.image_digest for example in train])
    groups, problems, counts = list[RlGroup](), list[str](), Counter(empty_queries=0)
    for key, block in document.items():
        if form == "a" and key not in examples:
            problems.append(f"query {key}: no train position of 0..{len(train) - 1} in decimal digits")
            continue
        usable = _without_failed(block, counts)
        try:
            group = _with_pool(usable, examples[key], images, pools) if form == "a" else _as_given(usable)
        except ValidationError as error:
            problems += [f"query {key}: {line}" for line in _by_key(error)]
            continue
        problems += [f"query {key}: {contradiction}" for contradiction in _contradictions(key, group, pools.size)]
        if group.pointer_candidates:
            groups.append(group)
        else:
            counts["empty_queries"] += 1
    shots = Counter(len(t.pointer) for group in groups for t in group.pointer_candidates)
    if len(shots) > 1:
        problems.append(f"selections of several lengths: {dict(sorted(shots.items()))}")
    if problems:
        raise _refusal(expected, problems)
    otherwise = (_is_scored_otherwise(group, t) for group in groups for t in group.pointer_candidates)
    return groups, {**counts, "other_accuracies": sum(otherwise)}


def write_original(path: Path, groups: Sequence[RlGroup]) -> None:
    """Write groups as an original file, atomically and in their order; importing it returns the same groups."""
    document: dict[str, Any] = {"_meta": {"fix_version": FIX_VERSION}}
    for group in groups:
        key = str(group.query.query_id)
        if key in document:
            raise RecordError(
                f"{path}: expected one group a query", found=f"two of query {key}", do="Merge or remove one."
            )
        # In the original format the query's block has the id, not its rows.
        rows = [trajectory.model_dump(mode="json", exclude={"query_id"}) for trajectory in group.pointer_candidates]
        document[key] = {**group.model_dump(mode="json"), ROWS: rows}
    write_text(path, json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def require_train_examples(groups: Sequence[RlGroup], train: Sequence[Example], *, source: str) -> None:
    """Check that imported ids refer to this train split: every position exists and every query matches its example.

    Answers are compared in any order, normalised as for VQA accuracy.
    """
    problems = []
    for group in groups:
        query = group.query
        beyond = [i for i in (query.query_id, *group.candidate_pool_ids) if not 0 <= i < len(train)]
        if beyond:
            problems.append(f"query {query.query_id}: no train example {beyond[0]}")
            continue
        example = train[query.query_id]
        compared = {
            "question_id": (query.question_id, example.question_id),
            "image_id": (query.image_id, example.image_id),
            "question": (_plain(query.question), _plain(example.question)),
            "gt_answers_raw": (_comparable(query.gt_answers_raw), _comparable(example.answers)),
        }
        differing = (f"{key} {value} against {own}" for key, (value, own) in compared.items() if value != own)
        # One difference suffices to show that the ids belong to another split.
        problems += [f"query {query.query_id}: {difference}" for difference in list(differing)[:1]]
    if problems:
        expected = f"{source}: expected positions in the {len(train)} train examples sorted by question id"
        raise _refusal(expected, problems, do="Prepare the train split that this file was made with.")


def _comparable(answers: Sequence[str]) -> list[str]:
    return sorted(normalise_answer(_plain(answer)) for answer in answers)


def _plain(text: str) -> str:
    # The same accented letter may have two Unicode spellings.
    return unicodedata.normalize("NFC", text).strip()


def _without_failed(block: Any, counts: Counter[str]) -> Any:
    """Return a query's block without the rows whose evaluation failed, and count those."""
    if not isinstance(block, dict) or not isinstance(block.get(ROWS), list):
        return block
    rows = []
    for row in block[ROWS]:
        mode = row.get("vqa_eval_mode") if isinstance(row, dict) else None
        if mode in FAILED_MODES or (isinstance(row, dict) and row.get("eval_failed") is True):
            counts[f"dropped_rows_{mode if mode in FAILED_MODES else 'eval_failed'}"] += 1
        else:
            rows.append(row)
    return {**block, ROWS: rows}


def _as_given(block: Any) -> RlGroup:
    """Return the group of a block of format `g`; its rows take the query id from the query's block."""
    if isinstance(block, dict) and isinstance(block.get("query"), dict) and isinstance(block.get(ROWS), list):
        defaults = DEFAULTS | {"query_id": block["query"].get("query_id")}
        rows = [
            defaults | {k: v for k, v in row.items() if k not in IGNORED_FIELDS} if isinstance(row, dict) else row
            for row in block[ROWS]
        ]
        block = {**block, ROWS: rows}
    # Validated as JSON, where the strict mode rejects "3" and 3.0 as integers.
    return RlGroup.model_validate_json(json.dumps(block), strict=True)


def _with_pool(block: Any, query: Example, images: NDArray[np.str_], pools: PoolRule) -> RlGroup:
    """Return the group of a block of format `a`, with a pool and with zeros for the scores that its rows lack."""
    rows = PlainBlock.model_validate_json(json.dumps(block), strict=True).pointer_candidates
    used = sorted({i for row in rows for i in row.pointer})
    candidates = tuple(used + _sample(query.example_id, used, images, pools))
    position = {i: PoolPosition(n) for n, i in enumerate(candidates)}
    trajectories = [
        Trajectory(
            **row.model_dump(exclude={"pointer"}),
            query_id=query.example_id,
            pointer=tuple(position[i] for i in row.pointer),
            pointer_global=row.pointer,
            vqa_raw_generation="",
            vqa_gt_prob=0.0,
            vqa_gt_logprob=None,
            vqa_rel_token_f1=0.0,
            vqa_rel_edit_sim=0.0,
            vqa_rel_score=0.0,
            eval_split_used="train",
            eval_failed=False,
        )
        for row in rows
    ]
    return make_group(query, Pool(query_id=query.example_id, candidates=candidates), trajectories)


def _sample(query: ExampleId, used: Sequence[ExampleId], images: NDArray[np.str_], pools: PoolRule) -> list[ExampleId]:
    """Return train examples that fill a pool up to its size, in drawn order; fewer if not enough are eligible."""
    allowed = images != images[query] if pools.exclude_same_image else np.ones(len(images), dtype=bool)
    # `require_train_examples` reports ids outside the split later.
    allowed[[i for i in (query, *used) if 0 <= i < len(images)]] = False
    eligible = np.flatnonzero(allowed)
    size = min(max(pools.size - len(used), 0), len(eligible))
    stream = generator(pools.seed, "pools", "imported", query)
    return [ExampleId(int(i)) for i in stream.choice(eligible, size=size, replace=False)]


def _contradictions(key: str, group: RlGroup, pool_size: int) -> Iterator[str]:
    pool, query = group.candidate_pool_ids, group.query.query_id
    if len(pool) != pool_size:
        yield f"its pool has {len(pool)} entries, pools.size is {pool_size}"
    if query in pool:
        yield "its pool holds the query itself"
    if str(query) != key:
        yield f"query.query_id is {query}"
    if repeated := [i for i, count in Counter(pool).items() if count > 1]:
        yield f"candidate_pool_ids repeats {repeated[0]}"
    yield from _row_contradictions(group)


def _row_contradictions(group: RlGroup) -> Iterator[str]:
    first: dict[tuple[object, ...], tuple[int, float]] = {}
    for rank, trajectory in enumerate(group.pointer_candidates):
        pointer, accuracy = trajectory.pointer, trajectory.vqa_acc_score
        # Scores of different evaluation modes may differ, so each mode is checked separately.
        earlier, earlier_accuracy = first.setdefault((pointer, trajectory.vqa_eval_mode), (rank, accuracy))
        if abs(earlier_accuracy - accuracy) > ACCURACY_TOLERANCE:
            two = f"{earlier_accuracy:g} and {accuracy:g}"
            yield f"kept rows {earlier} and {rank}: pointer {list(pointer)} has the accuracies {two}"
        if not 0 < len(set(pointer)) == len(pointer):
            yield f"kept row {rank}: pointer is empty or repeats: {list(pointer)}"
        if trajectory.vqa_gt_prob > 1 + ACCURACY_TOLERANCE:
            yield f"kept row {rank}: vqa_gt_prob is no probability: {trajectory.vqa_gt_prob}"
        if trajectory.query_id != group.query.query_id:
            yield f"kept row {rank}: query_id is {trajectory.query_id}"
        if trajectory.gen_method == COPIED_METHOD:
            yield f"kept row {rank}: its scores are another query's (gen_method {COPIED_METHOD})"


def _is_scored_otherwise(group: RlGroup, trajectory: Trajectory) -> bool:
    answers, prediction = group.query.gt_answers_raw, trajectory.vqa_pred_answer
    ways = get_args(Normalisation) if answers else ()
    accuracies = [vqa_accuracy(prediction, answers, normalise_references=way) for way in ways]
    return all(abs(accuracy - trajectory.vqa_acc_score) > ACCURACY_TOLERANCE for accuracy in accuracies)


def _by_key(problem: ValidationError) -> Iterator[str]:
    kinds = {"missing": "missing", "extra_forbidden": "unknown key"}
    for error in problem.errors(include_url=False, include_context=False):
        kind = kinds.get(error["type"], error["msg"])
        yield f"'{dotted(error['loc'])}': {kind}" if error["loc"] else kind


def _refusal(expected: str, problems: Sequence[str], *, do: str = "Fix or remove the named entries.") -> RecordError:
    """Return the error of a file with these problems, naming the first ones."""
    rest = [f"and {len(problems) - DISPLAY_LIMIT} more"] if len(problems) > DISPLAY_LIMIT else []
    count = f"{len(problems)} problem" + ("s" if len(problems) > 1 else "")
    lines = "\n  ".join([*map(shortened, problems[:DISPLAY_LIMIT]), *rest])
    return RecordError(expected, found=f"{count}:\n  {lines}\n", do=do)
