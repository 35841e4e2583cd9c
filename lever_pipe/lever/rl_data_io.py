"""RL data in the original file format `rl_data_k64_v3.json`, and a summary of RL data.

The original file is one JSON object: `_meta`, and for every query id a block with `query`, `candidate_pool_ids` and
`pointer_candidates`. There, `pointer` holds pool positions and `pointer_global` train ids; `pointer_pos` stems from
before the pools were set, contradicts both and is ignored. The older v4 files have no pools and a global `pointer`:
they are refused, because such numbers may pass for pool positions.
"""

from __future__ import annotations

import json
import statistics
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from pydantic import ValidationError

from lever_pipe.base.errors import RecordError
from lever_pipe.base.records import Example, RlGroup, Trajectory
from lever_pipe.base.sections import dotted
from lever_pipe.base.storage import read_json, read_rows, shortened, write_text
from lever_pipe.experiment.rl_data_config import Balance
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
LEAST = 2  # groups: one to train, one to validate


@dataclass(slots=True)
class ImportReport:
    """What an import kept, dropped and filled in."""

    counts: Counter[str] = field(default_factory=Counter)
    """Rows by what became of them: `dropped_rows_MODE`, `dropped_fields_NAME` of rows that had the field,
    `filled_fields_NAME` of rows that lacked it; `other_accuracies` of rows that no normalisation of their answer gives.
    """
    empty_queries: list[int] = field(default_factory=list)
    """Dropped, for no row of theirs was kept."""

    def as_dict(self, groups: Sequence[RlGroup]) -> dict[str, int]:
        """Return the counts, with those of what was kept."""
        n_rows = sum(len(group.pointer_candidates) for group in groups)
        kept = {"queries": len(groups), "trajectories": n_rows, "empty_queries": len(self.empty_queries)}
        return kept | dict(self.counts)


def import_original(path: Path, *, pool_size: int | None = None) -> tuple[list[RlGroup], ImportReport]:
    """Return the groups of an original file in the file's order, and what was dropped on the way.

    Rows that failed (`eval_failed`, or the mode "error" or "fallback") are dropped and counted, and so are queries
    without any other row. Rows whose accuracy does not follow from their answer are kept and counted: the original
    project's tools score in more than one way.

    Args:
        path: the file.
        pool_size: K, where all pools must have one size.

    Raises:
        RecordError: no such file, another version, or unknown, missing or contradictory keys; names query and key.
    """
    meta, blocks = read_queries(path)
    _refuse_other_versions(path, meta, blocks)
    return take_groups(path, blocks, ImportReport(), pool_size=pool_size)


