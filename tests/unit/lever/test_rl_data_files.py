"""The original RL data format: what is read, dropped and refused, and that nothing is lost on the way."""

from __future__ import annotations

import copy
import itertools
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from builders import example, ids, pool, rl_groups, trajectory
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lever_pipe.base import storage
from lever_pipe.base.errors import RecordError
from lever_pipe.base.records import RlGroup, RlQuery
from lever_pipe.experiment.rl_data_config import Balance
from lever_pipe.lever.rl_data_files import (
    import_original,
    require_train_examples,
    write_original,
)
from lever_pipe.lever.trajectories import keep_balanced, make_group, summarise

QUERY = {
    "query_id": 4711,
    "question_id": 2971475,
    "image_id": 297147,
    "question": "what sport is this?",
    "gt_answers_raw": ["race", "race", "motocross"],
    "gt_answers_norm": ["race", "race", "motocross"],
}
ROW = {
    "pointer": [1, 0],
    "pointer_global": [205, 88],
    "pointer_pos": [205, 88],
    "gen_method": "beam",
    "beam_rank": 0,
    "beam_score": 0.03,
    "logprob_score": -9.8,
    "temperature": None,
    "vqa_raw_generation": "motocross",
    "vqa_pred_answer": "motocross",
    "vqa_correct": 1,
    "vqa_acc_score": 0.6,
    "vqa_gt_prob": 2.1e-07,
    "vqa_rel_token_f1": 1.0,
    "vqa_rel_edit_sim": 1.0,
    "vqa_rel_score": 1.0,
    "vqa_eval_mode": "vqaEval",
    "eval_split_used": "train",
    "eval_failed": False,
}
WRONG = ROW | {"vqa_pred_answer": "chess", "vqa_correct": 0, "vqa_acc_score": 0.0}
"""The answer to the same prompt, scored otherwise."""


@pytest.fixture
def document() -> dict[str, Any]:
    """The published example, with a second row."""
    second = ROW | {"pointer": [2, 3], "pointer_global": [97, 13], "pointer_pos": [1, 2], "gen_method": "random"}
    block = {"query": QUERY, "candidate_pool_ids": [88, 205, 97, 13], "pointer_candidates": [ROW, second]}
    return copy.deepcopy({"_meta": {"fix_version": "v3", "note": "x"}, "4711": block})


def write(folder: Path, document: object) -> Path:
    path = folder / "original.json"
    path.write_text(json.dumps(document))
    return path


def fault(folder: Path, document: object) -> str:
    with pytest.raises(RecordError) as caught:
        import_original(write(folder, document))
    return str(caught.value)


def test_reads_the_published_example(tmp_path: Path, document: dict[str, Any]) -> None:
    groups, report = import_original(write(tmp_path, document))
    assert len(groups) == 1
    first, second = groups[0].pointer_candidates
    assert (first.query_id, first.pointer, first.pointer_global) == (4711, (1, 0), (205, 88))
    assert first.vqa_gt_logprob is None
    assert second.pointer_global == (97, 13)  # the stale pointer_pos says otherwise and is ignored
    assert groups[0].query.gt_answers_raw == ("race", "race", "motocross")
    assert report == {
        "queries": 1,
        "trajectories": 2,
        "dropped_fields_pointer_pos": 2,
        "filled_fields_vqa_gt_logprob": 2,
        "empty_queries": 0,
        "other_accuracies": 2,  # of three answers two name the race: no way of scoring gives the published 0.6
    }


def test_failed_rows_are_dropped_and_counted(tmp_path: Path, document: dict[str, Any]) -> None:
    rows = document["4711"]["pointer_candidates"]
    rows += [
        ROW | {"eval_failed": True, "vqa_acc_score": None},  # a failed row may lack its scores
        ROW | {"vqa_eval_mode": "error"},
        ROW | {"vqa_eval_mode": "fallback"},
        ROW | {"vqa_eval_mode": "fallback", "eval_failed": True},
    ]
    groups, report = import_original(write(tmp_path, document))
    assert len(groups[0].pointer_candidates) == 2
    assert {name: n for name, n in report.items() if name.startswith("dropped_rows")} == {
        "dropped_rows_eval_failed": 1,
        "dropped_rows_error": 1,
        "dropped_rows_fallback": 2,
    }


def test_a_query_without_any_sound_row_is_dropped_and_named(tmp_path: Path, document: dict[str, Any]) -> None:
    for row in document["4711"]["pointer_candidates"]:
        row["eval_failed"] = True
    groups, report = import_original(write(tmp_path, document))
    assert groups == []
    assert report["empty_queries"] == 1


