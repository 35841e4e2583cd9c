from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pytest
from builders import example, ids

from lever_pipe.base import storage
from lever_pipe.base.errors import RecordError
from lever_pipe.base.policy_names import PolicyName
from lever_pipe.base.records import AnswerRow, EpochMetrics, ExampleId, Selection
from lever_pipe.experiment.emulation import EmulatedPolicy, ScoreEmulationConfig
from lever_pipe.stages.emulation import score_emulation

N, SHOTS = 4, (1, 2, 3)
# two policies of an arm that repeat demonstrations, and one of another arm that does not; rows for queries 0 .. 3
CHOSEN = {
    ("pool", 0.12, 1): [(1, 0, 0), (0, 1, 0), (1, 0, 0), (1, 0, 0)],
    ("pool", 0.15, 1): [(1, 0, 0), (1, 0, 0), (1, 0, 0), (0, 1, 0)],
    ("none", 0.12, 1): [(5, 6, 7), (5, 6, 7), (8, 6, 7), (9, 6, 5)],
}


@dataclass
class Study:
    folder: Path

    def run(self, **changed: object) -> None:
        folder = self.folder
        policies = tuple(EmulatedPolicy(arm=a, kl_beta=b, epoch=e) for a, b, e in CHOSEN)
        paths = tuple(folder / f"{i}.jsonl" for i in range(len(CHOSEN)))
        for path, rows in zip(paths, CHOSEN.values(), strict=True):
            # in another order of queries in every file
            pairs = sorted(enumerate(rows), key=lambda pair: (pair[0] + int(path.stem)) % 3)
            storage.write_rows(path, [Selection(query_id=ExampleId(q), demonstrations=ids(row)) for q, row in pairs])
        storage.write_rows(folder / "examples", [example(i, answer="cat") for i in range(N)])
        prompts = {(q, row[:k]) for rows in CHOSEN.values() for q, row in enumerate(rows) for k in SHOTS}
        # right if and only if demonstration 1 comes first
        text = [
            AnswerRow(query_id=ExampleId(q), demonstrations=ids(row), raw="", answer="cat" if row[0] == 1 else "dog")
            for q, row in sorted(prompts)
        ]
        storage.write_rows(folder / "answers", text[: changed.pop("n_answers", None)])
        storage.write_rows(folder / "untouched", [metrics("emulation/dropout/base~5/seed~0/untouched~1", 0.5)])
        score_emulation(
            selections=paths, answers=folder / "answers", eval_examples=folder / "examples",
            untouched=folder / "untouched",
            scores=folder / "scores.csv", prompts=folder / "prompts.csv",
            training=folder / "training.csv",
            config=ScoreEmulationConfig.model_validate(
                {"policies": policies, "samples": (2, 4), "shots": SHOTS} | changed
            ),
        )  # fmt: skip

    def read(self, name: str) -> pd.DataFrame:
        return pd.read_csv(self.folder / f"{name}.csv", dtype=str, keep_default_na=False)


def metrics(name: str, kl: float) -> EpochMetrics:
    ref = PolicyName.parse(name)
    return EpochMetrics(policy=ref, values={"kl": kl, "mean_ratio": 1 - kl})


@pytest.fixture
def study(tmp_path: Path) -> Study:
    study = Study(tmp_path)
    study.run()
    return study


def test_accuracies_count_the_answers_of_repeated_demonstrations_too(study: Study) -> None:
    scores = study.read("scores")
    assert list(scores.columns[:5]) == ["arm", "kl_beta", "epoch", "samples", "shots"]
    assert len(scores) == len(CHOSEN) * 2 * len(SHOTS)
    found = {
        (row.arm, row.kl_beta, row.samples, row.shots): float(row.accuracy) for row in scores.itertuples(index=False)
    }
    for shots in map(str, SHOTS):
        # queries 0, 2 and 3 are right with the first policy, 0, 1 and 2 with the second, none with the third
        assert found["pool", "0.12", "4", shots] == 75
        assert found["pool", "0.12", "2", shots] == 50
        assert found["pool", "0.15", "4", shots] == 75
        assert found["pool", "0.15", "2", shots] == 100
        assert found["none", "0.12", "4", shots] == 0
    assert set(scores["n_distinct_prompts"]) == {"2", "4"}


def test_prompts_are_counted_by_arm(study: Study) -> None:
    rows = {(row.arm, row.shots): row for row in study.read("prompts").itertuples(index=False)}
    assert [float(rows["pool", k].repeated_share) for k in "123"] == [0, 0, 1]
    assert [float(rows["none", k].repeated_share) for k in "123"] == [0, 0, 0]
    # queries 1 and 3 get two prompts at every shot count, six together; the others get three
    assert [int(rows["pool", k].prompts_a_query_max) for k in ("1", "2", "3", "")] == [2, 2, 2, 6]
    assert float(rows["pool", ""].prompts_a_query_mean) == (6 + 3 + 6 + 3) / 4
    assert rows["pool", ""].repeated_share == ""


def test_metrics_without_an_update_are_named_by_arm(study: Study) -> None:
    lines = study.read("training").to_numpy().tolist()
    assert [line for line in lines if line[3] == "kl"] == [["dropout", "5", "1", "kl", "0.5"]]


def test_problems_of_the_inputs_are_named(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"answers: .*query 3"):
        Study(tmp_path).run(n_answers=-2)
    with pytest.raises(RecordError):
        Study(tmp_path).run(samples=(5,))
