from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from builders import WIDTH, evaluation_files, example, ids
from numpy.typing import NDArray

from lever_pipe.base import storage
from lever_pipe.base.records import ExampleId, Pool, Selection
from lever_pipe.base.seeding import torch_generator
from lever_pipe.base.shapes import ShapeError
from lever_pipe.experiment.config import Selector
from lever_pipe.experiment.stage_configs import MeasureAgreementConfig
from lever_pipe.lever.selector.decoding import kl_to_base
from lever_pipe.lever.selector.embeddings import architecture_for, read_table
from lever_pipe.lever.selector.network import build_selector, initialise, load_selector
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
SMALL = Selector(width=8)
MOVED = "query_proj.weight"
"""The tensor that differs: by 1 in its first number in RCE of seed 1, from there by 2 in its last in GRPO of seed 1."""
OUTPUTS = ("agreement", "parameters", "tensors", "prompts")


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Any]:
    paths: dict[str, Any] = evaluation_files(tmp_path, 20, 4) | {name: tmp_path / name for name in OUTPUTS}
    del paths["train_examples"]
    same = {"image_digest": "one", "question": "which?"}
    storage.write_rows(paths["eval_examples"], [example(i, **(same if i < 2 else {})) for i in range(4)])
    paths["selections"] = tuple(tmp_path / f"{i}.jsonl" for i in range(len(POLICIES)))
    for path, name in zip(paths["selections"], POLICIES, strict=True):
        write_selections(path, CHOSEN[name])
    trained = [name for name in POLICIES if not name.startswith("baseline/")]
    paths["selectors"] = tuple(tmp_path / f"{i}.safetensors" for i in range(len(trained) + len(STARTS)))
    for path, name in zip(paths["selectors"], [*trained, *STARTS], strict=True):
        storage.write_arrays(path, weights_of(name))
    return paths


def weights_of(name: str) -> dict[str, NDArray[np.float32]]:
    """Return a selector's tensors: of seed 0 all alike but an initialisation of zeros."""
    seed = 1 if "seed~1" in name else 0
    module = initialise(build_selector(architecture_for(SMALL, WIDTH)), torch_generator(seed))
    found = {tensor: values.numpy().copy() for tensor, values in module.state_dict().items()}
    if seed:
        found[MOVED].flat[0] += 1 if "init" not in name else 0
        found[MOVED].flat[-1] += 2 if "grpo" in name else 0
    return found if seed or "init" not in name else {tensor: np.zeros_like(of) for tensor, of in found.items()}


def write_selections(path: Path, chosen: list[list[int]]) -> None:
    rows = [Selection(query_id=ExampleId(i), demonstrations=ids(row)) for i, row in enumerate(chosen)]
    storage.write_rows(path, rows)


def with_on_policy(files: dict[str, Any], folder: Path) -> tuple[str, ...]:
    """Add on-policy GRPO and a mark of seed 0 to the files, and return all policies."""
    drawn = "preset~p/on_policy/base~1/beta~0.1/seed~0/epoch~1", "preset~p/distil/base~1/seed~0/epoch~1"
    chosen = ([[1, 2], [2, 1], [4, 3], [8, 9]], [[1, 2], [2, 1], [3, 4], [5, 6]])
    for index, selected in enumerate(chosen):
        write_selections(folder / f"drawn-{index}.jsonl", selected)
        weights = weights_of(RCE.format(0))
        weights[MOVED] *= 2 * index - 1  # the first turns its scores round
        storage.write_arrays(folder / f"drawn-{index}.safetensors", weights)
    n = len(files["selectors"]) - len(STARTS)
    added = tuple(folder / f"drawn-{index}.safetensors" for index in range(2))
    files["selections"] += tuple(folder / f"drawn-{index}.jsonl" for index in range(2))
    files["selectors"] = (*files["selectors"][:n], *added, *files["selectors"][n:])
    return (*POLICIES, *drawn)


def run(files: dict[str, Any], **changed: Any) -> None:
    values = {"policies": POLICIES, "starts": STARTS, "selectors": {"p": SMALL}}
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
    n, norms = "", {}
    for name in (RCE.format(0), STARTS[1], RCE.format(1)):
        every = np.concatenate([values.ravel() for values in weights_of(name).values()]).astype(float)
        n, norms[name] = str(len(every)), float(np.linalg.norm(every))
    found = {name: (r["n_parameters"], r["norm"], r["relative_norm"]) for name, r in rows.items()}
    assert found[RCE.format(0)] == (n, f"{norms[RCE.format(0)]:.9g}", "")  # no share of a base of zeros
    assert found[GRPO.format(0)] == (n, "0", "0")
    for name, base, by in ((RCE.format(1), STARTS[1], 1), (GRPO.format(1), RCE.format(1), 2)):
        assert list(map(float, found[name][1:])) == pytest.approx([by, by / norms[base]], rel=1e-6)
        assert float(rows[name]["share_differing"]) == pytest.approx(1 / int(n))
    tensors = [row for row in read(files["tensors"]) if row["policy"] == GRPO.format(1)]
    of_tensors = {row["tensor"]: float(row["share_differing"]) for row in tensors}
    assert of_tensors == {name: float(name == MOVED) / 64 for name in weights_of(GRPO.format(1))}


def test_what_starts_from_rce_has_its_distance_from_there(files: dict[str, Any], tmp_path: Path) -> None:
    policies = with_on_policy(files, tmp_path)
    run(files, policies=policies)
    found = {row["policy"]: row["kl_to_base"] for row in read(files["parameters"])}
    assert (found[RCE.format(0)], found[RCE.format(1)]) == ("", "")
    assert (found[GRPO.format(0)], found[policies[-1]]) == ("0", "0")  # tensors as the base has them
    paths = dict(zip([name for name in policies if not name.startswith("baseline/")], files["selectors"], strict=False))
    train, queries = (read_table(files[f"{split}_embeddings"], torch.device("cpu")) for split in ("train", "eval"))
    for name, base in ((GRPO.format(1), RCE.format(1)), (policies[-2], RCE.format(0))):
        modules = (load_selector(paths[each], architecture_for(SMALL, WIDTH)) for each in (name, base))
        kl = kl_to_base(*modules, train, queries, storage.read_rows(files["eval_pools"], Pool), 2)  # type: ignore[arg-type]
        assert float(found[name]) == pytest.approx(kl, rel=1e-8)
        assert kl > 0


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


def test_a_selector_of_another_architecture_is_refused(files: dict[str, Any]) -> None:
    storage.write_arrays(files["selectors"][1], {"a": np.zeros(3, dtype=np.float32)})
    with pytest.raises(ShapeError, match="differ in a, attn_norms"):
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
