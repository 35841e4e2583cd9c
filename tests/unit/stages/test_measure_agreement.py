from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import example, ids

from lever_pipe.base import contents, storage
from lever_pipe.base.errors import RecordError
from lever_pipe.base.records import ExampleId, Selection
from lever_pipe.base.shapes import ShapeError
from lever_pipe.experiment.stage_configs import MeasureAgreementConfig
from lever_pipe.stages.measure_agreement import measure_agreement

RCE = "preset~p/rce/seed~{}/epoch~1"
GRPO = "preset~p/grpo/base~1/beta~0.1/seed~{}/epoch~1"
POLICIES = ("baseline/zero_shot", "baseline/oracle", RCE.format(0), GRPO.format(0), RCE.format(1), GRPO.format(1))
STARTS = ("preset~p/init/seed~0", "preset~p/init/seed~1")
# Four queries; the first two ask the same question about the same image.
CHOSEN: dict[str, list[list[int]]] = {
    "baseline/zero_shot": [[], [], [], []],
    "baseline/oracle": [[1, 2], [1, 2], [1, 2], [1, 2]],
    RCE.format(0): [[1, 2], [2, 1], [3, 4], [5, 6]],
    GRPO.format(0): [[1, 2], [2, 1], [4, 3], [5, 7]],
    RCE.format(1): [[1, 2], [1, 2], [3, 4], [5, 6]],
    GRPO.format(1): [[9, 8], [9, 7], [3, 4], [5, 6]],
}
# A selector of four numbers; GRPO of seed 1 moves one of them by 2 from a base of norm 4.
WEIGHTS = {
    RCE.format(0): [1.0, 2.0, 3.0, 4.0],
    GRPO.format(0): [1.0, 2.0, 3.0, 4.0],
    RCE.format(1): [2.0, 2.0, 2.0, 2.0],
    GRPO.format(1): [2.0, 4.0, 2.0, 2.0],
    STARTS[0]: [0.0, 0.0, 0.0, 0.0],
    STARTS[1]: [2.0, 2.0, 2.0, 1.0],
}
OUTPUTS = ("agreement", "parameters", "tensors", "prompts")


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Any]:
    paths: dict[str, Any] = {name: tmp_path / name for name in (*OUTPUTS, "eval_examples")}
    same = {"image_digest": "one", "question": "which?"}
    storage.write_rows(paths["eval_examples"], [example(i, **(same if i < 2 else {})) for i in range(4)])
    paths["selections"] = tuple(tmp_path / f"{i}.jsonl" for i in range(len(POLICIES)))
    for path, name in zip(paths["selections"], POLICIES, strict=True):
        write_selections(path, CHOSEN[name])
    trained = [name for name in POLICIES if not name.startswith("baseline/")]
    paths["selectors"] = tuple(tmp_path / f"{i}.safetensors" for i in range(len(trained) + len(STARTS)))
    for path, name in zip(paths["selectors"], [*trained, *STARTS], strict=True):
        values = np.array(WEIGHTS[name], dtype=np.float32)
        storage.write_arrays(path, {"a": values[:2], "b": values[2:]})
    return paths


def write_selections(path: Path, chosen: list[list[int]]) -> None:
    rows = [Selection(query_id=ExampleId(i), demonstrations=ids(row)) for i, row in enumerate(chosen)]
    storage.write_rows(path, rows)


