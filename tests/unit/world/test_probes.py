"""Mechanism probes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lever_pipe.base.records import Example
from lever_pipe.experiment.data import WorldData
from lever_pipe.world.files import draw_examples
from lever_pipe.world.probes import (
    Probe,
    ProbeScore,
    build_probes,
    check_bounds,
    relation_of,
    summarise,
)

OPTIONS = WorldData(n_train=1000, n_eval=60)


@pytest.fixture(scope="module")
def pool() -> list[Example]:
    return draw_examples(OPTIONS, "train")[0]


@pytest.fixture(scope="module")
def queries() -> list[Example]:
    return draw_examples(OPTIONS, "val")[0]


@pytest.fixture(scope="module")
def probes(pool: list[Example], queries: list[Example]) -> dict[str, list[Probe]]:
    return build_probes(queries, pool, seed=0)


def _is_exact(probe: Probe, index: int) -> bool:
    row = probe.demonstrations[index]
    return row.question_type == probe.query.question_type and row.answer == probe.truth


def _is_rival(probe: Probe, index: int) -> bool:
    row = probe.demonstrations[index]
    same_relation = relation_of(row) == relation_of(probe.query)
    return same_relation and row.question_type != probe.query.question_type and row.answer != probe.truth


def test_every_probe_asks_the_same_knowledge_questions(probes: dict[str, list[Probe]], queries: list[Example]) -> None:
    known = {"material", "place", "team", "country"}
    wanted = [row.question_id for row in queries if relation_of(row) in known]
    assert len(wanted) > 30
    for rows in probes.values():
        assert [probe.query.question_id for probe in rows] == wanted


def test_exact_demonstrations(probes: dict[str, list[Probe]]) -> None:
    for n in range(1, 5):
        for probe in probes[f"exact_{n}"]:
            assert len(probe.demonstrations) == n
            assert all(_is_exact(probe, i) for i in range(n))
            assert len({row.question_id for row in probe.demonstrations}) == n


def test_conflicts_differ_in_order_only(probes: dict[str, list[Probe]]) -> None:
    first, last = probes["conflict_right_first"], probes["conflict_right_last"]
    for a, b in zip(first, last, strict=True):
        assert _is_exact(a, 0)
        assert _is_rival(a, 1)
        assert a.demonstrations == b.demonstrations[::-1]


def test_shuffling_changes_the_images_and_nothing_else(probes: dict[str, list[Probe]], pool: list[Example]) -> None:
    digests = {row.image: row.image_digest for row in pool}
    for name in ("conflict_right_first", "conflict_right_last"):
        for plain, shuffled in zip(probes[name], probes[f"{name}_shuffled"], strict=True):
            for a, b in zip(plain.demonstrations, shuffled.demonstrations, strict=True):
                assert a.image_id != b.image_id
                assert b.image_digest == digests[b.image]
                assert (a.question, a.answer) == (b.question, b.answer)


def test_distractors_come_before_the_exact_demonstration(probes: dict[str, list[Probe]]) -> None:
    for probe in probes["exact_after_3_other_key"]:
        assert [_is_rival(probe, i) for i in range(3)] == [True] * 3
        assert _is_exact(probe, 3)
    for probe in probes["exact_after_3_unrelated"]:
        relations = [relation_of(row) for row in probe.demonstrations]
        assert relation_of(probe.query) not in relations[:3]
        assert _is_exact(probe, 3)


def test_no_demonstration_shows_the_querys_image(pool: list[Example]) -> None:
    # Queries from the pool itself, so that the own image is among the candidates.
    for name, rows in build_probes(pool[:100], pool, seed=0).items():
        if name.endswith("shuffled"):
            continue
        for probe in rows:
            assert probe.query.image_id not in {row.image_id for row in probe.demonstrations}


def test_draws_depend_on_seed_and_question_only(
    probes: dict[str, list[Probe]], pool: list[Example], queries: list[Example]
) -> None:
    half = build_probes(queries[30:], pool, seed=0)
    ids = {row.question_id for row in queries[30:]}
    wanted = [p for p in probes["exact_4"] if p.query.question_id in ids]
    # The facts could differ with fewer queries; the pool of 1000 outvotes them.
    assert half["exact_4"] == wanted
    assert build_probes(queries, pool, seed=1)["exact_4"] != probes["exact_4"]


def test_summary_scores_facts_and_annotators_apart(probes: dict[str, list[Probe]]) -> None:
    rows = {"exact_1": probes["exact_1"][:2]}
    votes = ("wood", "wood", *("metal",) * 8)
    query = rows["exact_1"][0].query.model_copy(update={"answers": votes})
    rows["exact_1"] = [replace(rows["exact_1"][0], query=query, truth="wood")] * 2
    summary = summarise(rows, {"exact_1": ["wood", "paper"]})
    # Two of ten votes: leaving one out, eight times 2/3 and twice 1/3 make 0.6 of a hit;
    # the second prompt's answer has no vote.
    assert summary["exact_1"].accuracy == pytest.approx(30.0)
    assert summary["exact_1"].truth == 50.0
    assert summary["exact_1"].n_queries == 2


def _perfect() -> dict[str, ProbeScore]:
    good, fallen = ProbeScore(97.0, 99.0, 100), ProbeScore(40.0, 35.0, 100)
    names = [
        *(f"exact_{n}" for n in range(1, 5)),
        "conflict_right_first",
        "conflict_right_last",
        "exact_after_3_other_key",
        "exact_after_3_unrelated",
    ]
    shuffled = {f"conflict_right_{end}_shuffled": fallen for end in ("first", "last")}
    return {**dict.fromkeys(names, good), **shuffled}


@pytest.mark.parametrize(
    ("name", "score"),
    [
        ("exact_1", ProbeScore(93.9, 99.0, 100)),
        ("exact_4", ProbeScore(93.9, 99.0, 100)),
        ("conflict_right_first", ProbeScore(97.0, 94.9, 100)),
        ("conflict_right_last", ProbeScore(97.0, 94.9, 100)),
        ("exact_after_3_other_key", ProbeScore(92.9, 99.0, 100)),
        ("exact_after_3_unrelated", ProbeScore(92.9, 99.0, 100)),
        ("conflict_right_first_shuffled", ProbeScore(97.0, 59.1, 100)),
        ("conflict_right_last_shuffled", ProbeScore(97.0, 59.1, 100)),
        ("exact_2", ProbeScore(float("nan"), 99.0, 100)),
    ],
)
def test_each_bound_is_checked_and_named(name: str, score: ProbeScore) -> None:
    problems = check_bounds({**_perfect(), name: score})
    assert len(problems) == 1
    assert problems[0].startswith(name.removesuffix("_shuffled"))
