"""The curves of a finished run as runs of a tracker, read back by the tracker's own library."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from agent_runs import Study, manifest

from lever_pipe.__main__ import main
from lever_pipe.base import storage
from lever_pipe.commands import export_tool

TRAINING = """stage,mode,base_rce_epoch,kl_beta,seed,epoch,metric,value,preset
rce,,,,0,1,loss,11.7775341,world
rce,,,,0,2,loss,1e-300,world
rce,,,,0,2,entropy,,world
grpo,on_policy,2,0.15,0,1,loss,-0.1,world
"""
CURVES = """arm,seed,step,split,mode,metric,value
start,0,0,test,greedy,reward,0.5625
bundle,0,1,train,,reward,123456789
bundle,0,1,val,sampled,reward,0.219148425
bundle,0,1,val,greedy,reward,0.219148425
"""

VALUES = {
    "preset~world/rce/seed~0": {1: {"loss": 11.7775341}, 2: {"loss": 1e-300}},
    "preset~world/on_policy/base~2/beta~0.15/seed~0": {1: {"loss": -0.1}},
    "arm~start/seed~0": {0: {"test/greedy/reward": 0.5625}},
    "arm~bundle/seed~0": {
        1: {"train/reward": 123456789.0, "val/sampled/reward": 0.219148425, "val/greedy/reward": 0.219148425}
    },
}
"""Run -> step or epoch -> metric -> value."""


@pytest.fixture
def results(tmp_path: Path) -> Path:
    for name, text in (("lever/tables/training.csv", TRAINING), ("intention/tables/curves.csv", CURVES)):
        path = tmp_path / "smoke" / name
        path.parent.mkdir(parents=True)
        path.write_text(text)
    return tmp_path / "smoke"


def output(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(words) == 2
    return capsys.readouterr().err


def test_each_row_of_each_file_is_a_value_of_the_run_that_it_names(results: Path) -> None:
    assert {run.name: dict(run.steps) for run in export_tool.tracked_runs(results)} == VALUES


def test_a_run_states_what_its_manifest_does(results: Path) -> None:
    for folder in ("lever/preset~world/rce/seed~0/epoch~2", "intention/arm~bundle/seed~0"):
        storage.write_row(results / folder / "run.json", manifest(Study()).model_copy(update={"code": folder}))
    codes = {run.name: run.facts.get("code") for run in export_tool.tracked_runs(results)}
    assert codes["preset~world/rce/seed~0"] == "lever/preset~world/rce/seed~0/epoch~2"
    assert codes["arm~bundle/seed~0"] == "intention/arm~bundle/seed~0"
    assert codes["arm~start/seed~0"] is None


def test_what_cannot_be_exported_is_named(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(results.parent / "out")
    with pytest.raises(SystemExit):
        main(["export", "tensorbord", str(results), out])
    assert "invalid choice: 'tensorbord'" in capsys.readouterr().err
    assert "finish its run first" in output(capsys, "export", "wandb", str(results.parent), out)
    assert "expected an empty folder" in output(capsys, "export", "wandb", str(results), str(results))
    (results / "lever/tables/training.csv").write_text("stage,value\nrce,x\n")
    assert "training.csv: expected rows of curves" in output(capsys, "export", "wandb", str(results), out)
    assert not Path(out).exists()


@pytest.mark.filterwarnings("ignore")
def test_tensorboard_gives_back_every_value_in_32_bits(results: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert main(["export", "tensorboard", str(results), str(tmp_path / "out")]) == 0
    for run, steps in VALUES.items():
        events = EventAccumulator(str(tmp_path / "out" / run)).Reload()
        read = {(event.step, tag): event.value for tag in events.Tags()["scalars"] for event in events.Scalars(tag)}
        wrote = {(step, tag): value for step, values in steps.items() for tag, value in values.items()}
        assert read == {key: float(np.float32(value)) for key, value in wrote.items()}


@pytest.mark.filterwarnings("ignore")
def test_wandb_gives_back_every_value(results: Path, tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    from wandb.proto.wandb_internal_pb2 import Record
    from wandb.sdk.internal.datastore import DataStore

    assert main(["export", "wandb", str(results), str(tmp_path / "out")]) == 0
    read: dict[str, dict[int, dict[str, float]]] = {}
    for path in (tmp_path / "out").glob("wandb/offline-run-*/*.wandb"):
        store, name, steps = DataStore(), "", dict[int, dict[str, float]]()
        store.open_for_scan(str(path))
        while (data := store.scan_data()) is not None:
            record = Record.FromString(data)
            name = record.run.display_name or name
            items = {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item}
            if items:
                steps[items["_step"]] = {key: value for key, value in items.items() if not key.startswith("_")}
        read[name] = steps
    assert read == VALUES