def with_on_policy(files: dict[str, Any], folder: Path) -> tuple[str, ...]:
    """Add on-policy GRPO and a mark of seed 0 to the files, and return all policies."""
    drawn = "preset~p/on_policy/base~1/beta~0.1/seed~0/epoch~1", "preset~p/distil/base~1/seed~0/epoch~1"
    chosen = ([[1, 2], [2, 1], [4, 3], [8, 9]], [[1, 2], [2, 1], [3, 4], [5, 6]])
    weights = ([1.0, 2.0, 3.0, 9.0], [1.0, 2.0, 3.0, 4.0])
    for index, (selected, values) in enumerate(zip(chosen, weights, strict=True)):
        write_selections(folder / f"drawn-{index}.jsonl", selected)
        array = np.array(values, dtype=np.float32)
        storage.write_arrays(folder / f"drawn-{index}.safetensors", {"a": array[:2], "b": array[2:]})
    n = len(files["selectors"]) - len(STARTS)
    added = tuple(folder / f"drawn-{index}.safetensors" for index in range(2))
    files["selections"] += tuple(folder / f"drawn-{index}.jsonl" for index in range(2))
    files["selectors"] = (*files["selectors"][:n], *added, *files["selectors"][n:])
    return (*POLICIES, *drawn)


def test_on_policy_runs_are_measured(files: dict[str, Any], tmp_path: Path) -> None:
    run(files)
    before = {name: files[name].read_text().splitlines() for name in ("agreement", "parameters")}
    policies = with_on_policy(files, tmp_path)
    run(files, policies=policies)
    with files["agreement"].open() as handle:
        found = {(r["left"], r["right"], r["shots"]): r for r in csv.DictReader(handle)}
    base = RCE.format(0)
    # Of four queries the third has the demonstrations of its base in another order, the fourth other ones.
    drawn = found[base, policies[-2], "2"]
    assert [float(drawn[name]) for name in ("as_sequence", "as_set")] == [0.5, 0.75]
    assert float(found[base, policies[-1], "1"]["as_sequence"]) == 1
    assert (RCE.format(1), policies[-2], "2") not in found
    with files["parameters"].open() as handle:
        moved = {r["policy"]: (r["base"], float(r["share_differing"])) for r in csv.DictReader(handle)}
    assert (moved[policies[-2]], moved[policies[-1]]) == ((base, 0.25), (base, 0.0))
    kept = [line for line in files["agreement"].read_text().splitlines() if not any(p in line for p in policies[-2:])]
    assert kept == before["agreement"]


def run(files: dict[str, Any], **changed: Any) -> None:
    values = {"policies": POLICIES, "starts": STARTS}
    config = MeasureAgreementConfig(**{**values, "shots": (1, 2), **changed})
    measure_agreement(**files, config=config)


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as handle:
        return list(csv.DictReader(handle))


def shares(files: dict[str, Any], left: str, right: str, shots: int) -> tuple[float, ...]:
    rows = [r for r in read(files["agreement"]) if (r["left"], r["right"], r["shots"]) == (left, right, str(shots))]
    (row,) = rows
    return tuple(float(row[name]) for name in ("as_sequence", "as_set", "at_position"))


def test_the_shares_by_hand(files: dict[str, Any]) -> None:
    run(files)
    # Seed 0: queries 1 and 2 alike, 3 turned round, 4 alike in the first place only.
    assert shares(files, RCE.format(0), GRPO.format(0), 2) == (0.5, 0.75, 0.5)
    assert shares(files, RCE.format(0), GRPO.format(0), 1) == (0.75, 0.75, 0.75)
    assert shares(files, RCE.format(0), RCE.format(1), 2) == (0.75, 1.0, 0.75)
    assert shares(files, "baseline/oracle", GRPO.format(0), 2) == (0.25, 0.5, 0.25)
    names = {row["left"] for row in read(files["agreement"])} | {row["right"] for row in read(files["agreement"])}
    assert "baseline/zero_shot" not in names  # it selects nothing
    # The oracle with four; two within each seed; two across.
    assert len(read(files["agreement"])) == 2 * (4 + 2 + 2)


def test_the_order_of_the_lines_in_a_file_does_not_matter(files: dict[str, Any]) -> None:
    run(files)
    before = files["agreement"].read_text()
    path = files["selections"][3]
    path.write_text("".join(reversed(path.read_text().splitlines(keepends=True))))
    run(files)
    assert files["agreement"].read_text() == before