def test_fields_of_later_generators_are_dropped_and_counted(tmp_path: Path, document: dict[str, Any]) -> None:
    extra = {"aug_type": "all0", "aug_round": 2, "proxy_score": 0.1, "raw_generation": "x", "prompt_text": "y"}
    document["4711"]["pointer_candidates"][1] |= extra
    del document["4711"]["pointer_candidates"][1]["eval_failed"]
    groups, report = import_original(write(tmp_path, document))
    assert groups[0].pointer_candidates[1].eval_failed is False
    assert report == {
        "queries": 1,
        "trajectories": 2,
        "empty_queries": 0,
        **{f"dropped_fields_{name}": 1 for name in extra},
        "dropped_fields_pointer_pos": 2,
        "filled_fields_vqa_gt_logprob": 2,
        "filled_fields_eval_failed": 1,
        "other_accuracies": 2,
    }


def test_unknown_and_missing_keys_name_file_query_and_key(tmp_path: Path, document: dict[str, Any]) -> None:
    block = document["4711"]
    block["pointer_candidates"][1]["vqa_acc"] = block["pointer_candidates"][1].pop("vqa_acc_score")
    document["12"] = copy.deepcopy(block) | {"pool": []}
    message = fault(tmp_path, document)
    assert "original.json" in message
    assert "query 4711: 'pointer_candidates[1].vqa_acc_score': missing" in message
    assert "query 4711: 'pointer_candidates[1].vqa_acc': unknown key" in message
    assert "query 12: 'pool': unknown key" in message


def test_v4_files_are_refused_with_the_reason(tmp_path: Path, document: dict[str, Any]) -> None:
    del document["4711"]["candidate_pool_ids"]
    assert "as in v4 files, whose pointers are train positions" in fault(tmp_path, document)


def test_a_pool_without_global_pointers_is_refused_too(tmp_path: Path, document: dict[str, Any]) -> None:
    del document["4711"]["pointer_candidates"][0]["pointer_global"]
    assert "as in v4 files" in fault(tmp_path, document)


def test_local_and_global_pointers_must_agree(tmp_path: Path, document: dict[str, Any]) -> None:
    document["4711"]["pointer_candidates"][0]["pointer_global"] = [88, 205]
    assert "pool[pointer] differs from pointer_global" in fault(tmp_path, document)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda b: b["query"].update(query_id=4712), "query.query_id is 4712"),
        (lambda b: b["candidate_pool_ids"].append(88), "candidate_pool_ids repeats 88"),
        (lambda b: b["pointer_candidates"][0].update(pointer=[1, 1], pointer_global=[205, 205]), "repeats: [1, 1]"),
        (lambda b: b["pointer_candidates"][0].update(pointer=[], pointer_global=[]), "is empty or repeats"),
        (lambda b: b["pointer_candidates"][0].update(vqa_rel_score=float("nan")), "nan is no finite number"),
        (lambda b: b["pointer_candidates"][0].update(vqa_acc_score=1.5), "less than or equal to 1"),
        (lambda b: b["pointer_candidates"][0].update(vqa_correct=0), "vqa_correct is 0 and vqa_acc_score 0.6"),
        (lambda b: b["candidate_pool_ids"].append(4711), "candidate_pool_ids holds the query itself"),
        (lambda b: b["pointer_candidates"][0].update(query_id=4711), "'query_id': unknown key"),
        (lambda b: b.update(pointer_candidates={}), "'pointer_candidates': Input should be a valid array"),
        (
            lambda b: b["pointer_candidates"].append(WRONG),
            "kept rows 0 and 2: pointer [1, 0] has the accuracies 0.6 and 0",
        ),
        (lambda b: b["pointer_candidates"].append(3), "'pointer_candidates[2]': Input should be an object"),
    ],
)
def test_contradictions_are_refused(tmp_path: Path, document: dict[str, Any], change: Any, words: str) -> None:
    change(document["4711"])
    assert words in fault(tmp_path, document)


@pytest.mark.parametrize("again", [ROW, WRONG | {"vqa_eval_mode": "simple_match"}])
def test_a_selection_may_stand_twice(tmp_path: Path, document: dict[str, Any], again: dict[str, Any]) -> None:
    """With one accuracy, or where two ways of scoring say two things."""
    document["4711"]["pointer_candidates"].append(again)
    groups, _ = import_original(write(tmp_path, document))
    assert summarise(groups)["duplicate_selections"] == 1