def read_queries(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the `_meta` of an original file, if any, and its queries' blocks by their key.

    Raises:
        RecordError: no such file, or another JSON.
    """
    document = read_json(path)
    if not isinstance(document, dict):
        raise faults_of(path, [f"a JSON {type(document).__name__} instead of an object of queries"])
    meta = document.get("_meta") or {}
    if not isinstance(meta, dict):
        raise faults_of(path, ["'_meta': no object"])
    return meta, {key: block for key, block in document.items() if key != "_meta"}


def take_groups(
    path: Path, blocks: Mapping[str, Any], report: ImportReport, *, pool_size: int | None, expected: str = K64
) -> tuple[list[RlGroup], ImportReport]:
    """Return the groups of k64 v3 blocks, as `import_original` does of a file's, and the report with their counts.

    Raises:
        RecordError: unknown, missing or contradictory keys; names query and key.
    """
    groups: list[RlGroup] = []
    faults: list[str] = []
    for key, block in blocks.items():
        group, found = _group(key, block, report.counts, pool_size)
        faults += [f"query {key}: {fault}" for fault in found]
        if group and group.pointer_candidates:
            groups.append(group)
        elif group:
            report.empty_queries.append(group.query.query_id)
    shots = Counter(len(t.pointer) for group in groups for t in group.pointer_candidates)
    if len(shots) > 1:
        faults.append(f"selections of several lengths: {dict(sorted(shots.items()))}")
    if faults:
        raise faults_of(path, faults, expected)
    otherwise = [_is_scored_otherwise(group, t) for group in groups for t in group.pointer_candidates]
    report.counts["other_accuracies"] = sum(otherwise)
    return groups, report


def export_original(rl_data: Path, original: Path) -> None:
    """Write the groups of an `rl_data_k64_v3.jsonl` as an original file.

    Raises:
        RecordError: a malformed row, or two groups of one query.
    """
    write_original(original, read_rows(rl_data, RlGroup))


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


def keep_balanced(
    groups: Sequence[RlGroup], balance: Balance | None, *, source: str
) -> tuple[list[RlGroup], dict[str, int]]:
    """Return the groups whose share of positive trajectories lies within the bounds, and what became of all.

    Args:
        groups: RL data.
        balance: the bounds, both inclusive; None keeps all and counts nothing.
        source: what the groups are of, for the message.

    Raises:
        RecordError: fewer than `LEAST` groups are kept.

    Source: Lever-Plus published code (VQAv2)
    """
    if balance is None:
        return list(groups), {}
    shares = [statistics.fmean(row.vqa_correct for row in group.pointer_candidates) for group in groups]
    kept = [group for group, share in zip(groups, shares, strict=True) if balance.low <= share <= balance.high]
    counts = {
        "balance_kept": len(kept),
        "balance_rejected_low": sum(share < balance.low for share in shares),
        "balance_rejected_high": sum(share > balance.high for share in shares),
    }
    if len(kept) < LEAST:
        raise RecordError(
            f"{source}: expected at least {LEAST} queries with {balance.low:g} to {balance.high:g} of their "
            "trajectories positive: some train, some validate",
            found=", ".join(f"{name.removeprefix('balance_')} {count}" for name, count in counts.items()),
            do="Widen rl_data.balance, or raise rl_data.n_queries or the number of proposals.",
        )
    return kept, counts


def summarise(groups: Sequence[RlGroup]) -> dict[str, int | float]:
    """Return the facts of RL data as one flat mapping, shares in percent.

    Positive means `vqa_correct`; the reward is that of the published summary, correctness plus accuracy: 0, 1.6 or 2 on
    OK-VQA. `one_accuracy_queries` have no reward difference and so no policy gradient;
    `duplicate_selections` counts repeats of one ordered selection within a query; `accuracy_<a>` counts the
    trajectories of each accuracy level.
    """
    rows = [trajectory for group in groups for trajectory in group.pointer_candidates]
    sizes = [len(group.pointer_candidates) for group in groups]
    positives = [sum(t.vqa_correct for t in group.pointer_candidates) for group in groups]
    with_positive = sum(n > 0 for n in positives)
    all_positive = sum(0 < n == size for n, size in zip(positives, sizes, strict=True))
    rewards = [t.vqa_correct + t.vqa_acc_score for t in rows] or [0.0]
    levels = Counter(round(trajectory.vqa_acc_score, 4) for trajectory in rows)
    return {
        "queries": len(groups),
        "trajectories": len(rows),
        "traj_per_query": _rounded(statistics.fmean(sizes or [0])),
        "traj_min": min(sizes, default=0),
        "traj_max": max(sizes, default=0),
        "positive_trajectories": sum(positives),
        "positive_pct": _percent(sum(positives), len(rows)),
        "queries_with_positive": with_positive,
        "queries_with_positive_pct": _percent(with_positive, len(groups)),
        "all_negative_queries": len(groups) - with_positive,
        "all_positive_queries": all_positive,
        "mixed_queries": with_positive - all_positive,
        "one_accuracy_queries": sum(len({t.vqa_acc_score for t in g.pointer_candidates}) == 1 for g in groups),
        "duplicate_selections": len(rows) - sum(len({t.pointer for t in g.pointer_candidates}) for g in groups),
        "mean_accuracy": _rounded(statistics.fmean([t.vqa_acc_score for t in rows] or [0.0])),
        "mean_reward": _rounded(statistics.fmean(rewards)),
        "reward_std": _rounded(statistics.pstdev(rewards)),
        **{f"accuracy_{level:g}": count for level, count in sorted(levels.items())},
    }


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
        if copied := [at for at, row in enumerate(rows) if isinstance(row, dict) and is_copied(row)]:
            return None, [f"pointer_candidates[{copied[0]}]: {COPIED}"]
        kept = [row for row in rows if not has_failed(row, counts)]
        block = {**block, "pointer_candidates": [_known(row, query.get("query_id"), counts) for row in kept]}
    try:
        # As JSON spells it: "3" and 3.0 are no 3.
        group = RlGroup.model_validate_json(json.dumps(block), strict=True)
    except ValidationError as fault:
        return None, _describe(fault)
    return group, _contradictions(key, group, pool_size)


def is_copied(row: Mapping[str, Any]) -> bool:
    """Return whether a row has the scores of another query's."""
    return COPIED_KEY in row or row.get("gen_method") == COPIED_METHOD


def has_failed(row: Any, counts: Counter[str]) -> bool:
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


def faults_of(path: Path, faults: Sequence[str], expected: str = K64) -> RecordError:
    """Return the error of a file with these faults, the first ones told."""
    do = "Mend or remove the named entries."
    return RecordError(f"{path}: expected {expected}", found=_several(faults), do=do)


def _several(faults: Sequence[str]) -> str:
    rest = [f"and {len(faults) - SHOWN} more"] if len(faults) > SHOWN else []
    count = f"{len(faults)} fault" + ("s" if len(faults) > 1 else "")
    return f"{count}:\n  " + "\n  ".join([*map(shortened, faults[:SHOWN]), *rest]) + "\n"


def _percent(part: int, whole: int) -> float:
    return _rounded(100 * part / whole) if whole else 0.0


def _rounded(value: float) -> float:
    return round(value, 6)
