"""RL data of the original's other file formats, as groups of pools and positions.

Those files know no pool: a row's `pointer` holds train positions. A query's pool here is the sorted union of what its
rows use, filled up to K with train examples drawn uniformly, so that all pools have one size; of these a selection
never takes any. It is hindsight: what an unused example would have brought, nobody asked.

A format is data, the keys that stand at each level, and the user names it: two of them may look alike and mean
something else. `b` is read as `a`, `d` as `c`, `h` as `g`. Format `i` copies the scores of other queries and is refused
wherever such a row stands.

Source: Lever-Plus (published code), `generate_rl_data.py`, `mine_positive_samples.py`, `augment_rl_data_diversity.py`,
`generate_balanced_rl_data.py`, `generate_data.py`
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

GIVEN = "g"
"""The format whose file holds pools."""
UNRESCUED = ("_fix_failed", "_fix_error")
"""Keys of blocks that the original's own repair gave up."""
MINED = "simple_match"
MINED_LEVELS = (0.0, 1 / 3, 2 / 3, 1.0)
"""Accuracies of mined rows: matches over 3, at most 1."""


class Keys(NamedTuple):
    """The keys of one kind of object: those that must stand there, and those that may."""

    needed: frozenset[str]
    allowed: frozenset[str] = frozenset()

    def faults(self, found: Mapping[str, Any]) -> list[str]:
        """Return what is missing and what is unknown, by name."""
        missing = [f"'{key}': missing" for key in sorted(self.needed - found.keys())]
        return missing + [f"'{key}': unknown key" for key in sorted(found.keys() - self.needed - self.allowed)]


class Format(NamedTuple):
    """What stands in a file; a row is of that kind whose keys it meets best."""

    block: Keys
    rows: tuple[Keys, ...]
    query: Keys | None = None
    """None where the query is its key alone; the train split says the rest."""
    answer: Keys | None = None
    """None where a reference answer is its text."""
    beside: frozenset[str] = frozenset()
    """Keys beside the queries that nothing reads."""
    filled: tuple[tuple[str, str], ...] = ()
    """What stands for a key that the format lacks, where it is not `FILLED`."""


def _keys(needed: str, allowed: str = "") -> Keys:
    return Keys(frozenset(needed.split()), frozenset(allowed.split()))


PROPOSED = "beam_rank beam_score logprob_score temperature"
SCORED = "vqa_pred_answer vqa_correct vqa_acc_score"
DENSE = "vqa_gt_prob vqa_rel_token_f1 vqa_rel_edit_sim vqa_rel_score"
FIRST = _keys(f"pointer gen_method {PROPOSED} {SCORED}", "vqa_eval_mode similarity_score")
MINED_ROW = _keys(f"pointer gen_method beam_score logprob_score {SCORED} vqa_eval_mode")
STRICT = _keys(
    f"pointer pointer_pos gen_method vqa_raw_generation {SCORED} {DENSE} vqa_eval_mode eval_split_used eval_failed",
    f"{PROPOSED} similarity_score vqa_gt_logprob vqa_prompt_text vqa_prompt_len",
)
FILL_ROW = _keys(
    f"pointer gen_method {SCORED} vqa_eval_mode aug_type aug_round",
    f"{PROPOSED} similarity_score pointer_pos vqa_raw_generation eval_split_used eval_failed proxy_score "
    "raw_generation prompt_text",
)
GROUP = _keys("pointer_candidates")
GROUP_WITH_QUERY = _keys("query pointer_candidates")
QUERY = _keys("query_id question_id image_id question gt_answers_raw gt_answers_norm")

