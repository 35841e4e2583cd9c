from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from builders import example, ids

from lever_pipe.base import storage
from lever_pipe.base.errors import RecordError
from lever_pipe.base.records import (
    AnswerRow,
    Cell,
    Example,
    ExampleId,
    PolicyScores,
    QuestionScore,
    Selection,
)
from lever_pipe.experiment.evaluation import ScoreAnswersConfig
from lever_pipe.stages.answers import score_answers

SAMPLES, SHOTS, N = (10, 20, 30), (1, 2), 30


@dataclass
class Study:
    """Thirty queries, one policy and its answers on disk."""

    folder: Path
    queries: list[Example]
    selections: list[Selection]
    answers: list[AnswerRow]

    def score(self, policy: str = "baseline/a", **changed: object) -> list[Cell]:
        for name, rows in (("queries", self.queries), ("selections", self.selections), ("answers", self.answers)):
            storage.write_rows(self.folder / name, rows)
        values = {"samples": SAMPLES, "shots": SHOTS, "n_random_subsets": 4, "seed": 0} | changed
        config = ScoreAnswersConfig.model_validate({"policies": [policy], **values})
        return score_answers(
            selections=(self.folder / "selections",),
            answers=self.folder / "answers",
            train_examples=self.folder / "train",
            eval_examples=self.folder / "queries",
            per_question=self.folder / "per_question",
            cells=self.folder / "cells",
            config=config,
        )

    def rows(self) -> tuple[QuestionScore, ...]:
        (row,) = storage.read_rows(self.folder / "per_question", PolicyScores)
        return row.questions


@pytest.fixture
def study(tmp_path: Path) -> Study:
    rng = np.random.default_rng(0)
    storage.write_rows(tmp_path / "train", [example(i) for i in range(50)])
    queries = [example(i, answers=("cat",) * 6 + ("dog",) * 2 + ("cow",) * 2) for i in range(N)]
    selections = [Selection(query_id=ExampleId(i), demonstrations=ids(rng.permutation(50)[:2])) for i in range(N)]
    text = rng.choice(["cat", "dog", "bird"], size=2 * N).tolist()
    answers = [
        AnswerRow(query_id=row.query_id, demonstrations=row.demonstrations[:k], raw="", answer=text.pop())
        for row in selections
        for k in SHOTS
    ]
    return Study(tmp_path, queries, selections, answers)


def test_cells_are_means_of_the_question_scores(study: Study) -> None:
    cells, rows = study.score(), study.rows()
    assert [(cell.samples, cell.shots) for cell in cells] == [(n, s) for n in SAMPLES for s in SHOTS]
    for cell in cells:
        values = [row.accuracy for row in rows if row.shots == cell.shots and row.query_id < cell.samples]
        assert len(values) == cell.samples
        assert cell.accuracy == pytest.approx(100 * sum(values) / cell.samples, abs=1e-6)
    assert len({cell.accuracy for cell in cells}) > 3


def test_random_subsets_have_their_size_and_are_shared_by_policies_and_shots(study: Study) -> None:
    study.answers = [  # one accuracy a query, so that equal subsets have equal means at both shot counts
        row.model_copy(update={"answer": "cat" if row.query_id % 3 else "bird"}) for row in study.answers
    ]
    first, second = study.score("baseline/a"), study.score("baseline/b")
    other = study.score("baseline/a", seed=1)
    for cell, same in zip(first, second, strict=True):
        assert cell.subsets == same.subsets
        assert [score.n_questions for score in cell.subsets] == [cell.samples] * 5
    by_shots = {shots: [c.subsets for c in first if c.shots == shots] for shots in SHOTS}
    assert [[s.accuracy for s in subsets] for subsets in by_shots[1]] == [
        [s.accuracy for s in subsets] for subsets in by_shots[2]
    ]
    assert [s.accuracy for s in first[0].subsets] != [s.accuracy for s in other[0].subsets]
    assert len({s.accuracy for s in first[0].subsets}) > 1
    whole = first[-1]
    assert {s.accuracy for s in whole.subsets} == {whole.accuracy}  # a subset of all is all