@pytest.mark.parametrize("document", [[], {"4711": 3}])
def test_other_json_is_refused(tmp_path: Path, document: object) -> None:
    assert "expected RL data in the k64 v3 format" in fault(tmp_path, document)


def test_export_of_an_import_keeps_every_known_field(tmp_path: Path, document: dict[str, Any]) -> None:
    groups, _ = import_original(write(tmp_path, document))
    write_original(tmp_path / "again.json", groups)
    again = storage.read_json(tmp_path / "again.json")
    assert again["_meta"] == {"fix_version": "v3"}
    assert again["4711"]["query"] == QUERY
    assert again["4711"]["candidate_pool_ids"] == [88, 205, 97, 13]
    for ours, theirs in zip(again["4711"]["pointer_candidates"], document["4711"]["pointer_candidates"], strict=True):
        known = {name: value for name, value in theirs.items() if name != "pointer_pos"}
        assert {name: ours[name] for name in known} == known
        assert {name for name in ours if name not in known} == {"similarity_score", "vqa_gt_logprob"}


numbers = st.floats(allow_nan=False, allow_infinity=False)
shares = st.floats(0, 1)


@st.composite
def groups_strategy(draw: st.DrawFn) -> list[RlGroup]:
    groups, shots = [], draw(st.integers(1, 2))
    for query_id in draw(st.lists(st.integers(0, 10_000), unique=True, max_size=4)):
        others = st.integers(0, 10_000).filter(query_id.__ne__)
        of = pool(query_id, draw(st.lists(others, unique=True, min_size=2, max_size=6)))
        pointers = st.lists(st.integers(0, len(of.candidates) - 1), unique=True, min_size=shots, max_size=shots)
        accuracies = defaultdict[tuple[int, ...], float](lambda: draw(shares))  # one answer a prompt
        rows = [
            trajectory(
                of,
                chosen := draw(pointers),
                accuracies[tuple(chosen)],
                gen_method=draw(st.sampled_from(["beam", "sample", "fill"])),
                beam_score=draw(st.none() | numbers),
                temperature=draw(st.none() | numbers),
                vqa_gt_prob=draw(shares),
                vqa_gt_logprob=draw(st.none() | st.floats(max_value=0, allow_infinity=False)),
                vqa_rel_score=draw(shares),
                vqa_raw_generation=draw(st.text(max_size=8)),
            )
            for _ in range(draw(st.integers(1, 3)))
        ]
        query = RlQuery(
            query_id=of.query_id,
            question_id=draw(st.integers(0)),
            image_id=draw(st.integers(0)),
            question=draw(st.text(max_size=8)),
            gt_answers_raw=tuple(draw(st.lists(st.text(max_size=3), max_size=3))),
            gt_answers_norm=(),
        )
        groups.append(RlGroup(query=query, candidate_pool_ids=of.candidates, pointer_candidates=tuple(rows)))
    return groups


@given(groups_strategy())
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_import_of_an_export_gives_the_groups_back(tmp_path: Path, groups: list[RlGroup]) -> None:
    write_original(tmp_path / "original.json", groups)
    again, report = import_original(tmp_path / "original.json")
    assert again == groups
    assert set(report) == {"queries", "trajectories", "empty_queries", "other_accuracies"}


def test_export_reads_the_rows_of_the_workflow(tmp_path: Path) -> None:
    groups = rl_groups(12, 40, is_consistent=True)
    storage.write_rows(tmp_path / "rl_data.jsonl", groups)
    write_original(tmp_path / "original.json", storage.read_rows(tmp_path / "rl_data.jsonl", RlGroup))
    assert import_original(tmp_path / "original.json")[0] == groups  # in their order, "10" after "9"


def test_two_groups_of_one_query_cannot_be_exported(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="two of query 0"):
        write_original(tmp_path / "original.json", rl_groups(1, 20) * 2)
    assert not (tmp_path / "original.json").exists()


def test_imported_positions_must_mean_this_train_split() -> None:
    groups = rl_groups(3, 20)
    train = [example(i) for i in range(20)]
    require_train_examples(groups, train, source="x.json")
    with pytest.raises(RecordError, match=r"(?s)x\.json.*question_id 100 against 119"):
        require_train_examples(groups, train[::-1], source="x.json")
    with pytest.raises(RecordError, match=r"query 0: no train example \d+"):
        require_train_examples(groups, train[:3], source="x.json")