FORMATS: Mapping[str, Format] = {
    "a": Format(GROUP, (FIRST,)),
    "c": Format(GROUP, (FIRST, MINED_ROW)),
    "e": Format(GROUP_WITH_QUERY, (STRICT,), QUERY),
    "f": Format(GROUP_WITH_QUERY, (STRICT, FILL_ROW), QUERY),
    "j": Format(
        GROUP_WITH_QUERY,
        (_keys("pointer vqa_pred_answer vqa_acc_score", "gen_method"),),
        _keys("query_id question_id question gt_answers_raw", "image_id"),
        _keys("answer", "answer_id answer_confidence"),
        beside=frozenset({"train_ids", "val_ids"}),
        filled=(("gen_method", "strata"),),
    ),
    "k": Format(
        _keys("id_list score_list", "few_shot_num shot_scores beams"),
        (_keys("pointer gen_method beam_rank beam_score"),),
        filled=(("vqa_eval_mode", "unscored"),),
    ),
}
"""By name; `g` is read by `rl_data_io`."""
UNREAD = _keys(
    "pointer_pos aug_type aug_round proxy_score raw_generation prompt_text vqa_prompt_text vqa_prompt_len "
    "few_shot_num shot_scores beams"
).needed
"""Keys that no stage reads."""
FILLED: dict[str, Any] = {
    "vqa_raw_generation": "",
    "vqa_pred_answer": "",
    "vqa_acc_score": 0.0,
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
    path: Path, form: str, train: Sequence[Example], pools: PoolRule, *, allow_mixed: bool
) -> tuple[list[RlGroup], ImportReport]:
    """Return the groups of an original file of the named format, in the file's order, and what became of its rows.

    Counted beside what `import_original` counts: `union_min` and `union_max`, sizes of the unions; `filled_pool_ids`,
    examples that were drawn to fill pools; `rows_MODE`, kept rows by how they were scored.

    Args:
        path: the file.
        form: a key of `FORMATS`, or `g`.
        train: all train examples, by position.
        pools: how pools are made; for `g` its size alone counts.
        allow_mixed: take rows that were scored in several ways; `g` always is taken so.

    Raises:
        RecordError: no such file, keys that the format has not, positions beyond the train split, scores that no way
            of scoring gives, rows scored in several ways, scores copied from other queries, or a union beyond K; names
            query, row and key.
    """
    if form == GIVEN:
        return import_original(path, pool_size=pools.size)
    expected = f"RL data of format {form} (rl_data.import_format)"
    _, found = read_queries(path)
    reader = _OriginalFile(FORMATS[form], train, pools)
    blocks = {key: k64 for key, block in found.items() if (k64 := reader.k64_block(key, block)) is not None}
    modes, unions = reader.modes, reader.unions
    if len(modes) > 1 and not allow_mixed:
        counted = ", ".join(f"{n} {mode}" for mode, n in sorted(modes.items()))
        told = f"rows scored in several ways, which do not compare: {counted} (rl_data.allow_mixed takes them)"
        reader.faults.append(told)
    if reader.faults:
        raise faults_of(path, reader.faults, expected)
    groups, report = take_groups(path, blocks, reader.report, pool_size=pools.size, expected=expected)
    report.counts.update({f"rows_{mode}": n for mode, n in modes.items()})
    if unions:
        filled = pools.size * len(unions) - sum(unions)
        report.counts.update(union_min=min(unions), union_max=max(unions), filled_pool_ids=filled)
    return groups, report


class _OriginalFile:
    """Turns the queries of one file into k64 v3 blocks.

    Attributes:
        report: what became of rows and fields.
        faults: what is wrong, by query.
        unions: train examples that a query's rows use, a number a query.
        modes: kept rows by how they were scored.
    """

    def __init__(self, form: Format, train: Sequence[Example], pools: PoolRule) -> None:
        self._form, self._pools = form, pools
        self._examples = {str(example.example_id): example for example in train}
        self._images = np.array([example.image_digest for example in train])
        self.report, self.modes = ImportReport(), Counter[str]()
        self._counts = self.report.counts
        self.faults, self.unions = list[str](), list[int]()

    def k64_block(self, key: str, block: Any) -> dict[str, Any] | None:
        """Return a query's block as k64 v3 has it; None where it is faulty or has no sound row."""
        if key in self._form.beside:
            self._counts[f"dropped_keys_{key}"] += 1
            return None
        example = self._examples.get(key)
        if example is None:
            self.faults.append(f"query {key}: no train position of 0..{len(self._examples) - 1} in decimal digits")
            return None
        query = _Query(example, self._form, len(self._examples), self._counts)
        rows = query.rows(block)
        self.faults += [f"query {key}: {fault}" for fault in query.faults]
        if query.faults:
            return None
        if not rows:
            self.report.empty_queries.append(example.example_id)
            return None
        used = sorted({i for row in rows for i in row["pointer_global"]})
        pool = used + _drawn(example.example_id, used, self._images, self._pools)
        if len(pool) != self._pools.size:
            held = f"its rows use {len(used)} train examples, and {len(pool) - len(used)} may fill its pool up"
            self.faults.append(f"query {key}: {held}; pools.size is {self._pools.size}")
            return None
        self.unions.append(len(used))
        self.modes.update(str(row["vqa_eval_mode"]) for row in rows)
        position = {i: at for at, i in enumerate(pool)}
        placed = [row | {"pointer": [position[i] for i in row["pointer_global"]]} for row in rows]
        return {"query": query.described(block), "candidate_pool_ids": pool, "pointer_candidates": placed}


