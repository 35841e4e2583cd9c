"""The original's files of RL data: fields read, rows dropped, files refused, and no row lost between them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from builders import example

from lever_pipe.base import storage
from lever_pipe.base.errors import RecordError
from lever_pipe.base.records import Pool, Proposal, RlGroup
from lever_pipe.experiment.rl_data import ImportRlDataConfig
from lever_pipe.lever.rl_data_files import PoolRule, import_groups, require_train_examples, write_original
from lever_pipe.lever.trajectories import summarise
from lever_pipe.stages.rl_data import import_rl_data

Document = dict[str, Any]
Imported = tuple[list[RlGroup], dict[str, int]]
N, K = 14, 8
TRAIN = [example(i, answers=("yes",) * 2 + ("no",) * 8, answer="no") for i in range(N)]
"""To "yes" the accuracy is .6, to "no" 1."""
RULE = PoolRule(size=K, seed=5, exclude_same_image=True)

# The published example of format g.
QUERY = {
    "query_id": 4711, "question_id": 2971475, "image_id": 297147, "question": "what sport is this?",
    "gt_answers_raw": ["race", "race", "motocross"], "gt_answers_norm": ["race", "race", "motocross"],
}  # fmt: skip
POOLED = {
    "pointer": [1, 0], "pointer_global": [205, 88], "pointer_pos": [205, 88], "gen_method": "beam", "beam_rank": 0,
    "beam_score": 0.03, "logprob_score": -9.8, "temperature": None, "vqa_raw_generation": "motocross",
    "vqa_pred_answer": "motocross", "vqa_correct": 1, "vqa_acc_score": 0.6, "vqa_gt_prob": 2.1e-07,
    "vqa_rel_token_f1": 1.0, "vqa_rel_edit_sim": 1.0, "vqa_rel_score": 1.0, "vqa_eval_mode": "vqaEval",
    "eval_split_used": "train", "eval_failed": False,
}  # fmt: skip
WRONG = {"vqa_pred_answer": "chess", "vqa_correct": 0, "vqa_acc_score": 0.0}
# A row of format a.
PLAIN = {
    "pointer": [9, 4], "beam_rank": 0, "beam_score": 0.03, "logprob_score": -9.8, "gen_method": "beam",
    "temperature": None, "vqa_pred_answer": "yes", "vqa_correct": 1, "vqa_acc_score": 0.6,
}  # fmt: skip


def sound(form: str) -> Document:
    """Return a file of format g with one query of two rows, or of format a with two queries, 3 and 0."""
    if form == "g":
        second = POOLED | {"pointer": [2, 3], "pointer_global": [97, 13], "pointer_pos": [1, 2], "gen_method": "random"}
        block = {"query": QUERY, "candidate_pool_ids": [88, 205, 97, 13], "pointer_candidates": [POOLED, second]}
        return json.loads(json.dumps({"_meta": {"fix_version": "v3", "note": "x"}, "4711": block}))
    rows = [PLAIN, PLAIN | {"pointer": [11, 2]} | WRONG]
    return json.loads(json.dumps({"3": {"pointer_candidates": rows}, "0": {"pointer_candidates": [PLAIN]}}))


def imported(folder: Path, document: object, form: str, rule: PoolRule = RULE) -> Imported:
    path = folder / "original.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return import_groups(path, form, TRAIN, rule if form == "a" else rule._replace(size=4))


def problem(folder: Path, document: object, form: str) -> str:
    with pytest.raises(RecordError) as caught:
        imported(folder, document, form)
    return str(caught.value)


def test_reads_the_published_example(tmp_path: Path) -> None:
    groups, counts = imported(tmp_path, sound("g"), "g")
    first, second = groups[0].pointer_candidates
    assert (first.query_id, first.pointer, first.pointer_global) == (4711, (1, 0), (205, 88))
    assert first.vqa_gt_logprob is None
    assert second.pointer_global == (97, 13)  # the stale pointer_pos differs and is ignored
    assert groups[0].query.gt_answers_raw == ("race", "race", "motocross")
    # of three answers two name the race: no way of scoring gives the published 0.6
    assert counts == {"empty_queries": 0, "other_accuracies": 2}


def test_an_accuracy_that_one_way_of_scoring_gives_is_no_other_one(tmp_path: Path) -> None:
    document = sound("g")
    document["4711"]["query"] |= {"gt_answers_raw": ["Yes!"] * 4, "gt_answers_norm": ["yes"] * 4}
    # Unanimous references are compared as they stand, which "yes" misses, or all are normalised.
    for row, accuracy in zip(document["4711"]["pointer_candidates"], (0.0, 1.0), strict=True):
        row |= {"vqa_pred_answer": "yes", "vqa_correct": int(accuracy), "vqa_acc_score": accuracy}
    assert imported(tmp_path, document, "g")[1] == {"empty_queries": 0, "other_accuracies": 0}


@pytest.mark.parametrize("form", "ga")
def test_failed_rows_are_dropped_and_counted(tmp_path: Path, form: str) -> None:
    document, row = sound(form), {"g": POOLED, "a": PLAIN}[form]
    rows = document[next(key for key in document if key != "_meta")]["pointer_candidates"]
    rows += [
        row | {"eval_failed": True, "vqa_acc_score": None},  # a failed row may lack its scores
        row | {"vqa_eval_mode": "error"},
        row | {"vqa_eval_mode": "fallback"},
        row | {"vqa_eval_mode": "fallback", "eval_failed": True},
    ]
    groups, counts = imported(tmp_path, document, form)
    assert len(groups[0].pointer_candidates) == 2
    dropped = {"dropped_rows_eval_failed": 1, "dropped_rows_error": 1, "dropped_rows_fallback": 2}
    assert {name: n for name, n in counts.items() if name.startswith("dropped_rows")} == dropped
    for row in rows:
        row["eval_failed"] = True
    again, counts = imported(tmp_path, document, form)
    assert len(again) == len(groups) - 1
    assert counts["empty_queries"] == 1


Change = Callable[[Document, Document], object]
CORRUPTIONS: list[tuple[str, Change, str]] = [
    ("g", lambda _, row: row.update(query_id=4712), "query_id is 4712"),
    ("g", lambda _, row: row.update(gen_method="global_positive_transfer"), "its scores are another query's"),
    ("g", lambda block, row: block["pointer_candidates"].append(row | WRONG),
     "kept rows 0 and 2: pointer [1, 0] has the accuracies 0.6 and 0"),
    ("a", lambda _, row: row.update(vqa_acc=1), "'pointer_candidates[0].vqa_acc': unknown key"),
    ("a", lambda _, row: row.update(pointer=["9", 4]), "'pointer_candidates[0].pointer[0]': Input should be a valid"),
    ("a", lambda _, row: row.update(pointer=[4, 4]), "pointer is empty or repeats"),
    ("a", lambda _, row: row.update(pointer=[]), "pointer is empty or repeats: []"),
    ("a", lambda _, row: row.update(pointer=[3, 4]), "its pool holds the query itself"),
    ("a", lambda _, row: row.update(vqa_acc_score="0.6"), "'pointer_candidates[0].vqa_acc_score'"),
    ("a", lambda _, row: row.update(vqa_correct=0), "vqa_correct is 0 and vqa_acc_score 0.6"),
    ("a", lambda _, row: row.update(source_query=5), "'pointer_candidates[0].source_query': unknown key"),
    ("a", lambda _, row: row.update(gen_method="global_positive_transfer"), "its scores are another query's"),
    ("a", lambda _, row: row.update(vqa_eval_mode="simple_match"), "'pointer_candidates[0].vqa_eval_mode'"),
    ("a", lambda block, _: block["pointer_candidates"].insert(0, 3), "'pointer_candidates[0]': Input should be an obj"),
    ("a", lambda block, row: block["pointer_candidates"].extend(row | {"pointer": [p, p + 1]} for p in (5, 7, 12)),
     f"its pool has 10 entries, pools.size is {K}"),
    ("a", lambda _, row: row.update(pointer=[9, 4, 5]), "selections of several lengths: {2: 2, 3: 1}"),
]  # fmt: skip


@pytest.mark.parametrize(("form", "change", "words"), CORRUPTIONS)
def test_a_corrupted_file_is_refused_by_query_row_and_key(
    tmp_path: Path, form: str, change: Change, words: str
) -> None:
    document = sound(form)
    query = {"g": "4711", "a": "3"}[form]
    change(document[query], document[query]["pointer_candidates"][0])
    message = problem(tmp_path, document, form)
    assert words in message
    assert "original.json" in message
    assert f"query {query}: " in message or "several lengths" in words or "finite number" in words


@pytest.mark.parametrize("key", [str(N), "03", "+3", "-1", "3.0", "three", "٣", "", "9" * 40])
def test_a_query_without_its_text_is_a_train_position_in_decimal_digits(tmp_path: Path, key: str) -> None:
    document = sound("a")
    document[key] = document.pop("3")
    assert f"no train position of 0..{N - 1} in decimal digits" in problem(tmp_path, document, "a")


@pytest.mark.parametrize("again", [{}, WRONG | {"vqa_eval_mode": "simple_match"}])
def test_a_selection_may_stand_twice(tmp_path: Path, again: Document) -> None:
    """With one accuracy, or with different values from two ways of scoring."""
    document = sound("g")
    document["4711"]["pointer_candidates"].append(POOLED | again)
    groups, _ = imported(tmp_path, document, "g")
    assert summarise(groups)["duplicate_selections"] == 1


def test_a_pool_is_the_sorted_union_filled_up_and_positions_map_back(tmp_path: Path) -> None:
    groups, _ = imported(tmp_path, sound("a"), "a")
    assert [group.query.query_id for group in groups] == [3, 0]  # the file's order
    assert groups[0].pointer_candidates[0].pointer_global == (9, 4)
    row = groups[0].pointer_candidates[0]
    assert (row.vqa_correct, row.vqa_acc_score, row.vqa_gt_prob, row.vqa_eval_mode) == (1, 0.6, 0.0, "unstated")
    for group in groups:
        used = sorted({i for row in group.pointer_candidates for i in row.pointer_global})
        assert list(group.candidate_pool_ids[: len(used)]) == used
        assert len(set(group.candidate_pool_ids)) == K
        assert group.query.query_id not in group.candidate_pool_ids
        for row in group.pointer_candidates:
            assert tuple(group.candidate_pool_ids[at] for at in row.pointer) == row.pointer_global
    require_train_examples(groups, TRAIN, source="x")


def test_what_fills_a_pool_is_the_querys_own_draw(tmp_path: Path) -> None:
    both, _ = imported(tmp_path, sound("a"), "a")
    alone, _ = imported(tmp_path, {"3": sound("a")["3"]}, "a")
    assert both[0] == alone[0]
    other, _ = imported(tmp_path, {"3": sound("a")["3"]}, "a", RULE._replace(seed=6))
    assert other[0].candidate_pool_ids != alone[0].candidate_pool_ids
    assert other[0].candidate_pool_ids[:4] == alone[0].candidate_pool_ids[:4] == (2, 4, 9, 11)
    groups, _ = imported(tmp_path, {str(i): {"pointer_candidates": [PLAIN]} for i in (0, 3, 5)}, "a")
    ranks = []
    for group in groups:
        eligible = [i for i in range(N) if i not in (group.query.query_id, 4, 9)]
        ranks.append(tuple(eligible.index(i) for i in group.candidate_pool_ids[2:]))
    assert len(set(ranks)) == 3  # queries with the same rows have separate draws


def test_what_fills_a_pool_shows_another_image(tmp_path: Path) -> None:
    path = tmp_path / "original.json"
    path.write_text(json.dumps({"3": sound("a")["3"]}))
    twins = [e.model_copy(update={"image_digest": "same"}) if e.example_id in (0, 1, 3, 5) else e for e in TRAIN]
    for seed in range(5):
        groups, _ = import_groups(path, "a", twins, RULE._replace(seed=seed))
        assert not {0, 1, 5} & set(groups[0].candidate_pool_ids)
    groups, _ = import_groups(path, "a", twins, PoolRule(13, 0, False))
    assert sorted(groups[0].candidate_pool_ids) == [i for i in range(N) if i != 3]


def test_counts_of_three_queries_by_hand(tmp_path: Path) -> None:
    document = sound("a")
    document["3"]["pointer_candidates"] += [PLAIN | {"vqa_eval_mode": "fallback"}] * 2
    document["5"] = {"pointer_candidates": [PLAIN | WRONG, PLAIN | WRONG | {"pointer": [7, 9]}]}
    document["6"] = {"pointer_candidates": [PLAIN | {"vqa_eval_mode": "error"}]}
    path = tmp_path / "original.json"
    path.write_text(json.dumps(document))
    storage.write_rows(tmp_path / "train.jsonl", TRAIN)
    names = ("rl_data", "summary", "proposals", "train_pools")
    config = ImportRlDataConfig(import_format="a", pool_size=K, pool_seed=5, exclude_same_image=True)
    outputs = {name: tmp_path / name for name in names}
    assert import_rl_data(original=path, train_examples=tmp_path / "train.jsonl", **outputs, config=config) == 3
    # Query 3: .6 and 0 with 2, 4, 9, 11; query 0: .6 with 4, 9; query 5: 0 and 0 with 4, 7, 9.
    expected = {
        "queries": 3, "trajectories": 5, "empty_queries": 1, "dropped_rows_fallback": 2, "dropped_rows_error": 1,
        "positive_trajectories": 2, "queries_with_positive": 2, "all_negative_queries": 1, "all_positive_queries": 1,
        "mixed_queries": 1, "other_accuracies": 0, "accuracy_0": 3, "accuracy_0.6": 2,
    }  # fmt: skip
    summary = storage.read_json(outputs["summary"])
    assert {name: summary[name] for name in expected} == expected
    proposals = storage.read_rows(outputs["proposals"], Proposal)
    assert [(p.query_id, p.pointer_global) for p in proposals] == [
        (3, (9, 4)), (3, (11, 2)), (0, (9, 4)), (5, (9, 4)), (5, (7, 9)),
    ]  # fmt: skip
    pools = {pool.query_id: pool.candidates for pool in storage.read_rows(outputs["train_pools"], Pool)}
    assert list(pools) == [0, 3, 5]
    assert all(tuple(pools[p.query_id][at] for at in p.pointer) == p.pointer_global for p in proposals)


def test_export_of_an_import_keeps_every_known_field(tmp_path: Path) -> None:
    groups, _ = imported(tmp_path, sound("g"), "g")
    write_original(tmp_path / "again.json", groups)
    again = storage.read_json(tmp_path / "again.json")
    assert again["_meta"] == {"fix_version": "v3"}
    assert (again["4711"]["query"], again["4711"]["candidate_pool_ids"]) == (QUERY, [88, 205, 97, 13])
    theirs = sound("g")["4711"]["pointer_candidates"]
    for ours, row in zip(again["4711"]["pointer_candidates"], theirs, strict=True):
        known = {name: value for name, value in row.items() if name != "pointer_pos"}
        assert {name: ours[name] for name in known} == known
        assert {name for name in ours if name not in known} == {"similarity_score", "vqa_gt_logprob"}