def test_parameters_differ_from_what_a_policy_started_from(files: dict[str, Any]) -> None:
    run(files)
    rows = {row["policy"]: row for row in read(files["parameters"])}
    assert {name: row["base"] for name, row in rows.items()} == {
        RCE.format(0): STARTS[0],
        GRPO.format(0): RCE.format(0),
        RCE.format(1): STARTS[1],
        GRPO.format(1): RCE.format(1),
    }
    found = {name: (r["n_parameters"], r["share_differing"], r["norm"], r["relative_norm"]) for name, r in rows.items()}
    norm = f"{math.sqrt(1 + 4 + 9 + 16):.9g}"
    assert found[RCE.format(0)] == ("4", "1", norm, "")  # no share of a base of zeros
    assert found[GRPO.format(0)] == ("4", "0", "0", "0")
    assert found[RCE.format(1)] == ("4", "0.25", "1", f"{1 / math.sqrt(13):.9g}")
    assert found[GRPO.format(1)] == ("4", "0.25", "2", "0.5")
    tensors = [row for row in read(files["tensors"]) if row["policy"] == GRPO.format(1)]
    assert [(row["tensor"], row["n_parameters"], row["share_differing"]) for row in tensors] == [
        ("a", "2", "0.5"),
        ("b", "2", "0"),
    ]


def test_prompts_are_told_apart_by_image_question_and_order(files: dict[str, Any]) -> None:
    run(files)
    found = {(row["policy"], row["shots"]): row["n_distinct_prompts"] for row in read(files["prompts"])}
    assert {row["n_queries"] for row in read(files["prompts"])} == {"4"}
    assert found["baseline/zero_shot", "2"] == "3"  # the first two queries are one question
    assert found["baseline/oracle", "2"] == "3"
    assert found[RCE.format(0), "2"] == found[RCE.format(0), "1"] == "4"  # turned round: another prompt
    assert found[RCE.format(1), "2"] == "3"
    # One shot shows the first demonstration only, which the two queries share.
    assert (found[GRPO.format(1), "1"], found[GRPO.format(1), "2"]) == ("3", "4")


def test_a_run_writes_the_same_bytes_again(files: dict[str, Any]) -> None:
    run(files)
    before = {name: contents.digest(files[name]) for name in OUTPUTS}
    run(files)
    assert {name: contents.digest(files[name]) for name in before} == before


def test_selections_of_other_queries_are_refused(files: dict[str, Any]) -> None:
    write_selections(files["selections"][2], CHOSEN[RCE.format(0)][:3])
    with pytest.raises(RecordError, match="1 without one and 0 of other queries"):
        run(files)


def test_a_selector_of_another_architecture_is_refused(files: dict[str, Any]) -> None:
    storage.write_arrays(files["selectors"][1], {"a": np.zeros(3, dtype=np.float32)})
    with pytest.raises(ShapeError, match="differ in a, b"):
        run(files)


def test_baselines_alone_have_agreement_too(files: dict[str, Any]) -> None:
    names = ("baseline/oracle", "baseline/random-0")
    files["selections"] = (files["selections"][1], files["selections"][2])
    files["selectors"] = ()
    run(files, policies=names, starts=())
    assert shares(files, *names, 2) == (0.25, 0.5, 0.25)
    assert read(files["parameters"]) == []


def test_selections_that_end_early_agree_where_their_prompts_do(files: dict[str, Any]) -> None:
    # The first ends where the other goes on, the second is the same short one, the third differs in its only one.
    write_selections(files["selections"][2], [[1], [2], [3], [5, 6]])
    write_selections(files["selections"][3], [[1, 2], [2], [4], [6, 5]])
    run(files)
    assert shares(files, RCE.format(0), GRPO.format(0), 1) == (0.5, 0.5, 0.5)
    assert shares(files, RCE.format(0), GRPO.format(0), 2) == (0.25, 0.5, 0.5)