class _Query:
    """One query's rows, with what is wrong with them."""

    def __init__(self, example: Example, form: Format, n_train: int, counts: Counter[str]) -> None:
        self._example, self._form, self._n_train, self._counts = example, form, n_train, counts
        self.faults: list[str] = []

    def rows(self, block: Any) -> list[dict[str, Any]]:
        """Return the kept rows, their train positions as `pointer_global`; `faults` says what is wrong."""
        if not isinstance(block, dict):
            self.faults.append("no object")
        elif given_up := [name for name in UNRESCUED if name in block]:
            self.faults.append(f"'{given_up[0]}': the original's repair has failed on it")
        else:
            self.faults += self._form.block.faults(block) or self._of_query(block.get("query"))
        if self.faults:
            return []
        self._counts.update(f"dropped_fields_{name}" for name in sorted(UNREAD) if name in block)
        stated = block["pointer_candidates"] if "pointer_candidates" in block else self._of_beams(block)
        if not isinstance(stated, list):
            self.faults.append("'pointer_candidates': no array")
            return []
        kept = [(at, row) for at, row in enumerate(stated) if not has_failed(row, self._counts)]
        return [self._row(row, f"pointer_candidates[{at}]") for at, row in kept]

    def described(self, block: Mapping[str, Any]) -> dict[str, Any]:
        """Return the query block: what the file says, and of the train example what it leaves out."""
        example = self._example
        ours = {
            "query_id": example.example_id,
            "question_id": example.question_id,
            "image_id": example.image_id,
            "question": example.question,
            "gt_answers_raw": list(example.answers),
            "gt_answers_norm": [normalise_answer(answer) for answer in example.answers],
        }
        if self._form.query is None:
            return ours
        theirs = dict(block["query"])
        if self._form.answer:
            theirs["gt_answers_raw"] = [answer["answer"] for answer in theirs["gt_answers_raw"]]
        return ours | theirs

    def _row(self, row: Any, place: str) -> dict[str, Any]:
        faults = self._faults_of(row)
        self.faults += [f"{place}.{fault}" if fault.startswith("'") else f"{place}: {fault}" for fault in faults]
        if faults:
            return {}
        missing: dict[str, Any] = FILLED | dict(self._form.filled)
        self._counts.update(f"dropped_fields_{name}" for name in sorted(UNREAD) if name in row)
        self._counts.update(f"filled_fields_{name}" for name in missing if name not in row)
        known = missing | {name: value for name, value in row.items() if name not in UNREAD}
        if "vqa_correct" not in row:
            known["vqa_correct"] = int(known["vqa_acc_score"] > 0)
            self._counts["filled_fields_vqa_correct"] += 1
        known["pointer_global"] = known.pop("pointer")
        return known

    def _faults_of(self, row: Any) -> list[str]:
        if not isinstance(row, dict):
            return ["no object"]
        if is_copied(row):
            return [COPIED]
        if faults := min((kind.faults(row) for kind in self._form.rows), key=len):
            return faults
        return [*self._of_pointer(row["pointer"]), *self._of_accuracy(row)]

    def _of_query(self, query: Any) -> list[str]:
        if self._form.query is None:
            return []
        if not isinstance(query, dict):
            return ["'query': no object"]
        if faults := self._form.query.faults(query):
            return [f"query: {fault}" for fault in faults]
        answers = query["gt_answers_raw"]
        if not isinstance(answers, list) or any(isinstance(a, dict) != bool(self._form.answer) for a in answers):
            kind = "objects" if self._form.answer else "texts"
            return [f"'query.gt_answers_raw': no array of {kind} alone"]
        if self._form.answer is None:
            return []
        found = [fault for answer in answers for fault in self._form.answer.faults(answer)]
        return [f"query.gt_answers_raw: {fault}" for fault in dict.fromkeys(found)]

    def _of_pointer(self, pointer: Any) -> Iterator[str]:
        if not isinstance(pointer, list) or any(type(i) is not int for i in pointer):
            yield "'pointer': no array of whole numbers"
        elif not 0 < len(set(pointer)) == len(pointer):
            yield f"'pointer': empty or repeats: {pointer}"
        elif self._example.example_id in pointer:
            yield "'pointer': holds the query itself"
        elif beyond := [i for i in pointer if not 0 <= i < self._n_train]:
            yield f"'pointer': no train example {beyond[0]}"

    def _of_accuracy(self, row: Mapping[str, Any]) -> Iterator[str]:
        accuracy = row.get("vqa_acc_score", 0.0)
        n = len(self._example.answers)
        levels = MINED_LEVELS if row.get("vqa_eval_mode") == MINED else levels_of(n)
        if type(accuracy) not in (int, float):
            yield "'vqa_acc_score': no number"
        elif not 0 <= accuracy <= 1 or all(abs(accuracy - level) > ACCURACY_TOLERANCE for level in levels):
            shown = ", ".join(f"{level:.4g}" for level in levels)
            yield f"'vqa_acc_score': {accuracy} is none of {shown}, the accuracies of {n} answers"

    def _of_beams(self, block: Mapping[str, Any]) -> Any:
        """Return beam data as rows: ids in prompt order, the query last; a score is the last step's gain."""
        ids, scores = block["id_list"], block["score_list"]
        if not (isinstance(ids, list) and isinstance(scores, list) and len(ids) == len(scores)):
            self.faults.append("'id_list' and 'score_list': no arrays of one length")
            return []
        for at, row in enumerate(ids):
            if not isinstance(row, list) or row[-1:] != [self._example.example_id]:
                self.faults.append(f"'id_list[{at}]': no array that ends with the query")
            elif block.get("few_shot_num", len(row) - 1) != len(row) - 1:
                self.faults.append(f"'id_list[{at}]': {len(row) - 1} examples, few_shot_num is {block['few_shot_num']}")
        return [
            {"pointer": row[:-1], "gen_method": "beam", "beam_rank": rank, "beam_score": score}
            for rank, (row, score) in enumerate(zip(ids, scores, strict=True))
            if not self.faults
        ]


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
