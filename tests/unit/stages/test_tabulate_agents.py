from __future__ import annotations

from collections import Counter
from pathlib import Path

import agent_runs
import pytest
import synthetic_page
from agent_runs import ARMS, Study
from lever_pipe.commands.glossary_tool import file_texts, untranslated
from lever_pipe.report.page.numbers import numbers_in
from lever_pipe.report.page.tables import read_tables, view

from lever_pipe.base import storage
from lever_pipe.base.errors import RecordError
from lever_pipe.stages.tabulate_agents import _held_out

ONE = tuple(arm.model_copy(update={"seeds": (0,)}) for arm in ARMS)
SMOKE = Study(arms=(ONE[0], ONE[4]), steps=6, every=3, n_val=6, n_test=6, samples=2)
VERL = Study(arms=(ONE[0], ONE[4]), engine="verl", steps=465, executed=45, has_test=False, modes=("greedy",))
GPU = Study(
    arms=(ARMS[0], ARMS[4].model_copy(update={"learning_rate": 1e-4, "trajectory_score": "mean"})),
    steps=20,
    metrics={"mfu_update": 0.3, "mfu_step": 0.1, "tokens_total": 1.0},
    device="cuda",
)


def seeded(n: int) -> Study:
    return Study(arms=tuple(arm.model_copy(update={"seeds": tuple(range(n))}) for arm in (ARMS[0], ARMS[4])), steps=10)


CASES = [
    (Study(), {}),
    (SMOKE, {}),
    (VERL, {"is_world": False, "scale": "Qwen3-8B on IntentionGym"}),
    (GPU, {"is_world": False, "scale": "Qwen3-0.6B on embedded tasks", "max_context": 256}),
    (seeded(7), {}),
]


@pytest.mark.parametrize(("study", "changes"), CASES, ids=["default", "smoke", "verl", "gpu", "seeds"])
def test_every_text_has_a_translation_that_keeps_the_numbers(
    tmp_path: Path, study: Study, changes: dict[str, object]
) -> None:
    texts = list(file_texts([agent_runs.tabulate(tmp_path, study, **changes)], ()))
    chinese = synthetic_page.chinese()
    assert len(texts) > 500
    assert untranslated(chinese, texts) == []
    for text in set(texts):
        assert Counter(numbers_in(chinese.translate(text)[0])) == Counter(numbers_in(text)), text


def test_the_page_reads_every_table(tmp_path: Path) -> None:
    path = agent_runs.tabulate(tmp_path, SMOKE)
    tables = read_tables([path])
    assert {table.document for table in tables} == {"003", "004", "arms"}
    for table in tables:
        seen = view(table, csv="x.csv", say=lambda text: text)
        if "Source" in table.columns:
            assert {row.kind for row in seen.rows} <= {"ours", "published"}, table.id
    names = {f"{table.id}.{kind}" for table in tables for kind in ("csv", "md")}
    assert {path.name for path in (tmp_path / "tables" / "agents").iterdir()} == names


def test_an_interval_gets_columns_of_its_own_in_the_csv(tmp_path: Path) -> None:
    agent_runs.tabulate(tmp_path, SMOKE)
    head = (tmp_path / "tables" / "agents" / "arms-mechanism.csv").read_text().splitlines()[0]
    assert "Trapezoid mean,Trapezoid mean low,Trapezoid mean high" in head


@pytest.mark.parametrize(
    ("told", "found"),
    [([{}, {}], "expected one file; found 2"), ([{"test": {"n_tasks": 3}}], "n_hidden_also_trained"), ([[]], "list")],
)
def test_a_summary_without_its_counts_is_told(tmp_path: Path, told: list[object], found: str) -> None:
    paths = tuple(tmp_path / f"{place}.json" for place, _ in enumerate(told))
    for path, value in zip(paths, told, strict=True):
        storage.write_json(path, value)
    with pytest.raises(RecordError, match=found):
        _held_out(paths)
    assert _held_out(()) is None
