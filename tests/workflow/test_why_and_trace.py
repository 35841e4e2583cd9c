"""`why` and `trace` on a finished smoke run: true of the real plan, tables and files."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from lever_pipe.commands.trace import text, traced_back

from .conftest import Project

pytestmark = pytest.mark.workflow

SMOKE = ("--configfile", "config/smoke.yaml")
RESULTS = "results/smoke"
LEVER = f"{RESULTS}/lever"
GRPO = "preset~world/grpo/base~2/beta~0.15/seed~0/epoch~2"


@contextmanager
def replaced(path: Path) -> Iterator[None]:
    """Put a selector with two other tensors in a file's place for the time of the block."""
    original = path.with_suffix(".kept")
    shutil.copy2(path, original)
    tensors = load_file(path)
    for name in sorted(tensors)[:2]:
        tensors[name] = np.asarray(tensors[name]) + 1
    save_file(tensors, path)
    try:
        yield
    finally:
        os.replace(original, path)  # noqa: PTH105 - with its times


def why(project: Project, *words: str) -> str:
    return project.tool("why", *words, *SMOKE)


def test_nothing_runs_and_the_target_says_what_it_was_made_from(smoke: Project) -> None:
    text = why(smoke, GRPO)
    assert "GRPO beta 0.15 epoch 2 of seed 0 (world, base 2) does not run: everything is as it was made." in text
    manifest = json.loads((smoke.folder / LEVER / GRPO / "run.json").read_text())
    assert f"code {manifest['code']}" in text
    assert f"start {manifest['inputs']['start'][:16]}" in text


def test_a_replaced_checkpoint_is_the_cause_of_what_reads_it(smoke: Project) -> None:
    base = smoke.folder / LEVER / "preset~world/rce/seed~0/epoch~2/selector.safetensors"
    count = len(load_file(base))
    with replaced(base):
        first, *text = why(smoke, f"{LEVER}/{GRPO}/selections.jsonl").splitlines()
    assert first.startswith("select_demonstrations of GRPO beta 0.15 epoch 2 of seed 0 (world, base 2) runs only if ")
    own = next(line for line in text if line.startswith("GRPO beta 0.15 epoch "))
    assert f"2 of {count} tensors differ" in own
    assert not any(re.search(r"^RCE epoch 2 of seed 0 \(world\) runs? ", line) for line in text), "it is not made again"


def test_a_setting_and_an_edit_are_named(smoke: Project) -> None:
    with smoke.edited(
        "lever_pipe/losses/kl.py", "torch.expm1(log_ratio) - log_ratio", "torch.expm1(log_ratio) + log_ratio"
    ):
        text = why(smoke, GRPO, "--config", 'presets={"world":{"grpo":{"learning_rate":0.0002}}}')
    assert "grpo.learning_rate is 0.0002, was 0.0001" in text
    assert "losses.kl changed" in text


def test_a_cell_leads_to_its_run_and_to_no_other(smoke: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    table = json.loads((smoke.folder / RESULTS / "report/index.json").read_text())["tables"]["modes"]
    evidence = (smoke.folder / RESULTS / "report/evidence.csv").read_text().splitlines()
    column = table["columns"].index("Accuracy (%)")
    printed = [int(cells[column][0].removeprefix("e")) for cells in table["cells"]]
    line = next(line for line in printed if "/on_policy/base~2/beta~1/" in evidence[line - 1])
    cell = f"modes:{printed.index(line) + 1}:Accuracy (%)"
    monkeypatch.chdir(smoke.folder)
    found = traced_back(cell, Path(RESULTS))
    (quantity,), (source,) = found.rows, found.sources
    path, _, measured = source.rpartition(":")
    assert (quantity.line, path) == (line, f"{LEVER}/tables/intervals.csv")
    rows = list(csv.DictReader(Path(path).read_text().splitlines()))
    assert float(rows[int(measured) - 2]["accuracy"]) == quantity.row.value
    trained = [str(step.artefact.manifest) for step in found.steps if step.origin.stage.startswith("train_")]
    folder = f"{LEVER}/preset~world"
    own = [f"{folder}/on_policy/base~2/beta~1/seed~0/epoch~{epoch}/run.json" for epoch in (1, 2)]
    assert sorted(trained) == sorted([*own, *(f"{folder}/rce/seed~0/epoch~{epoch}/run.json" for epoch in (1, 2))])
    assert {step.states[name] for step in found.steps for name in step.outputs} == {"as made"}
    raw = [name for step in found.steps for name in step.inputs if name not in step.makers]
    assert raw == [], "the embedded world is made by a rule of its own"
    assert "model folder lvlm.model_identity" in text(found)