def test_distinct_prompts_count_duplicates_once(study: Study) -> None:
    one = study.queries[0]
    for i in (1, 2, 3):  # the same image and question as query 0; 1 and 2 with its demonstrations too
        study.queries[i] = one.model_copy(update={"example_id": i, "question_id": 100 + i})
        chosen = study.selections[0 if i < 3 else i].demonstrations
        study.selections[i] = Selection(query_id=ExampleId(i), demonstrations=chosen)
        study.answers += [
            AnswerRow(query_id=ExampleId(i), demonstrations=chosen[:k], raw="", answer="cat") for k in SHOTS
        ]
    cell = study.score()[0]
    assert (cell.samples, cell.subsets[0].n_distinct_prompts) == (10, 8)
    study.queries[2] = study.queries[2].model_copy(update={"image_digest": "another"})
    assert study.score()[0].subsets[0].n_distinct_prompts == 9


def test_a_vote_says_what_most_demonstrations_show_whatever_the_lvlm_said(study: Study) -> None:
    train = [example(i, answer="cat" if i % 2 else "dog") for i in range(50)]
    storage.write_rows(study.folder / "train", train)
    study.score("baseline/vote")
    for row in study.rows():
        first = study.selections[row.query_id].demonstrations[0]  # of two it is the first that decides
        assert row.accuracy == (1.0 if first % 2 else 0.6)


def test_a_missing_answer_names_the_query_and_the_prompt(study: Study) -> None:
    gone = next(row for row in study.answers if row.query_id == 7 and len(row.demonstrations) == 2)
    study.answers.remove(gone)
    with pytest.raises(RecordError, match=rf"answer to query 7 with \[{', '.join(map(str, gone.demonstrations))}\]"):
        study.score()
    assert not (study.folder / "cells").exists()


def test_each_policy_of_a_batch_has_a_line_and_its_cells(study: Study) -> None:
    study.score("baseline/b")
    alone = storage.read_rows(study.folder / "cells", Cell)
    other = [row.model_copy(update={"demonstrations": row.demonstrations[:1]}) for row in study.selections]
    storage.write_rows(study.folder / "other", other)
    config = {"samples": SAMPLES, "shots": SHOTS, "n_random_subsets": 4, "seed": 0}
    policies = ["baseline/a", "baseline/b"]
    score_answers(
        selections=(study.folder / "other", study.folder / "selections"),
        answers=study.folder / "answers",
        train_examples=study.folder / "train",
        eval_examples=study.folder / "queries",
        per_question=study.folder / "per_question",
        cells=study.folder / "cells",
        config=ScoreAnswersConfig.model_validate({"policies": policies, **config}),
    )
    assert [row.policy for row in storage.read_rows(study.folder / "per_question", PolicyScores)] == policies
    cells = storage.read_rows(study.folder / "cells", Cell)
    assert cells[len(alone) :] == alone
    assert {str(cell.policy) for cell in cells[: len(alone)]} == {"baseline/a"}
    assert [c.accuracy for c in cells[: len(alone)] if c.shots == 1] == [c.accuracy for c in alone if c.shots == 1]


def test_a_query_without_selection_is_no_zero_shot_query(study: Study) -> None:
    study.answers += [AnswerRow(query_id=ExampleId(i), demonstrations=(), raw="", answer="cat") for i in range(N)]
    del study.selections[4]
    with pytest.raises(
        RecordError, match=r"expected a selection for each of 30 queries; found none for 1, first \[4\]"
    ):
        study.score()


def test_the_configured_rule_normalises_references(study: Study) -> None:
    study.queries = [query.model_copy(update={"answers": ("black",) * 10}) for query in study.queries]
    study.answers = [row.model_copy(update={"answer": "Black"}) for row in study.answers]
    assert {cell.accuracy for cell in study.score()} == {0.0}  # the official tool's rule
    assert {cell.accuracy for cell in study.score(normalise_references="always")} == {100.0}
