from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from builders import WIDTH, evaluation_files
from numpy.typing import NDArray

from lever_pipe.base import storage
from lever_pipe.base.records import Pool
from lever_pipe.base.torch_streams import torch_generator
from lever_pipe.experiment.collected import MeasureDriftConfig
from lever_pipe.experiment.selector import Selector
from lever_pipe.lever.selector.drift import kl_to_base
from lever_pipe.lever.selector.embeddings import read_table
from lever_pipe.lever.selector.network import architecture_of, build_selector, initialise, load_selector
from lever_pipe.stages.measure_drift import measure_drift

RCE, START = "preset~p/rce/seed~0/epoch~1", "preset~p/init/seed~0"
GRPO, SAME, ON_POLICY = (
    f"preset~p/{run}/base~1/{beta}seed~0/epoch~1"
    for run, beta in (("grpo", "beta~0.1/"), ("distil", ""), ("on_policy", "beta~0.1/"))
)
TRAINED = (RCE, GRPO, SAME, ON_POLICY)
SMALL = Selector(width=8)
MOVED = "query_proj.weight"


def weights_of(name: str) -> dict[str, NDArray[np.float32]]:
    """Return a selector's tensors: RCE's, but for one number in GRPO and turned scores in on-policy GRPO."""
    module = initialise(build_selector(architecture_of(SMALL, WIDTH)), torch_generator(0))
    found = {tensor: values.numpy().copy() for tensor, values in module.state_dict().items()}
    if name == GRPO:
        found[MOVED].flat[-1] += 2
    if name == ON_POLICY:
        found[MOVED] *= -1
    return found


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Any]:
    every = evaluation_files(tmp_path, 20, 4) | {"parameters": tmp_path / "parameters.csv"}
    paths: dict[str, Any] = {name: path for name, path in every.items() if not name.endswith("examples")}
    paths["selectors"] = tuple(tmp_path / f"{i}.safetensors" for i in range(len(TRAINED) + 1))
    for path, name in zip(paths["selectors"], [*TRAINED, START], strict=True):
        storage.write_arrays(path, weights_of(name))
    return paths


def run(files: dict[str, Any]) -> dict[str, dict[str, str]]:
    names = ("baseline/oracle", *TRAINED)
    measure_drift(
        **files, config=MeasureDriftConfig(policies=names, starts=(START,), selectors={"p": SMALL}, shots=(1, 2))
    )
    with files["parameters"].open(newline="") as handle:
        return {row["policy"]: row for row in csv.DictReader(handle)}


def test_what_starts_from_rce_has_its_distance_from_there(files: dict[str, Any]) -> None:
    found = run(files)
    assert {name: row["base"] for name, row in found.items()} == {RCE: START, GRPO: RCE, SAME: RCE, ON_POLICY: RCE}
    n_parameters = sum(of.size for of in weights_of(RCE).values())
    assert {row["n_parameters"] for row in found.values()} == {str(n_parameters)}
    assert (found[RCE]["kl_to_base"], found[SAME]["kl_to_base"]) == ("", "0")
    paths = dict(zip([*TRAINED, START], files["selectors"], strict=True))
    train, queries = (read_table(files[f"{split}_embeddings"], torch.device("cpu")) for split in ("train", "eval"))
    for name in (GRPO, ON_POLICY):
        modules = (load_selector(paths[each], architecture_of(SMALL, WIDTH)) for each in (name, RCE))
        kl = kl_to_base(*modules, train, queries, storage.read_rows(files["eval_pools"], Pool), 2)  # type: ignore[arg-type]
        assert float(found[name]["kl_to_base"]) == pytest.approx(kl, rel=1e-8)
        assert kl > 0
