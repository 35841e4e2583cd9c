"""A user's own selector: its file is read strictly, its module gets each query's pool."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from builders import evaluation_files, example

from lever_pipe.base import plugins, storage
from lever_pipe.base.errors import RecordError
from lever_pipe.base.records import Pool, Selection
from lever_pipe.experiment.selections import SelectBaselineConfig, SelectOwnConfig
from lever_pipe.stages.selections import read_selections, select_baseline, select_own

TRAIN = [example(i, question_id=100 + i) for i in range(6)]
QUERIES = [example(i, question_id=900 + i) for i in range(2)]
HEAD = "policy,question_id,demonstrations\n"
SOUND = HEAD + "mine,901,103 100 105\nmine,900,101 104 102\nother,900,1\n"


def test_lines_of_a_policy_are_taken_by_question_and_cut_to_the_shots(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(SOUND)
    assert read_selections(path, "mine", train=TRAIN, queries=QUERIES, shots=2) == {1: (3, 0), 0: (1, 4)}


@pytest.mark.parametrize(
    "text",
    [
        "\ufeff" + SOUND,  # "CSV UTF-8" of a spreadsheet
        SOUND + "\n",
        SOUND.replace("\n", "\r\n") + ",,\r\n , ,\r\n",  # emptied rows of a spreadsheet
    ],
)
def test_files_of_spreadsheets_are_read(tmp_path: Path, text: str) -> None:
    path = tmp_path / "mine.csv"
    path.write_bytes(text.encode())
    assert read_selections(path, "mine", train=TRAIN, queries=QUERIES, shots=2) == {1: (3, 0), 0: (1, 4)}


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (SOUND.replace("policy,", "name,", 1), "line 1: expected the head"),
        (SOUND.replace("mine,901,103 100 105", "mine,901"), "line 2: expected 3 cells"),
        (SOUND.replace("901", "955"), "line 2: expected a question of the evaluation split; found question_id 955"),
        (SOUND.replace("901", "900"), "line 3: expected each question once; found question_id 900 again"),
        (SOUND.replace("103", "77"), r"line 2: expected question ids of train examples.*\[77\]"),
        (SOUND.replace("103", "100"), "line 2: expected distinct demonstrations"),
        (SOUND.replace("103 100 105", "103"), "line 2: expected at least 2 demonstrations"),
        (SOUND.replace("103", "1.5"), "line 2: expected question ids as whole numbers"),
        (SOUND.replace("mine,900", "mein,900"), r"expected a line for each evaluated question; found 1 of 2.*900"),
        (SOUND.replace("mine,901", "\nmine,955"), "line 3: expected a question of the evaluation split"),
        ("", "expected the head"),
        ('"', "expected a CSV file"),
    ],
)
def test_an_invalid_file_is_refused_by_line(tmp_path: Path, text: str, error: str) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(text)
    with pytest.raises(RecordError, match=error):
        read_selections(path, "mine", train=TRAIN, queries=QUERIES, shots=2)


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    return evaluation_files(tmp_path, 20, 5) | {"selections": tmp_path / "selections"}


def select_by(code: str, files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    folder = tmp_path / "beside/lever/policies"
    folder.mkdir(parents=True)
    (folder / f"{name}.py").write_text(code)
    monkeypatch.setenv(plugins.VARIABLE, str(tmp_path / "beside"))
    config = SelectOwnConfig(own=name, module=name, shots=2)
    assert select_own(**files, own_selections=(), config=config) == 5


def test_a_module_next_to_the_package_selects(
    files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The most similar questions, recomputed from the arrays."""
    code = "import numpy\n\ndef select(choice, shots):\n    return numpy.argsort(-choice.question_similarity)[:shots]\n"
    select_by(code, files, tmp_path, monkeypatch, "by_question")
    train, queries = (storage.read_arrays(files[f"{split}_embeddings"])["question"] for split in ("train", "eval"))
    pools = {pool.query_id: pool.candidates for pool in storage.read_rows(files["eval_pools"], Pool)}
    for row in storage.read_rows(files["selections"], Selection):
        similar = train[list(pools[row.query_id])] @ queries[row.query_id]
        assert row.demonstrations == tuple(pools[row.query_id][i] for i in np.argsort(-similar)[:2])


def test_the_selector_that_the_documentation_writes_is_mmr(
    files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (Path(__file__).parents[3] / "docs/your-selector.md").read_text()
    (code,) = [block for block in re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL) if "alike" in block]
    select_by(code, files, tmp_path, monkeypatch, "of_the_page")
    written = storage.read_rows(files["selections"], Selection)
    assert select_baseline(**files, config=SelectBaselineConfig(baseline="mmr", shots=2, seed=0)) == 5
    assert written == storage.read_rows(files["selections"], Selection)


@pytest.mark.parametrize(("number", "answer"), [(0, "[0, 0]"), (1, "[0]"), (2, "[0, 99]"), (3, "[-1, 0]")])
def test_a_module_that_selects_nonsense_is_named(
    files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, answer: str
) -> None:
    name = f"nonsense_{number}"
    with pytest.raises(RecordError, match=f"policy {name}, query 0: "):
        select_by(f"def select(choice, shots):\n    return {answer}\n", files, tmp_path, monkeypatch, name)