def test_summary_by_hand() -> None:
    def group(query_id: int, *rows: tuple[tuple[int, int], float]) -> RlGroup:
        of = pool(query_id, ids(range(10, 14)))
        return make_group(example(query_id), of, [trajectory(of, pointer, accuracy) for pointer, accuracy in rows])

    groups = [
        group(0, ((0, 1), 0.0), ((1, 0), 0.0)),  # all negative; two orders are two selections
        group(1, ((0, 1), 1.0), ((0, 1), 1.0), ((0, 2), 0.6)),  # all positive; one repeat
        group(2, ((0, 1), 0.6), ((1, 2), 0.0), ((2, 3), 1.0)),  # mixed
    ]
    # Rewards, correctness plus accuracy: 0 0 | 2 2 1.6 | 1.6 0 2, mean 9.2 / 8 = 1.15; squares sum to 17.12, so the
    # variance is 2.14 - 1.3225 = 0.8175.
    assert summarise(groups) == {
        "queries": 3,
        "trajectories": 8,
        "traj_per_query": 2.666667,
        "traj_min": 2,
        "traj_max": 3,
        "positive_trajectories": 5,
        "positive_pct": 62.5,
        "queries_with_positive": 2,
        "queries_with_positive_pct": 66.666667,
        "all_negative_queries": 1,
        "all_positive_queries": 1,
        "mixed_queries": 1,
        "one_accuracy_queries": 1,
        "duplicate_selections": 1,
        "mean_accuracy": 0.525,
        "mean_reward": 1.15,
        "reward_std": pytest.approx(0.8175**0.5, abs=1e-6),  # the summary rounds to six digits
        "accuracy_0": 3,
        "accuracy_0.6": 2,
        "accuracy_1": 3,
    }


def test_summary_of_nothing_is_all_zero() -> None:
    assert set(summarise([]).values()) == {0}


def test_a_query_without_trajectories_counts_as_all_negative() -> None:
    facts = summarise([make_group(example(0), pool(0, range(10, 14)), [])])
    assert (facts["all_negative_queries"], facts["all_positive_queries"], facts["traj_min"]) == (1, 0, 0)


def of_positives(query: int, n_positive: int, n: int = 20) -> RlGroup:
    """Return a group of `n` selections of which `n_positive` earn something, the least at that."""
    of = pool(query, range(100, 108))
    pairs = list(itertools.permutations(range(8), 2))[:n]
    rows = [trajectory(of, pair, 0.3 if i < n_positive else 0.0) for i, pair in enumerate(pairs)]
    return make_group(example(query), of, rows)


@pytest.mark.parametrize(
    ("n_positive", "fate"),
    [(0, "low"), (7, "low"), (8, "kept"), (9, "kept"), (11, "kept"), (12, "kept"), (13, "high"), (20, "high")],
)
def test_a_query_is_kept_by_its_share_of_positive_trajectories_bounds_included(n_positive: int, fate: str) -> None:
    anchors = [of_positives(1, 10), of_positives(2, 10)]  # kept, so that there are enough
    groups = [anchors[0], of_positives(3, n_positive), anchors[1]]
    kept, counts = keep_balanced(groups, Balance(), source="RL data")
    assert kept == (groups if fate == "kept" else anchors)
    assert counts == {
        "balance_kept": len(kept),
        "balance_rejected_low": int(fate == "low"),
        "balance_rejected_high": int(fate == "high"),
    }


def test_without_balance_all_queries_stay_and_nothing_is_counted() -> None:
    groups = [of_positives(1, 0), of_positives(2, 20)]
    assert keep_balanced(groups, None, source="RL data") == (groups, {})


@given(st.lists(st.integers(0, 20), min_size=2, max_size=8), st.integers(0, 10), st.integers(10, 20))
def test_kept_and_rejected_make_up_all(positives: list[int], low: int, high: int) -> None:
    groups = [of_positives(query, n) for query, n in enumerate(positives)]
    expected = [group for group, n in zip(groups, positives, strict=True) if low <= n <= high]
    balance = Balance(low=low / 20, high=high / 20)
    if len(expected) < 2:
        with pytest.raises(RecordError, match=r"at least 2 queries .* found kept"):
            keep_balanced(groups, balance, source="RL data")
        return
    kept, counts = keep_balanced(groups, balance, source="RL data")
    assert kept == expected
    assert sum(counts.values()) == len(groups)


def test_crossed_bounds_are_refused() -> None:
    with pytest.raises(ValueError, match=r"must be at most high=0\.4, got 0\.6"):
        Balance(low=0.6, high=0.4)
