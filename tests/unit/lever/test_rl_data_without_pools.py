"""A generator's own RL data: what they hold, what is refused, and how pools come of train positions."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from builders import example

from lever_pipe.base import storage
from lever_pipe.base.errors import ConfigError, RecordError
from lever_pipe.base.parsing import parse_model
from lever_pipe.base.records import Pool, Proposal, RlGroup
from lever_pipe.experiment.rl_data_config import RlData
from lever_pipe.experiment.stage_configs import ImportRlDataConfig
from lever_pipe.lever.rl_data_files import PoolRule, import_groups, levels_of, require_train_examples
from lever_pipe.stages.rl_data import import_rl_data

N, K = 14, 8
TRAIN = [example(i, answers=("yes",) * 2 + ("no",) * 8, answer="no") for i in range(N)]
"""To "yes" the accuracy is .6, to "no" 1."""
RULE = PoolRule(size=K, seed=5, exclude_same_image=True)
Document = dict[str, Any]

FIRST = {
    "pointer": [9, 4], "beam_rank": 0, "beam_score": 0.03, "logprob_score": -9.8, "gen_method": "beam",
    "temperature": None, "vqa_pred_answer": "yes", "vqa_correct": 1, "vqa_acc_score": 0.6,
}  # fmt: skip
SCORES = {"vqa_pred_answer": "maybe", "vqa_correct": 0, "vqa_acc_score": 0.0}


def golden() -> Document:
    """Return a file of two queries, 3 and 0; of query 3 the rows use the train examples 9 and 4, then others."""
    rows = [FIRST, FIRST | {"pointer": [11, 2]} | SCORES]
    document = {"3": {"pointer_candidates": rows}, "0": {"pointer_candidates": [FIRST]}}
    return json.loads(json.dumps(document))


def taken(folder: Path, document: object, rule: PoolRule = RULE) -> tuple[list[RlGroup], dict[str, int]]:
    path = folder / "original.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return import_groups(path, "a", TRAIN, rule)


def fault(folder: Path, document: object) -> str:
    with pytest.raises(RecordError) as caught:
        taken(folder, document)
    return str(caught.value)


def test_a_sound_file_comes_in_and_means_this_train_split(tmp_path: Path) -> None:
    groups, _ = taken(tmp_path, golden())
    assert [group.query.query_id for group in groups] == [3, 0]  # the file's order
    assert groups[0].pointer_candidates[0].pointer_global == (9, 4)
    assert groups[0].query.question_id == TRAIN[3].question_id
    assert groups[0].query.gt_answers_raw == TRAIN[3].answers
    require_train_examples(groups, TRAIN, source="x")


def test_a_pool_is_the_sorted_union_filled_up_and_positions_map_back(tmp_path: Path) -> None:
    groups, report = taken(tmp_path, golden())
    sizes = []
    for group in groups:
        used = sorted({i for row in group.pointer_candidates for i in row.pointer_global})
        assert list(group.candidate_pool_ids[: len(used)]) == used
        assert len(set(group.candidate_pool_ids)) == K
        assert group.query.query_id not in group.candidate_pool_ids
        for row in group.pointer_candidates:
            assert tuple(group.candidate_pool_ids[at] for at in row.pointer) == row.pointer_global
        sizes.append(len(used))
    assert (report["union_min"], report["union_max"]) == (min(sizes), max(sizes))
    assert report["filled_pool_ids"] == sum(K - size for size in sizes)


def test_what_fills_a_pool_is_the_querys_own_draw(tmp_path: Path) -> None:
    both, _ = taken(tmp_path, golden())
    alone, _ = taken(tmp_path, {"3": golden()["3"]})
    assert both[0] == alone[0]
    other, _ = taken(tmp_path, {"3": golden()["3"]}, RULE._replace(seed=6))
    assert other[0].candidate_pool_ids != alone[0].candidate_pool_ids
    assert other[0].candidate_pool_ids[:4] == alone[0].candidate_pool_ids[:4] == (2, 4, 9, 11)


def test_queries_with_the_same_rows_draw_apart(tmp_path: Path) -> None:
    rows = {"pointer_candidates": [FIRST]}
    groups, _ = taken(tmp_path, {str(query_id): rows for query_id in (0, 3, 5)})
    ranks = []
    for group in groups:
        eligible = [i for i in range(N) if i not in (group.query.query_id, 4, 9)]
        ranks.append(tuple(eligible.index(i) for i in group.candidate_pool_ids[2:]))
    assert len(set(ranks)) == 3


def test_what_fills_a_pool_shows_another_image(tmp_path: Path) -> None:
    path = tmp_path / "original.json"
    path.write_text(json.dumps({"3": golden()["3"]}))
    twins = [e.model_copy(update={"image_digest": "same"}) if e.example_id in (0, 1, 3, 5) else e for e in TRAIN]
    for seed in range(5):
        groups, _ = import_groups(path, "a", twins, PoolRule(K, seed, True))
        assert not {0, 1, 5} & set(groups[0].candidate_pool_ids)
    free = PoolRule(13, 0, False)
    groups, _ = import_groups(path, "a", twins, free)
    assert sorted(groups[0].candidate_pool_ids) == [i for i in range(N) if i != 3]


HARMS: dict[str, tuple[Callable[[Document, Document], object], str]] = {
    "key": (lambda _, row: row.update(vqa_acc=1), "'vqa_acc': unknown key"),
    "missing": (lambda _, row: row.pop("vqa_acc_score"), "'vqa_acc_score': missing"),
    "type": (lambda _, row: row.update(pointer=["9", 4]), "'pointer': no array of whole numbers"),
    "truth": (lambda _, row: row.update(pointer=[True, 4]), "'pointer': no array of whole numbers"),
    "duplicate": (lambda _, row: row.update(pointer=[4, 4]), "'pointer': empty or repeats: [4, 4]"),
    "empty": (lambda _, row: row.update(pointer=[]), "'pointer': empty or repeats: []"),
    "itself": (lambda _, row: row.update(pointer=[3, 4]), "'pointer': holds the query itself"),
    "id": (lambda _, row: row.update(pointer=[N, 4]), f"'pointer': no train example {N}"),
    "level": (lambda _, row: row.update(vqa_acc_score=0.5), "0.5 is none of 0, 0.3, 0.6, 0.9, 1"),
    "number": (lambda _, row: row.update(vqa_acc_score="0.6"), "'vqa_acc_score': no number"),
    "answer": (lambda _, row: row.update(vqa_pred_answer=3), "'pointer_candidates[0].vqa_pred_answer'"),
    "copied": (lambda _, row: row.update(source_query=5), "its scores are another query's"),
    "transfer": (lambda _, row: row.update(gen_method="global_positive_transfer"), "its scores are another query's"),
    "mode": (lambda _, row: row.update(vqa_eval_mode="simple_match"), "scores that do not compare"),
    "row": (lambda block, _: block["pointer_candidates"].insert(0, 3), "pointer_candidates[0]: no object"),
    "rows": (lambda block, _: block.update(pointer_candidates={}), "'pointer_candidates': no array"),
    "block": (lambda block, _: block.update(pool=[]), "'pool': unknown key"),
    "lengths": (lambda _, row: row.update(pointer=[9, 4, 5]), "selections of several lengths: {2: 2, 3: 1}"),
}


@pytest.mark.parametrize("harm", HARMS)
def test_a_harmed_file_is_refused_by_query_row_and_key(tmp_path: Path, harm: str) -> None:
    document = golden()
    change, words = HARMS[harm]
    change(document["3"], document["3"]["pointer_candidates"][0])
    message = fault(tmp_path, document)
    assert words in message
    assert "original.json: expected RL data of format a" in message
    assert "query 3" in message or harm == "lengths"


@pytest.mark.parametrize("key", [str(N), "03", "+3", "-1", "3.0", "three", "٣", "", "9" * 40])
def test_a_query_is_a_train_position_in_decimal_digits(tmp_path: Path, key: str) -> None:
    document = golden()
    document[key] = document.pop("3")
    assert f"no train position of 0..{N - 1} in decimal digits" in fault(tmp_path, document)


def test_one_query_twice_is_refused(tmp_path: Path) -> None:
    text = json.dumps(golden())
    assert "'3'" in fault(tmp_path, text[:-1] + ', "3": ' + json.dumps(golden()["3"]) + "}")


def test_a_union_beyond_the_pool_is_a_named_fault(tmp_path: Path) -> None:
    document = golden()
    rows = [FIRST | {"pointer": pair} for pair in ([9, 4], [5, 6], [7, 8], [10, 11], [12, 13])]
    document["3"]["pointer_candidates"] = rows
    assert f"query 3: its rows use 10 train examples, and 0 may fill its pool up; pools.size is {K}" in fault(
        tmp_path, document
    )


def test_what_a_row_lacks_is_filled_and_counted(tmp_path: Path) -> None:
    groups, report = taken(tmp_path, golden())
    row = groups[0].pointer_candidates[0]
    assert (row.vqa_correct, row.vqa_acc_score, row.vqa_gt_prob, row.vqa_eval_mode) == (1, 0.6, 0.0, "unstated")
    assert report["filled_fields_vqa_gt_prob"] == 3


def test_counts_of_three_queries_by_hand(tmp_path: Path) -> None:
    document = golden()
    document["3"]["pointer_candidates"] += [FIRST | {"vqa_eval_mode": "fallback"}] * 2
    document["5"] = {"pointer_candidates": [FIRST | SCORES, FIRST | SCORES | {"pointer": [7, 9]}]}
    document["6"] = {"pointer_candidates": [FIRST | {"vqa_eval_mode": "error"}]}
    path = tmp_path / "original.json"
    path.write_text(json.dumps(document))
    storage.write_rows(tmp_path / "train.jsonl", TRAIN)
    names = ("rl_data", "summary", "proposals", "train_pools")
    config = ImportRlDataConfig(import_format="a", pool_size=K, pool_seed=5, exclude_same_image=True)
    made = {name: tmp_path / name for name in names}
    assert import_rl_data(original=path, train_examples=tmp_path / "train.jsonl", **made, config=config) == 3
    # Query 3: .6 and 0 with 2, 4, 9, 11; query 0: .6 with 4, 9; query 5: 0 and 0 with 4, 7, 9.
    expected = {
        "queries": 3, "trajectories": 5, "empty_queries": 1, "dropped_rows_fallback": 2, "dropped_rows_error": 1,
        "positive_trajectories": 2, "queries_with_positive": 2, "all_negative_queries": 1, "all_positive_queries": 1,
        "mixed_queries": 1, "union_min": 2, "union_max": 4, "filled_pool_ids": 3 * K - 9,
        "accuracy_0": 3, "accuracy_0.6": 2,
    }  # fmt: skip
    summary = storage.read_json(made["summary"])
    assert {name: summary[name] for name in expected} == expected
    proposals = storage.read_rows(made["proposals"], Proposal)
    assert [(p.query_id, p.pointer_global) for p in proposals] == [
        (3, (9, 4)), (3, (11, 2)), (0, (9, 4)), (5, (9, 4)), (5, (7, 9)),
    ]  # fmt: skip
    pools = {pool.query_id: pool.candidates for pool in storage.read_rows(made["train_pools"], Pool)}
    assert list(pools) == [0, 3, 5]
    assert all(tuple(pools[p.query_id][at] for at in p.pointer) == p.pointer_global for p in proposals)


def test_accuracies_that_answers_can_give() -> None:
    assert levels_of(10) == pytest.approx((0, 0.3, 0.6, 0.9, 1))
    assert levels_of(1) == (0, 1)


def test_another_format_is_no_choice() -> None:
    with pytest.raises(ConfigError, match=r"import_format.*'a' or 'g'"):
        parse_model(RlData, {"import_from": "x.json", "import_format": "i"}, source="x")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"rescore": True}, "must be false without import_from"),
        ({"rescore": True, "import_from": "x.json", "diversity_budget": 2}, "must be 0 with rescore"),
    ],
)
def test_only_what_was_imported_is_rescored(values: Document, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_model(RlData, values, source="x")
